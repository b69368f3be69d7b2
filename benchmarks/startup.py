"""How long the command line takes to start, as a multiple of a bare interpreter. Run: python benchmarks/startup.py

All commands are started in turn, so that a change of load meets all of them alike; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": (["-c", "pass"], None),
    "python -c 'import click'": (["-c", "import click"], None),
    "gpurig --help": (["-m", "gpurig", "--help"], 6.0),
    "gpurig offers --gpu A100": (["-m", "gpurig", "offers", "--gpu", "A100"], 15.0),
    "gpurig gpus A100-SXM4-80GB": (["-m", "gpurig", "gpus", "A100-SXM4-80GB"], None),
    "gpurig offers --json": (["-m", "gpurig", "offers", "--json"], None),
}


def measure(runs: int) -> dict[str, float]:
    """Median wall time of each command in seconds."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "GPURIG_HOME": home}
        for turn in range(runs + 1):
            for name, (arguments, _) in COMMANDS.items():
                start = time.perf_counter()
                subprocess.run(
                    [sys.executable, *arguments],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
                if turn:  # the first turn fills the caches
                    times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def main() -> int:
    """Print the table; exit 1 if a limit is passed and --check was given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--check", action="store_true", help="exit 1 where a limit is passed")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    medians = measure(arguments.runs)
    bare = medians["python -c pass"]
    rows = [
        {"command": name, "median_s": seconds, "ratio": seconds / bare, "limit": COMMANDS[name][1]}
        for name, seconds in medians.items()
    ]
    if arguments.json:
        print(json.dumps({"schema_version": 1, "runs": arguments.runs, "rows": rows}, indent=1))
    else:
        print(f"{'command':30}  {'median':>8}  {'ratio':>6}  limit")
        for row in rows:
            limit = f"{row['limit']:g}" if row["limit"] else "-"
            print(f"{row['command']:30}  {1e3 * row['median_s']:5.0f} ms  {row['ratio']:5.1f}x  {limit}")
    passed = all(row["limit"] is None or row["ratio"] <= row["limit"] for row in rows)
    return 0 if passed or not arguments.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
