"""Score of predictions against measured runs: one answer per published value, then figures by group."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from gpurig.accuracy.answer import (
    Answer,
    as_run,
    in_unit_of,
    is_trusted,
    memory_bytes,
    memory_measure,
    recipe_of,
    step_time_s,
)
from gpurig.accuracy.baselines import naive_step_time_s, parameters_times_16
from gpurig.accuracy.cards import card_of
from gpurig.accuracy.samples import script_of
from gpurig.accuracy.stacks import memory_calibration
from gpurig.accuracy.table import BYTES_PER_UNIT, MeasuredRun
from gpurig.accuracy.traces import STEPS_FOR_MEMORY, STEPS_FOR_TIME, Traced, Tracer, sm_class
from gpurig.accuracy.workload import Unanswerable, Workload, rebuild
from gpurig.predict.allocator import OutOfMemory
from gpurig.predict.memory import allocator_usage, predict_memory
from gpurig.predict.predict import predict_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpurig.model.gpu import Gpu
    from gpurig.model.prediction import MemoryPrediction
    from gpurig.model.trace import StepTrace
    from gpurig.predict.coefficients import Coefficients

CLEAR_MARGIN = 0.05  # a fit verdict counts where need and capacity lie further apart
PAIR_MARGIN = 0.15  # two GPUs count as different where their published times lie further apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a run fits: what happened and what was predicted. `margin` is |need − capacity| / capacity as predicted."""

    row_id: str
    gpu: str
    source_repo: str
    model: str
    happened: bool
    predicted: bool
    margin: float

    @property
    def clear(self) -> bool:
        return self.margin > CLEAR_MARGIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """All answers and verdicts of a table."""

    answers: tuple[Answer, ...]
    verdicts: tuple[Verdict, ...]
    runs: tuple[MeasuredRun, ...]


def score_table(
    runs: Sequence[MeasuredRun],
    tracer: Tracer,
    coefficients: Coefficients,
    *,
    progress: Callable[[], None] = lambda: None,
) -> Scored:
    """Answers for every published value of every run, in the order of the table.

    Nothing that goes wrong with one run stops the others: it is the reason of its missing answer.
    """
    table_has_core = any(run.core for run in runs)
    answers: list[Answer] = []
    verdicts: list[Verdict] = []
    for run in runs:
        found = _score_run(run, tracer, coefficients, table_has_core=table_has_core)
        answers += found[0]
        verdicts += found[1]
        progress()
    return Scored(answers=tuple(answers), verdicts=tuple(verdicts), runs=tuple(runs))


def _score_run(
    run: MeasuredRun, tracer: Tracer, coefficients: Coefficients, *, table_has_core: bool
) -> tuple[list[Answer], list[Verdict]]:
    workload = rebuild(run)
    gpu = card_of(run)
    if isinstance(workload, Unanswerable):
        return unanswered(run, workload.reason, table_has_core=table_has_core), []
    if gpu is None:
        return unanswered(run, "GPU not known", table_has_core=table_has_core), []
    steps = STEPS_FOR_MEMORY if run.memory or run.out_of_memory else STEPS_FOR_TIME
    traced = Traced(workload, sm_class(gpu.sm, workload), steps)
    trace = tracer.trace(traced)
    if isinstance(trace, Unanswerable):
        return unanswered(run, trace.reason, table_has_core=table_has_core), []
    trace = as_run(trace, run, workload)
    answers: list[Answer] = []
    time = _time_answer(run, workload, trace, gpu, coefficients, table_has_core=table_has_core)
    answers += [time] if time else []
    memory, prediction = _memory_answer(run, workload, trace, gpu, table_has_core=table_has_core)
    answers += [memory] if memory else []
    verdict = _verdict(run, trace, gpu, prediction)
    return answers, [verdict] if verdict else []


def blank_answer(run: MeasuredRun, kind: str, *, table_has_core: bool) -> Answer:
    """The answer of a run before anything is predicted; `kind` is "time" or "memory"."""
    is_time = kind == "time"
    return Answer(
        row_id=run.row_id,
        kind=kind,
        measure="step time" if is_time else memory_measure(run),
        gpu=run.gpu,
        source_repo=run.source,
        model=run.model,
        family=run.family,
        unit=run.throughput_unit if is_time else run.memory_unit,
        published=(run.throughput if is_time else run.memory) or 0.0,
        predicted=None,
        reason="",
        ratio=None,
        trusted=is_trusted(run, kind, table_has_core=table_has_core),
    )


def unanswered(run: MeasuredRun, reason: str, *, table_has_core: bool) -> list[Answer]:
    """The published values of a run that cannot be answered, with the reason."""
    kinds = [kind for kind, value in (("time", run.throughput), ("memory", run.memory)) if value]
    return [replace(blank_answer(run, kind, table_has_core=table_has_core), reason=reason) for kind in kinds]


def _time_answer(
    run: MeasuredRun,
    workload: Workload,
    trace: StepTrace,
    gpu: Gpu,
    coefficients: Coefficients,
    *,
    table_has_core: bool,
) -> Answer | None:
    if not run.throughput:
        return None
    blank = blank_answer(run, "time", table_has_core=table_has_core)
    published = step_time_s(run, workload)
    if published is None:
        return replace(blank, reason=f"unit {run.throughput_unit} does not give a step time")
    if run.seq_len.startswith("<="):
        return replace(blank, reason="sequence length varies")
    if not run.gpu:
        return replace(blank, reason="GPU not stated")
    try:
        predicted = predict_time(trace, recipe_of(run, workload, trace), gpu, coefficients=coefficients).step_time_s
    except ValueError as error:
        return replace(blank, reason=str(error))
    predicted *= math.exp(coefficients.scripts.get(script_of(run, workload), 0.0))
    return replace(
        blank,
        predicted=in_unit_of(run, published, predicted),
        ratio=predicted / published,
        naive_ratio=naive_step_time_s(trace, gpu, workload.accumulation) / published,
    )


