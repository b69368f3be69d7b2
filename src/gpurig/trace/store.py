"""Traces in files: StepTrace to JSON and back.

The user's own Python may lack msgspec; it then writes the same JSON more slowly. Reading is done by gpurig's Python.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from gpurig.errors import BadFile
from gpurig.model.trace import SCHEMA_VERSION, StepTrace

if TYPE_CHECKING:
    from pathlib import Path


def _fields(value: object) -> dict[str, object]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"cannot be written as JSON: {type(value).__name__}")


def encode(value: object) -> bytes:
    """A noun (or any dataclass of plain values) as JSON."""
    try:
        import msgspec
    except ImportError:
        return json.dumps(value, default=_fields, separators=(",", ":")).encode()
    return msgspec.json.encode(value)


def decode(data: bytes, source: str = "trace") -> StepTrace:
    """A StepTrace from JSON.

    Raises:
        BadFile: it is no trace, or one of another version; `source` is named.
    """
    import msgspec

    try:
        version = msgspec.json.decode(data, type=_Version).schema_version
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadFile(f"{source} is not a trace", details=(str(error),)) from error
    if version != SCHEMA_VERSION:
        raise BadFile(
            f"{source} was written in version {version} of the format; this gpurig reads version {SCHEMA_VERSION}",
            hint="trace the script again with this version of gpurig",
        )
    try:
        return msgspec.json.decode(data, type=StepTrace)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadFile(f"{source} is not a trace", details=(str(error),)) from error


@dataclasses.dataclass(frozen=True, slots=True)
class _Version:
    schema_version: int


def save(trace: StepTrace, path: Path) -> None:
    """Write a trace, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(encode(trace))
    part.replace(path)


def load(path: Path) -> StepTrace:
    """Read a trace.

    Raises:
        BadFile: see `decode`.
        OSError: the file cannot be read.
    """
    return decode(path.read_bytes(), str(path))
