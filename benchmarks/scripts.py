"""Share of public training scripts that are planned without a change. Run: python benchmarks/scripts.py --help

The list, its stand-in data and the judge are a folder of their own (scripts.csv, standin.py, harness.py, baseline.csv),
named by --data or the environment variable GPURIG_SHARED; the scripts' repositories are git directories below --mirrors.
Neither is part of this repository. --write puts the table into docs/scripts.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
OUT_OF_COUNT = ("broken", "needs package")
GROUPS = ("easy", "medium", "hard")


def main() -> int:
    """Exit status 0 if every group reaches its share."""
    options = parse()
    results = options.results or Path(tempfile.mkdtemp()) / "results.csv"
    if not options.only_table:
        judge(options, results)
    rows, baseline, verdicts = (
        table(p) for p in (options.data / "scripts.csv", options.data / "baseline.csv", results)
    )
    text = "\n".join([*shares(rows, baseline, verdicts), "", *listing(rows, baseline, verdicts)])
    print(text)
    if options.write:
        write(options.write, text)
    return 0


def parse() -> argparse.Namespace:
    shared = os.environ.get("GPURIG_SHARED")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(shared) / "data" / "scripts" if shared else None)
    parser.add_argument("--mirrors", type=Path, help="folder of OWNER+NAME/repo git directories")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the scripts' own environment")
    parser.add_argument("--command", help="planner command; default: this interpreter's `gpurig plan`")
    parser.add_argument("--timeout", default="180")
    parser.add_argument("--ids", nargs="*", default=[])
    parser.add_argument("--results", type=Path, help="verdicts as CSV: written, or read with --only-table")
    parser.add_argument("--only-table", action="store_true", help="make the table from --results")
    parser.add_argument("--write", type=Path, nargs="?", const=Path("docs/scripts.md"))
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data, the folder with scripts.csv and harness.py")
    if not options.only_table and options.mirrors is None:
        parser.error("give --mirrors, the folder with the scripts' repositories")
    return options


def judge(options: argparse.Namespace, results: Path) -> None:
    """Run the harness over the rows; it prints a line each."""
    gpurig = shlex.join([sys.executable, "-m", "gpurig", "plan"])
    planner = options.command or f"{gpurig} {{script}} --python {shlex.quote(options.python)} --json -- {{args}}"
    data = options.data
    command = [
        sys.executable, data / "harness.py", "--rows", data / "scripts.csv", "--standin", data / "standin.py",
        "--mirrors", options.mirrors, "--python", options.python, "--timeout", options.timeout,
        "--scratch", Path(tempfile.mkdtemp()), "--results", results, "--command", planner,
        *(["--ids", *options.ids] if options.ids else []),
    ]  # fmt: skip
    subprocess.run([str(word) for word in command], check=True)


def table(path: Path) -> dict[str, dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


# --- Markdown -----------------------------------------------------------------------------------------------------------
Table = dict[str, dict[str, str]]


def shares(rows: Table, baseline: Table, verdicts: Table) -> list[str]:
    """Passes over scripts that run at all, by difficulty."""
    counted: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for key, verdict in verdicts.items():
        if baseline.get(key, {}).get("verdict") in OUT_OF_COUNT:
            continue
        for group in (rows[key]["difficulty"], "all"):
            counted[group] += 1
            passed[group] += verdict["verdict"] == "pass"
    lines = ["| scripts that run at all | planned | of | share |", "|---|---|---|---|"]
    present = [group for group in (*GROUPS, "all") if counted[group]]
    lines += [f"| {g} | {passed[g]} | {counted[g]} | {passed[g] / counted[g]:.0%} |" for g in present]
    return lines


def listing(rows: Table, baseline: Table, verdicts: Table) -> list[str]:
    """One line a script: what came out and why."""
    lines = ["| script | difficulty | outcome | steps | reserved | time |", "|---|---|---|---|---|---|"]
    for key, verdict in verdicts.items():
        row = rows[key]
        out = baseline.get(key, {}).get("verdict") in OUT_OF_COUNT
        if verdict["verdict"] == "pass":
            outcome = "planned"
        else:
            reason = verdict["detail"].partition(": ")[2] or verdict["detail"]
            outcome = f"{'does not run by itself' if out else 'refused'}: {short(reason)}"
        peak = int(float(verdict["peak"] or 0))
        memory = f"{peak / 2**30:.2f} GiB" if peak else ""
        name = f"{row['repo']}: {row['path']}"
        lines.append(
            f"| {name} | {row['difficulty']} | {outcome} | {verdict['steps'] or ''} | {memory} | {verdict['seconds']} s |"
        )
    return lines


def short(reason: str) -> str:
    return reason.replace("|", "/").replace("<", "‹").replace(">", "›")[:160]


def write(path: Path, text: str) -> None:
    page = path.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
