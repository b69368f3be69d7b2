"""Rows of a table of measured runs, for tests."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING

from gpurig.accuracy.table import MeasuredRun, read_table

if TYPE_CHECKING:
    from pathlib import Path

HEADER = [
    "row_id",
    "core",
    "core_kind",
    "kind",
    "source_repo",
    "task",
    "model",
    "model_family",
    "input_shape",
    "seq_len",
    "optimizer",
    "framework",
    "framework_version",
    "gpu",
    "gpu_count",
    "precision",
    "per_gpu_batch",
    "grad_accum",
    "activation_checkpointing",
    "torch_compile",
    "channels_last",
    "throughput",
    "throughput_unit",
    "memory",
    "memory_unit",
    "memory_measure",
    "oom",
    "notes",
]
RESNET = {
    "row_id": "a-1",
    "kind": "train",
    "source_repo": "someone/benchmarks",
    "task": "image classification",
    "model": "torchvision:resnet18",
    "model_family": "resnet",
    "input_shape": "3x224x224",
    "optimizer": "SGD momentum",
    "framework": "pytorch",
    "framework_version": "2.3.0",
    "gpu": "A100-SXM4-80GB",
    "gpu_count": "1",
    "precision": "fp32",
    "per_gpu_batch": "16",
    "throughput": "500",
    "throughput_unit": "images/s",
}
BERT = {
    **RESNET,
    "model": "transformers:bert-base-uncased",
    "model_family": "bert",
    "task": "masked LM",
    "input_shape": "",
    "seq_len": "128",
    "throughput_unit": "sequences/s",
    "optimizer": "AdamW",
}


def write_table(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        writer.writeheader()
        writer.writerows(rows)
    return path


def run_of(tmp_path: Path, base: dict[str, str] = RESNET, **cells: str) -> MeasuredRun:
    return read_table(write_table(tmp_path / "one.csv", {**base, **cells}))[0]


def changed(run: MeasuredRun, **fields: object) -> MeasuredRun:
    return replace(run, **fields)  # type: ignore[arg-type]
