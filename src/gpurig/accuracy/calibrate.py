"""Calibration from a table of measured runs: fit on all of it, error bands from what is held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpurig.accuracy.answer import is_trusted
from gpurig.accuracy.cards import card_of
from gpurig.accuracy.samples import sample_of
from gpurig.accuracy.traces import STEPS_FOR_TIME, Traced, Tracer, sm_class
from gpurig.accuracy.workload import Unanswerable, rebuild
from gpurig.predict.coefficients import Coefficients, Residuals
from gpurig.predict.fit import Problem, Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gpurig.accuracy.table import MeasuredRun
    from gpurig.predict.tiles import Floats


@dataclass(frozen=True, slots=True)
class Observation:
    """A measured run whose step time the fit may use."""

    run: MeasuredRun
    sample: Sample


def observations(
    runs: Iterable[MeasuredRun], tracer: Tracer, *, kept_only: bool = False, progress: Callable[[], None] = lambda: None
) -> tuple[Observation, ...]:
    """Runs with a trusted step time on one GPU, traced; in the order of their ids."""
    found = []
    for run in sorted(runs, key=lambda r: r.row_id):
        progress()
        if run.kind != "train" or not run.throughput or not is_trusted(run, "time", table_has_core=True):
            continue
        workload, gpu = rebuild(run), card_of(run)
        if isinstance(workload, Unanswerable) or gpu is None:
            continue
        traced = Traced(workload, sm_class(gpu.sm, workload), STEPS_FOR_TIME)
        trace = tracer.kept(traced) if kept_only else tracer.trace(traced)
        if trace is None or isinstance(trace, Unanswerable):
            continue
        sample = sample_of(run, workload, trace, gpu)
        if sample is not None:
            found.append(Observation(run, sample))
    return tuple(found)


def calibrate_time(
    runs: Iterable[MeasuredRun], tracer: Tracer, operators: Sequence[Sample] = (), *, kept_only: bool = False
) -> Coefficients:
    """Coefficients fitted to all observations, with bands from leaving out families and GPUs.

    Args:
        runs: Measured step times.
        tracer: Makes or keeps the traces.
        operators: Timings of single operators; they are fitted too, and never scored.
        kept_only: Take only runs whose trace is in the cache.
    """
    seen = observations(runs, tracer, kept_only=kept_only)
    problem = Problem([*(o.sample for o in seen), *operators])
    solution = problem.solve()
    by_family = held_out(problem, family_keys(seen, operators))
    by_gpu = held_out(problem, gpu_keys(seen, operators))
    scored = np.arange(len(problem.measured)) < len(seen)
    sources = ", ".join(sorted({o.run.source for o in seen}))
    return replace(
        problem.coefficients(solution),
        bands={
            "gpu:yes model:yes": band(problem, scored, problem.predictions(solution), by_family),
            "gpu:yes model:no": band(problem, scored, by_family),
            "gpu:no model:yes": band(problem, scored, by_gpu),
            "gpu:no model:no": band(problem, scored, by_gpu, widen=1.25),
        },
        source=f"scripts/fit/time.py on {len(seen)} published step times of {sources}, and {len(operators)} timings of "
        "single operators (NeuSight, MIT licence)",
    )


def family_keys(seen: Sequence[Observation], operators: Sequence[Sample]) -> list[str]:
    """What to leave out together when families are: operators belong to none."""
    return [*(o.run.family for o in seen), *("" for _ in operators)]


def gpu_keys(seen: Sequence[Observation], operators: Sequence[Sample]) -> list[str]:
    """What to leave out together when GPUs are: the operators timed on a GPU go with it."""
    return [*(o.sample.gpu.gpu_id for o in seen), *(s.gpu.gpu_id for s in operators)]


def held_out(problem: Problem, keys: Sequence[str]) -> Floats:
    """Predictions of each sample by coefficients fitted without the samples of its key; "" is never left out."""
    start = problem.solve()
    predicted = problem.predictions(start)
    names = np.array(keys)
    for key in sorted(set(keys) - {""}):
        left_out = names == key
        solution = problem.solve(without=left_out, start=start)
        predicted[left_out] = problem.predictions(solution)[left_out]
    return predicted


def band(problem: Problem, scored: NDArray[np.bool_], *predictions: Floats, widen: float = 1.0) -> Residuals:
    """5, 50 and 95 % quantiles of measured over predicted, each (GPU, source) group weighing alike."""
    ratios = np.concatenate([(problem.measured / predicted)[scored] for predicted in predictions])
    weights = np.tile(problem.group_weights[scored], len(predictions))
    low, median, high = weighted_quantiles(ratios, weights, (0.05, 0.5, 0.95))
    return Residuals(low=1 - (1 - low) * widen, median=median, high=1 + (high - 1) * widen, rows=int(scored.sum()))


def weighted_quantiles(values: Floats, weights: Floats, at: tuple[float, ...]) -> tuple[float, ...]:
    """Quantiles of a weighted sample: the value at which the weight below it reaches the share."""
    order = np.argsort(values)
    shares = (np.cumsum(weights[order]) - 0.5 * weights[order]) / weights.sum()
    return tuple(float(x) for x in np.interp(at, shares, values[order]))
