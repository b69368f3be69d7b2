"""A table of measured training runs: the columns, one row as an object, all faults of a file at once."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpurig.errors import BadFile

if TYPE_CHECKING:
    from pathlib import Path

REQUIRED_COLUMNS = ("row_id", "kind", "model", "gpu", "precision", "per_gpu_batch")
VALUE_COLUMNS = ("throughput", "memory")
KINDS = ("train", "inference", "max-batch")
THROUGHPUT_UNITS = (
    "images/s",
    "sequences/s",
    "samples/s",
    "records/s",
    "tokens/s",
    "tokens/s per GPU",
    "mel-frames/s",
    "audio-samples/s",
    "steps/s",
    "s/iter",
    "ms/iter",
    "s for 1024 samples",
    "hours per 100 ImageNet-1k epochs (1,281,167 images each)",
)
BYTES_PER_UNIT = {"GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "MiB": 2.0**20, "B": 1.0}
MAX_FAULTS_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row: what was run, on what, and what was measured. Blank cells are None, or "" for text.

    `throughput` is for the whole system in `throughput_unit`; `memory` is per GPU in `memory_unit`, and
    `memory_measure` says in words which kind of memory.
    """

    row_id: str
    kind: str
    source: str
    task: str
    model: str
    family: str
    input_shape: str
    seq_len: str
    optimizer: str
    framework: str
    framework_version: str
    gpu: str
    num_gpus: int
    precision: str
    batch: int | None
    grad_accum: str
    checkpointing: bool
    compiled: bool
    channels_last: bool | None
    throughput: float | None
    throughput_unit: str
    memory: float | None
    memory_unit: str
    memory_measure: str
    out_of_memory: str  # "y", "suspected" or ""
    core: bool
    core_kind: str
    notes: str
    container: str = ""
    source_date: str = ""

    @property
    def near_capacity(self) -> bool:
        """Whether the source's value is bounded by the card and says little about the need."""
        return "NEAR CAPACITY" in self.notes

    @property
    def suspect(self) -> bool:
        return "SUSPECT" in self.notes or self.out_of_memory == "suspected"


def read_table(path: Path) -> tuple[MeasuredRun, ...]:
    """Rows of a CSV file in the schema of the benchmark tables.

    Columns that the file lacks read as blank, except `REQUIRED_COLUMNS`, and one of `VALUE_COLUMNS` must be there.

    Raises:
        BadFile: not a file, not CSV, columns missing, or rows with faults; all of them are listed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"cannot read the table {path}", details=(str(error),)) from error
    reader = csv.DictReader(text.splitlines(keepends=True))
    _check_columns(path, tuple(reader.fieldnames or ()))
    rows: list[MeasuredRun] = []
    faults: list[str] = []
    seen: set[str] = set()
    for number, cells in enumerate(reader, start=2):
        row, row_faults = _row({key: (value or "").strip() for key, value in cells.items() if key is not None})
        if row is not None and row.row_id in seen:
            row_faults.append(f"row_id {row.row_id!r} occurs twice")
        faults += [f"line {number}: {fault}" for fault in row_faults]
        if row is not None:
            seen.add(row.row_id)
            rows.append(row)
    if faults:
        raise _bad(path, faults)
    if not rows:
        raise BadFile(f"the table {path} has no rows", hint="give a table with one measured run per line")
    return tuple(rows)


def _check_columns(path: Path, columns: tuple[str, ...]) -> None:
    missing = [f"column {name!r} is missing" for name in REQUIRED_COLUMNS if name not in columns]
    if not any(name in columns for name in VALUE_COLUMNS):
        missing.append("one of the columns 'throughput' and 'memory' is needed")
    if missing:
        raise _bad(path, missing)


def _bad(path: Path, faults: list[str]) -> BadFile:
    shown = faults[:MAX_FAULTS_SHOWN]
    if len(faults) > len(shown):
        shown.append(f"… and {len(faults) - len(shown)} more")
    return BadFile(
        f"{path} is not a table of measured runs: {len(faults)} fault{'s' * (len(faults) > 1)}",
        details=tuple(shown),
        hint="see docs/accuracy.md for the columns",
    )


def _row(cells: dict[str, str]) -> tuple[MeasuredRun | None, list[str]]:
    faults: list[str] = []
    get = cells.get
    kind = get("kind", "") or "train"
    if not get("row_id", ""):
        faults.append("row_id is blank")
    if kind not in KINDS:
        faults.append(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    batch = _number(get("per_gpu_batch", ""), "per_gpu_batch", faults)
    num_gpus = _number(get("gpu_count", ""), "gpu_count", faults)
    throughput = _number(get("throughput", ""), "throughput", faults)
    memory = _number(get("memory", ""), "memory", faults)
    if throughput is not None and get("throughput_unit", "") not in THROUGHPUT_UNITS:
        faults.append(f"throughput_unit {get('throughput_unit', '')!r} is not known")
    if memory is not None and get("memory_unit", "") not in BYTES_PER_UNIT:
        faults.append(f"memory_unit {get('memory_unit', '')!r} is not one of {', '.join(BYTES_PER_UNIT)}")
    if faults:
        return None, faults
    channels_last = get("channels_last", "")
    return MeasuredRun(
        row_id=cells["row_id"],
        kind=kind,
        source=get("source_repo", ""),
        task=get("task", ""),
        model=get("model", ""),
        family=get("model_family", ""),
        input_shape=get("input_shape", ""),
        seq_len=get("seq_len", ""),
        optimizer=get("optimizer", ""),
        framework=get("framework", "") or "pytorch",
        framework_version=get("framework_version", ""),
        gpu=get("gpu", ""),
        num_gpus=int(num_gpus) if num_gpus else 1,
        precision=get("precision", ""),
        batch=int(batch) if batch else None,
        grad_accum=get("grad_accum", ""),
        checkpointing=get("activation_checkpointing", "").startswith("y"),
        compiled=get("torch_compile", "").lower().startswith(("y", "xla")),
        channels_last=None if not channels_last else channels_last.startswith("y"),
        throughput=throughput,
        throughput_unit=get("throughput_unit", ""),
        memory=memory,
        memory_unit=get("memory_unit", ""),
        memory_measure=get("memory_measure", ""),
        out_of_memory=get("oom", ""),
        core=get("core", "") == "1",
        core_kind=get("core_kind", ""),
        notes=get("notes", ""),
        container=get("container", ""),
        source_date=get("source_date", ""),
    ), faults


def _number(text: str, name: str, faults: list[str]) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        faults.append(f"{name} {text!r} is not a number")
        return None
    if not math.isfinite(value) or value < 0:
        faults.append(f"{name} {text!r} is not a finite number of 0 or more")
        return None
    return value