def _memory_answer(
    run: MeasuredRun, workload: Workload, trace: StepTrace, gpu: Gpu, *, table_has_core: bool
) -> tuple[Answer | None, MemoryPrediction]:
    prediction = predict_memory(trace, recipe_of(run, workload, trace), gpu, memory_calibration(run))
    published = memory_bytes(run)
    if not published:
        return None, prediction
    measure = memory_measure(run)
    predicted = {
        "allocated": prediction.peak_allocated,
        "reserved": prediction.peak_reserved,
        "device": prediction.peak_device,
    }[measure]
    answer = replace(
        blank_answer(run, "memory", table_has_core=table_has_core),
        predicted=predicted / BYTES_PER_UNIT[run.memory_unit],
        ratio=predicted / published,
        naive_ratio=parameters_times_16(trace) / published,
    )
    return answer, prediction


def _verdict(run: MeasuredRun, trace: StepTrace, gpu: Gpu, memory: MemoryPrediction) -> Verdict | None:
    """Runs happened, so they fit; unless the table says that they did not."""
    if run.out_of_memory == "suspected" or run.suspect or not run.gpu:
        return None
    capacity = int(gpu.usable_memory_gib * (1 << 30))
    outside = memory.base + memory.communication
    fits = memory.peak_device <= capacity or _fits_after_release(trace, gpu, capacity - outside)
    need = memory.peak_allocated + outside if fits and memory.peak_device > capacity else memory.peak_device
    return Verdict(
        row_id=run.row_id,
        gpu=run.gpu,
        source_repo=run.source,
        model=run.model,
        happened=run.out_of_memory != "y",
        predicted=fits,
        margin=abs(need - capacity) / capacity,
    )


def _fits_after_release(trace: StepTrace, gpu: Gpu, capacity: int) -> bool:
    """Whether the allocator finds room once it has given its cached segments back."""
    try:
        allocator_usage(trace, gpu.sm, capacity=capacity)
    except OutOfMemory:
        return False
    return True


# --- figures ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Absolute relative errors of some answers, as shares.

    The macro figures are means over (GPU, source) groups of the group's own median and 90th percentile, so that no
    source dominates; the plain ones are over rows.
    """

    name: str
    values: int
    answered: int
    groups: int
    macro_median: float | None
    macro_p90: float | None
    median: float | None
    p90: float | None
    worst: float | None
    bias: float | None  # median of predicted / published, minus 1


def figures(name: str, answers: Sequence[Answer]) -> Figures:
    """Figures of the answers that there are."""
    known = [(a, a.error, a.ratio) for a in answers if a.error is not None and a.ratio is not None]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for answer, error, _ in known:
        groups[answer.gpu, answer.source_repo].append(error)
    errors = sorted(error for _, error, _ in known)
    if not errors:
        return Figures(
            name=name, values=len(answers), answered=0, groups=0, macro_median=None, macro_p90=None, median=None,
            p90=None, worst=None, bias=None,
        )  # fmt: skip
    return Figures(
        name=name,
        values=len(answers),
        answered=len(errors),
        groups=len(groups),
        macro_median=_mean([quantile(sorted(g), 0.5) for g in groups.values()]),
        macro_p90=_mean([quantile(sorted(g), 0.9) for g in groups.values()]),
        median=quantile(errors, 0.5),
        p90=quantile(errors, 0.9),
        worst=errors[-1],
        bias=quantile(sorted(ratio for _, _, ratio in known), 0.5) - 1,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values, linear between neighbours."""
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def by(answers: Iterable[Answer], key: Callable[[Answer], str]) -> tuple[Figures, ...]:
    """Figures per value of a key, the most values first."""
    parts: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        parts[key(answer)].append(answer)
    return tuple(sorted((figures(name, part) for name, part in parts.items()), key=lambda f: (-f.answered, f.name)))


def reasons(answers: Iterable[Answer]) -> tuple[tuple[str, int], ...]:
    """Why values have no answer, with how many, the most frequent first."""
    found = Counter(answer.reason for answer in answers if answer.predicted is None)
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of GPUs that ran the same thing at clearly different speed, and how many were ordered right."""

    total: int
    right: int

    @property
    def share(self) -> float | None:
        return self.right / self.total if self.total else None


def ordered_pairs(runs: Sequence[MeasuredRun], answers: Iterable[Answer]) -> Pairs:
    """Pairs of the same source, model, task, precision and software on two GPUs, compared in time per sample."""
    of_row = {a.row_id: a for a in answers if a.kind == "time" and a.ratio is not None and a.trusted}
    alike: dict[tuple[object, ...], list[tuple[str, float, float]]] = defaultdict(list)
    for run in runs:
        answer = of_row.get(run.row_id)
        workload = rebuild(run)
        if answer is None or answer.ratio is None or isinstance(workload, Unanswerable) or run.num_gpus > 1:
            continue
        seconds = step_time_s(run, workload)
        if seconds is None:
            continue
        measured = seconds / (workload.batch * workload.accumulation)
        key = (run.source, run.model, run.task, run.precision, run.seq_len, run.channels_last, run.notes[:12])
        alike[key].append((run.gpu, measured, measured * answer.ratio))
    total = right = 0
    for rows in alike.values():
        for (gpu_a, a, predicted_a), (gpu_b, b, predicted_b) in combinations(rows, 2):
            if gpu_a != gpu_b and max(a, b) / min(a, b) > 1 + PAIR_MARGIN:
                total += 1
                right += (a < b) == (predicted_a < predicted_b)
    return Pairs(total, right)
