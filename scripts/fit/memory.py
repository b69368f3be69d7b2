"""Fit base memory and spreads; write src/gpurig/data/calibration/memory.json and stacks.json.

    python scripts/fit/memory.py BENCHMARKS_FOLDER --cache TRACES_FOLDER [--models N]

The folder holds core.csv in the schema of docs/accuracy.md. Traces are made once and kept in the cache. Of the largest
source, thousands of rows of convolution nets, only the rows of N models are taken: every k-th in the order of their names.
Equal inputs give equal files: nothing is random, and rows are taken in the order of their ids.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.accuracy.memory_fit import StackKey, calibration_to_json, fit_stacks, readings, spreads, stacks_to_json
from gpurig.accuracy.table import MeasuredRun, read_table
from gpurig.accuracy.traces import Tracer
from gpurig.predict.base_memory import BaseConstant, MemoryCalibration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurig.accuracy.stacks import Stack

TARGET = Path(__file__).parents[2] / "src" / "gpurig" / "data" / "calibration"
LARGE_SOURCE = "itu-rad/GPUMemNet"
LARGE_SOURCE_BATCHES = (8, 32, 128)

STACKS = (
    StackKey("mila-iqia/milabench", "ampere", (2, 0)),
    StackKey(LARGE_SOURCE, "ampere", (2, 0)),
    StackKey("lambdal/deeplearning-benchmark", "turing", (0, 0)),
    StackKey("lambdal/deeplearning-benchmark", "ampere", (1, 7)),
)
IDLE_CARD_MIB = 475.0  # what the card of that source reads with no program on it, from the notes of its rows

# What no reading of these tables says.
STATED = (
    BaseConstant(
        architecture="*", torch_from=(2, 0), context_mib=700.0, convolution_mib=150.0, spread_mib=400.0, rows=0,
        source="one run of optimum-benchmark on CUDA lies 640 MiB over its reserved memory; an A100 0.9 GiB",
    ),
    BaseConstant(
        architecture="*", torch_from=(0, 0), context_mib=1000.0, convolution_mib=150.0, spread_mib=500.0, rows=0,
        source="containers of 2020 and 2021: 950 to 1,150 MiB with the workspaces that cuBLAS then took by itself",
    ),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--models", type=int, default=60, help="models of the largest source")
    parser.add_argument("--kept-only", action="store_true", help="use the traces that are in the cache, make none")
    parser.add_argument("--output", type=Path, default=TARGET, help="folder to write to")
    arguments = parser.parse_args()
    runs = sample(read_table(arguments.benchmarks / "core.csv"), arguments.models)
    with Tracer(arguments.cache) as tracer:
        seen = readings(runs, tracer, kept_only=arguments.kept_only)
    stacks = fit_stacks(seen, STACKS)
    allocated, reserved = spreads(seen, stacks)
    calibration = MemoryCalibration(bases=(*packaged(stacks), *STATED), allocated=allocated, reserved=reserved)
    (arguments.output / "memory.json").write_text(calibration_to_json(calibration), encoding="utf-8")
    (arguments.output / "stacks.json").write_text(stacks_to_json(stacks), encoding="utf-8")
    sys.stderr.write(f"fitted to {len(seen)} readings\n")
    return 0


def sample(runs: Sequence[MeasuredRun], models: int) -> list[MeasuredRun]:
    """All runs with a memory value, of the largest source only those of evenly chosen models at a few batch sizes."""
    names = sorted({run.model for run in runs if run.source == LARGE_SOURCE})
    chosen = set(names[:: max(1, len(names) // models)][:models])
    return [
        run
        for run in runs
        if run.memory and (run.source != LARGE_SOURCE or (run.model in chosen and run.batch in LARGE_SOURCE_BATCHES))
    ]


def packaged(stacks: Sequence[Stack]) -> tuple[BaseConstant, ...]:
    """Base memory inside what a program can use: readings of the whole card, less what an idle card reads."""
    found = []
    for stack in stacks:
        constant = stack.constant
        if stack.source == LARGE_SOURCE:
            continue  # neither the GPU nor the software is stated
        idle = IDLE_CARD_MIB if stack.source == "mila-iqia/milabench" else 0.0
        found.append(
            BaseConstant(
                architecture=constant.architecture,
                torch_from=constant.torch_from,
                context_mib=constant.context_mib - idle,
                convolution_mib=constant.convolution_mib,
                spread_mib=constant.spread_mib,
                rows=constant.rows,
                source=constant.source,
            )
        )
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main())
