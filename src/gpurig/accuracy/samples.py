"""Measured runs with their traces, as samples of the fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpurig.accuracy.answer import as_run, step_time_s
from gpurig.accuracy.build import traced_accumulation
from gpurig.model.trace import Op, OpClass, Phase, StepTrace
from gpurig.predict.facts import with_assumed_facts
from gpurig.predict.features import era_of, op_features, split_gradients
from gpurig.predict.fit import Sample
from gpurig.predict.predict import host_class

if TYPE_CHECKING:
    from gpurig.accuracy.table import MeasuredRun
    from gpurig.accuracy.workload import Workload
    from gpurig.model.gpu import Gpu
    from gpurig.predict.tiles import Floats


@dataclass(frozen=True, slots=True)
class CallTable:
    """What a fit needs of a trace: distinct operators and how often each is called in which phase. Small."""

    ops: tuple[Op, ...]
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    optimizer: tuple[int, ...]

    @classmethod
    def of(cls, trace: StepTrace) -> CallTable:
        counts: dict[Phase, Counter[int]] = {phase: Counter() for phase in Phase}
        for call in trace.calls:
            counts[call.phase][call.op] += 1
        counts[Phase.FORWARD] += counts[Phase.SETUP]
        columns = (
            tuple(counts[phase][i] for i in range(len(trace.ops)))
            for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
        )
        return cls(trace.ops, *columns)


def group_of(run: MeasuredRun) -> str:
    """The (GPU, source) group of a run: groups, not rows, weigh alike in averages."""
    return f"{run.gpu or 'not stated'} | {run.source or 'not stated'}"


def script_of(run: MeasuredRun, workload: Workload) -> str:
    """The benchmark script of a run: its source and what it trains for."""
    return f"{run.source}: {workload.task}"


def sample_of(run: MeasuredRun, workload: Workload, trace: StepTrace, gpu: Gpu) -> Sample | None:
    """The sample of a measured run on one GPU; None where it says nothing about step time."""
    measured = step_time_s(run, workload)
    if measured is None or run.num_gpus > 1:
        return None
    known_gpu, _ = with_assumed_facts(gpu)
    seen = as_run(trace, run, workload)
    table = CallTable.of(seen)
    parts, owners = split_gradients(table.ops)
    repeats = workload.accumulation / traced_accumulation(workload)
    phases = np.array([table.forward, table.backward, table.optimizer], dtype=float)
    phases[:2] *= repeats
    counts: Floats = phases.sum(axis=0)
    return Sample(
        gpu=known_gpu,
        features=op_features(parts, known_gpu, era=era_of(seen.torch_version)),
        counts=counts[np.array(owners)],
        host_counts=_host_counts(table.ops, phases),
        step_time_s=measured,
        group=group_of(run),
        era=era_of(seen.torch_version),
        script=script_of(run, workload),
    )


def _host_counts(ops: tuple[Op, ...], phases: Floats) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for phase, counts in zip((Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER), phases, strict=True):
        for op, count in zip(ops, counts, strict=True):
            if count and op.op_class is not OpClass.TRANSFER:
                found[host_class(op, phase)] += float(count)
    return dict(found)
