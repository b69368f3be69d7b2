"""Cross-validation on a table: every step time predicted by coefficients fitted without its own family or GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpurig.accuracy.answer import Answer, in_unit_of
from gpurig.accuracy.calibrate import family_keys, gpu_keys, held_out, observations
from gpurig.accuracy.score import Scored, blank_answer, unanswered
from gpurig.accuracy.workload import Unanswerable, rebuild
from gpurig.errors import InputError
from gpurig.predict.fit import Problem, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpurig.accuracy.table import MeasuredRun
    from gpurig.accuracy.traces import Tracer

MIN_ROWS = 20


def cross_validate(
    runs: Sequence[MeasuredRun],
    tracer: Tracer,
    left_out: str,
    operators: Sequence[Sample] = (),
    *,
    progress: Callable[[], None] = lambda: None,
) -> Scored:
    """Step times of a table, each from a fit that has not seen its kind. Memory has no fit to hold out, and no answer.

    Args:
        runs: The table; only its trusted step times on one GPU are used.
        tracer: Makes or keeps the traces.
        left_out: "family" (of the model) or "gpu".
        operators: Timings of single operators that the fit may use besides.
        progress: Called once per run.

    Raises:
        InputError: too few rows for a fit.
    """
    seen = observations(runs, tracer, progress=progress)
    if len(seen) < MIN_ROWS:
        raise InputError(
            f"cross-validation needs at least {MIN_ROWS} rows with a trusted step time on one GPU, this table has {len(seen)}"
        )
    keys = family_keys(seen, operators) if left_out == "family" else gpu_keys(seen, operators)
    predicted = held_out(Problem([*(o.sample for o in seen), *operators]), keys)[: len(seen)]
    answers: list[Answer] = []
    for observation, seconds in zip(seen, predicted, strict=True):
        run, measured = observation.run, observation.sample.step_time_s
        answers.append(
            replace(
                blank_answer(run, "time", table_has_core=True),
                predicted=in_unit_of(run, measured, float(seconds)),
                ratio=float(seconds) / measured,
            )
        )
    used = {o.run.row_id for o in seen}
    for run in runs:
        if run.row_id not in used and run.throughput:
            workload = rebuild(run)
            reason = workload.reason if isinstance(workload, Unanswerable) else "not used by the fit"
            answers += [a for a in unanswered(run, reason, table_has_core=True) if a.kind == "time"]
    return Scored(answers=tuple(answers), verdicts=(), runs=tuple(runs))
