"""The result of scoring as one object with a JSON form, and as text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpurig.accuracy.score import Figures, Pairs, Scored, Verdict, by, figures, ordered_pairs, reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurig.accuracy.answer import Answer

NUM_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `gpurig accuracy predict` says. The headline is over trusted values; `rows` holds all."""

    table: str
    method: str  # "packaged coefficients", or what was left out
    headline: tuple[Figures, ...]
    per_gpu: tuple[Figures, ...]
    per_source: tuple[Figures, ...]
    per_family: tuple[Figures, ...]
    unanswered: tuple[tuple[str, int], ...]
    pairs: Pairs
    verdicts: int
    verdicts_right: int
    verdicts_clear: int
    verdicts_clear_right: int
    worst: tuple[Answer, ...]
    wrong_verdicts: tuple[Verdict, ...]
    rows: tuple[Answer, ...]


def make_report(table: str, method: str, scored: Scored) -> Report:
    """Figures of a scored table."""
    trusted = [a for a in scored.answers if a.trusted]
    time = [a for a in trusted if a.kind == "time"]
    clear = [v for v in scored.verdicts if v.clear]
    known = [a for a in trusted if a.error is not None]
    return Report(
        table=table,
        method=method,
        headline=tuple(_headline(trusted, scored.answers)),
        per_gpu=by(time, lambda a: a.gpu or "not stated"),
        per_source=by(trusted, lambda a: f"{a.source_repo or 'not stated'}: {a.measure}"),
        per_family=by(time, lambda a: a.family or "not stated"),
        unanswered=reasons(scored.answers),
        pairs=ordered_pairs(scored.runs, scored.answers),
        verdicts=len(scored.verdicts),
        verdicts_right=sum(v.happened == v.predicted for v in scored.verdicts),
        verdicts_clear=len(clear),
        verdicts_clear_right=sum(v.happened == v.predicted for v in clear),
        worst=tuple(sorted(known, key=lambda a: -(a.error or 0.0))[:NUM_WORST]),
        wrong_verdicts=tuple(v for v in clear if v.happened != v.predicted)[:NUM_WORST],
        rows=scored.answers,
    )


def _headline(trusted: Sequence[Answer], every: Sequence[Answer]) -> list[Figures]:
    result = []
    for measure in ("step time", "allocated", "reserved", "device"):
        part = [a for a in trusted if a.measure == measure]
        if part:
            result.append(figures(measure, part))
            simpler = "roofline at peak rates" if measure == "step time" else "parameters × 16 bytes"
            naive = [replace(a, ratio=a.naive_ratio) for a in part if a.naive_ratio is not None]
            if naive:
                result.append(figures(f"{measure}, by {simpler}", naive))
        rest = [a for a in every if a.measure == measure and not a.trusted]
        if rest:
            result.append(figures(f"{measure}, other rows", rest))
    return result
