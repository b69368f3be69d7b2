"""Fit the step-time coefficients and write src/gpurig/data/calibration/time.json.

    python scripts/fit/time.py BENCHMARKS_FOLDER --cache TRACES_FOLDER

The folder holds core.csv in the schema of docs/accuracy.md. Traces are made once (about an hour on two cores) and kept
in the cache. Equal inputs give an equal file: nothing is random, and rows are taken in the order of their ids.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpurig.accuracy.calibrate import calibrate_time
from gpurig.accuracy.table import read_table
from gpurig.accuracy.traces import Tracer
from gpurig.predict.coefficients import coefficients_to_json

TARGET = Path(__file__).parents[2] / "src" / "gpurig" / "data" / "calibration" / "time.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--kept-only", action="store_true", help="use the traces that are in the cache, make none")
    parser.add_argument("--output", type=Path, default=TARGET)
    arguments = parser.parse_args()
    runs = read_table(arguments.benchmarks / "core.csv")
    with Tracer(arguments.cache) as tracer:
        coefficients = calibrate_time(runs, tracer, kept_only=arguments.kept_only)
    arguments.output.write_text(coefficients_to_json(coefficients), encoding="utf-8")
    sys.stderr.write(f"wrote {arguments.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
