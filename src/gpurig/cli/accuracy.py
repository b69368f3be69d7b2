"""``gpurig accuracy``: predictions scored against a table of measured runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpurig.cli.render import Column, as_json, note, number, print_json_object, say, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpurig.accuracy.answer import Answer
    from gpurig.accuracy.report import Report
    from gpurig.accuracy.score import Figures, Scored
    from gpurig.accuracy.table import MeasuredRun
    from gpurig.cli.session import Session

_FIGURES = (
    Column("values of", max_width=48),
    Column("answered", right=True),
    Column("groups", right=True),
    Column("median", right=True),
    Column("p90", right=True),
    Column("row median", right=True),
    Column("worst", right=True),
    Column("bias", right=True),
)
_WORST = (
    Column("row"),
    Column("gpu", max_width=26),
    Column("model", max_width=36),
    Column("measure"),
    Column("published", right=True),
    Column("predicted", right=True),
    Column("unit"),
    Column("error", right=True),
)
_MAX_LINES = 20


@click.group("accuracy")
def command() -> None:
    """How far predictions lie from measured runs.

    \b
    Examples:
      gpurig accuracy predict runs.csv
      gpurig accuracy predict runs.csv --sample 200 --json
    """


@command.command(
    "predict", epilog="The columns of FILE.csv are in docs/accuracy.md. Exit code 1: no row could be answered."
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.csv")
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Score only N rows, drawn at random.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --sample.")
@click.option(
    "--cross-validate",
    "left_out",
    type=click.Choice(("family", "gpu")),
    help="Fit without the row's own model family or GPU, on the rows of the same table.",
)
@click.option(
    "--operators",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE.parquet",
    help="Timings of single operators that the fit of --cross-validate uses besides.",
)
@click.option("--core/--all", "core_only", default=False, help="Only rows that the table marks as core.")
@click.option("--timeout", type=float, default=180.0, show_default=True, metavar="S", help="Seconds for one trace.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    help="Folder where traces are kept.  [default: gpurig/traces in the user's cache folder]",
)
@click.option(
    "--json", "as_json_text", is_flag=True, help="Everything as JSON, one entry in `rows` per published value."
)
@click.pass_obj
def predict(
    session: Session,
    /,
    file: Path,
    sample: int | None,
    seed: int,
    left_out: str | None,
    operators: Path | None,
    core_only: bool,
    timeout: float,
    cache: Path | None,
    as_json_text: bool,
) -> None:
    """Rebuild each run of FILE.csv, predict it, and compare time and memory with what was published.

    \b
    Examples:
      gpurig accuracy predict runs.csv
      gpurig accuracy predict runs.csv --sample 200 --json
      gpurig accuracy predict runs.csv --cross-validate gpu
    """
    from gpurig.accuracy.report import make_report
    from gpurig.accuracy.table import read_table
    from gpurig.accuracy.traces import Tracer, default_cache

    runs: Sequence[MeasuredRun] = read_table(file)
    if core_only:
        runs = [run for run in runs if run.core]
    if sample is not None:
        runs = _draw(runs, sample, seed)
    with Tracer(cache or default_cache(), timeout) as tracer:
        if left_out is None:
            from gpurig.accuracy.score import score_table
            from gpurig.predict.coefficients import packaged_coefficients

            method = "packaged coefficients"
            scored = _with_progress(
                len(runs), lambda step: score_table(runs, tracer, packaged_coefficients(), progress=step)
            )
        else:
            from gpurig.accuracy.crossval import cross_validate
            from gpurig.accuracy.operators import operator_samples

            timed = operator_samples(operators) if operators else ()
            method = f"fitted to this table without the row's own {'model family' if left_out == 'family' else 'GPU'}"
            scored = _with_progress(
                len(runs), lambda step: cross_validate(runs, tracer, left_out, timed, progress=step)
            )
    report = make_report(file.name, method, scored)
    if as_json_text:
        print_json_object({"accuracy": as_json(report)})
    else:
        _print(report, colour=session.colour)
    if not any(row.predicted is not None for row in report.rows):
        raise click.exceptions.Exit(1)


def _draw(runs: Sequence[MeasuredRun], count: int, seed: int) -> Sequence[MeasuredRun]:
    """Rows drawn without replacement, in the order of the table."""
    import random

    if count >= len(runs):
        return runs
    chosen = set(random.Random(seed).sample(range(len(runs)), count))
    return [run for index, run in enumerate(runs) if index in chosen]


def _with_progress(total: int, work: Callable[[Callable[[], None]], Scored]) -> Scored:
    """`work` with a callback that advances a bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        return work(lambda: None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("tracing and predicting", total=total)
        return work(lambda: progress.advance(task))


def _print(report: Report, *, colour: bool) -> None:
    say(_answer_line(report), colour=colour, bold=True)
    say("", colour=colour)
    say(table(_FIGURES, [_figures_row(f) for f in report.headline]), colour=colour)
    for title, rows in (
        ("Step time by GPU", report.per_gpu),
        ("By source", report.per_source),
        ("Step time by family", report.per_family),
    ):
        say(f"\n{title}", colour=colour, bold=True)
        say(table(_FIGURES, [_figures_row(f) for f in rows[:_MAX_LINES]]), colour=colour)
    if report.worst:
        say("\nWorst", colour=colour, bold=True)
        say(table(_WORST, [_worst_row(a) for a in report.worst]), colour=colour)
    say("\n" + "\n".join(_verdict_lines(report)), colour=colour)
    if report.unanswered:
        say("\nWithout an answer", colour=colour, bold=True)
        say("\n".join(f"{count:6d}  {reason}" for reason, count in report.unanswered[:_MAX_LINES]), colour=colour)
    note(
        "median, p90: means over (GPU, source) groups. --json has every row; --cross-validate gpu the honest figures.",
        colour=colour,
    )


def _answer_line(report: Report) -> str:
    parts = [
        f"{f.name} {100 * f.macro_median:.1f} %"
        for f in report.headline
        if f.macro_median is not None and "," not in f.name
    ]
    answered = sum(row.predicted is not None for row in report.rows)
    found = ", ".join(parts) or "no answers"
    return f"{report.table}: median error {found}; {answered} of {len(report.rows)} values answered ({report.method})"


def _figures_row(found: Figures) -> tuple[str, ...]:
    return (
        found.name,
        f"{found.answered}/{found.values}",
        str(found.groups),
        *(_percent(x) for x in (found.macro_median, found.macro_p90, found.median, found.worst)),
        _percent(found.bias, signed=True),
    )


def _worst_row(answer: Answer) -> tuple[str, ...]:
    return (
        answer.row_id,
        answer.gpu or "?",
        answer.model,
        answer.measure,
        number(answer.published),
        number(answer.predicted),
        answer.unit,
        _percent(None if answer.ratio is None else answer.ratio - 1, signed=True),
    )


def _verdict_lines(report: Report) -> list[str]:
    lines = []
    if report.verdicts:
        lines.append(
            f"Fits or not: {report.verdicts_right} of {report.verdicts} right; "
            f"{report.verdicts_clear_right} of {report.verdicts_clear} where need and capacity differ by more than 5 %"
        )
    if report.pairs.total:
        lines.append(
            f"Pairs of GPUs more than 15 % apart: {report.pairs.right} of {report.pairs.total} in the right order "
            f"({100 * report.pairs.right / report.pairs.total:.1f} %)"
        )
    return lines


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"
