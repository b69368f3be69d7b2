"""Reading of the packaged tables, and where the user's own copies live."""

from __future__ import annotations

import csv
import os
from datetime import date
from pathlib import Path

DATA_DIR = Path(__file__).resolve().parent.parent / "data" / "catalog"


def read_table(path: Path, columns: tuple[str, ...]) -> list[list[str]]:
    """Rows of a packaged CSV file, without its header.

    Packaged files are trusted, so this is as fast as the csv module: only the header is checked.

    Raises:
        ValueError: the columns are not the expected ones in the expected order (a damaged installation).
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if tuple(header) != columns:
            raise ValueError(f"{path}: expected the columns {columns}, found {tuple(header)}")
        return list(reader)


def optional_float(text: str) -> float | None:
    """A number, or None for an empty cell."""
    return float(text) if text else None


def optional_int(text: str) -> int | None:
    """A whole number, or None for an empty cell."""
    return int(text) if text else None


def optional_date(text: str) -> date | None:
    """An ISO date, or None for an empty cell."""
    return date.fromisoformat(text) if text else None


def user_data_dir() -> Path:
    """Folder of the user's refreshed price lists: $GPURIG_HOME, else $XDG_DATA_HOME/gpurig, else ~/.local/share/gpurig."""
    home = os.environ.get("GPURIG_HOME")
    if home:
        return Path(home)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "gpurig"
