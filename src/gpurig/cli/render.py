"""Text of tables and JSON. Plain strings in, plain strings out; colour only on top of them.

Nothing here needs rich: a command that wants trees or progress bars imports it inside its own renderer, so that the
plain path stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

JSON_SCHEMA_VERSION = 1
MAX_COLUMNS = 8
MAX_CELL_WIDTH = 34

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a column; numbers stand to the right."""

    title: str
    right: bool = False
    max_width: int = MAX_CELL_WIDTH


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> str:
    """A table of at most eight columns, with two blanks between them and no trailing blanks.

    Raises:
        ValueError: more than eight columns.
    """
    if len(columns) > MAX_COLUMNS:
        raise ValueError(f"{len(columns)} columns; a terminal holds {MAX_COLUMNS}")
    cells = [[column.title for column in columns]]
    cells += [[_cut(cell, column.max_width) for cell, column in zip(row, columns, strict=True)] for row in rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def pairs(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one a line, values aligned; pairs with an empty value are left out."""
    kept = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in kept)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else cell[: width - 1] + "…"


def say(text: str, *, colour: bool, bold: bool = False) -> None:
    """Data, to stdout."""
    click.echo(click.style(text, bold=True) if bold and colour else text, color=colour)


def note(text: str, *, colour: bool) -> None:
    """Narration, to stderr: how to see more, which rate was used."""
    click.echo(click.style(text, dim=True) if colour else text, err=True, color=colour)


def print_json(kind: str, value: Json) -> None:
    """One JSON object to stdout: ``{"schema_version": 1, KIND: value}``."""
    print_json_object({kind: value})


def print_json_object(members: dict[str, Json]) -> None:
    """One JSON object to stdout, with the schema version first."""
    import json

    click.echo(json.dumps({"schema_version": JSON_SCHEMA_VERSION, **members}, ensure_ascii=False, indent=1))


def as_json(value: object) -> Json:
    """A noun of the model as JSON: the same fields, dates as ISO text, unknown as null.

    Raises:
        TypeError: a value with no JSON form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, date):
        return value.isoformat()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def number(value: float | None, digits: int = 4) -> str:
    """A number with at most so many significant digits, thousands kept whole; ``?`` where not known."""
    if value is None:
        return "?"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def money(amount: float, *, guessed: bool = False) -> str:
    """An amount per hour: two decimals, three below one; ``~`` where it was derived."""
    text = f"{amount:.2f}" if amount >= 1 else f"{amount:.3f}"
    return f"~{text}" if guessed else text
