"""Memory constants from a table of measured runs: base memory of each software stack, and the spread of what is left."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpurig.accuracy.answer import as_run, is_trusted, memory_bytes, memory_measure
from gpurig.accuracy.calibrate import weighted_quantiles
from gpurig.accuracy.cards import card_of
from gpurig.accuracy.stacks import Stack
from gpurig.accuracy.traces import Traced, Tracer, sm_class
from gpurig.accuracy.workload import Unanswerable, framework_age, rebuild
from gpurig.model.trace import OpClass
from gpurig.predict.base_memory import MIB, BaseConstant, MemoryCalibration, Spread
from gpurig.predict.memory import allocator_usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpurig.accuracy.table import MeasuredRun

MIN_CONVOLUTION_NETS = 3  # readings from which what cuDNN adds is fitted
FEW_CONVOLUTION_NETS_MIB = 150.0  # else what it adds on an A100


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A published memory value and what the allocator's replay says, in bytes."""

    run: MeasuredRun
    measure: str
    published: float
    allocated: int
    reserved: int
    convolutions: bool

    @property
    def outside_mib(self) -> float:
        """What lies above the allocator, MiB."""
        return (self.published - self.reserved) / MIB


@dataclass(frozen=True, slots=True)
class StackKey:
    """A source whose readings share one software stack, from one version of PyTorch on."""

    source: str
    architecture: str
    torch_from: tuple[int, int]


def readings(runs: Iterable[MeasuredRun], tracer: Tracer, *, kept_only: bool = False) -> tuple[Reading, ...]:
    """Trusted memory values of runs that can be rebuilt, in the order of their ids."""
    found = []
    for run in sorted(runs, key=lambda r: r.row_id):
        published = memory_bytes(run)
        workload, gpu = rebuild(run), card_of(run)
        if not published or gpu is None or isinstance(workload, Unanswerable):
            continue
        if not is_trusted(run, "memory", table_has_core=True):
            continue
        traced = Traced(workload, sm_class(gpu.sm, workload))
        trace = tracer.kept(traced) if kept_only else tracer.trace(traced)
        if trace is None or isinstance(trace, Unanswerable):
            continue
        usage = allocator_usage(as_run(trace, run, workload), gpu.sm)
        found.append(
            Reading(
                run=run,
                measure=memory_measure(run),
                published=published,
                allocated=usage.peak_allocated,
                reserved=usage.peak_reserved,
                convolutions=any(op.op_class is OpClass.CONV for op in trace.ops),
            )
        )
    return tuple(found)


def fit_stack(key: StackKey, seen: Sequence[Reading]) -> Stack:
    """The base memory that leaves the smallest relative errors over the readings of one stack.

    Raises:
        ValueError: no readings.
    """
    if not seen:
        raise ValueError(f"no device readings of {key.source} from torch {key.torch_from} on")
    plain = [r for r in seen if not r.convolutions]
    nets = [r for r in seen if r.convolutions]
    context = _weighted(plain or seen, [r.outside_mib for r in plain or seen], 0.5)
    convolution = 0.0
    if plain and nets:
        convolution = max(0.0, _weighted(nets, [r.outside_mib for r in nets], 0.5) - context)
        if len(nets) < MIN_CONVOLUTION_NETS:
            convolution = FEW_CONVOLUTION_NETS_MIB
    left = [abs(r.outside_mib - context - convolution * r.convolutions) for r in seen]
    return Stack(
        source=key.source,
        constant=BaseConstant(
            architecture=key.architecture,
            torch_from=key.torch_from,
            context_mib=round(context, 0),
            convolution_mib=round(convolution, 0),
            spread_mib=round(_weighted(seen, left, 0.9), 0),
            rows=len(seen),
            source=key.source,
        ),
    )


def _weighted(seen: Sequence[Reading], values: Sequence[float], share: float) -> float:
    """Quantile weighted by 1 / published: of offsets, the median has the least sum of relative errors."""
    weights = np.array([1 / r.published for r in seen])
    return weighted_quantiles(np.array(values), weights, (share,))[0]


def fit_stacks(seen: Sequence[Reading], keys: Sequence[StackKey]) -> tuple[Stack, ...]:
    """Every stack of `keys`; a reading belongs to the newest stack of its source that is not newer than it."""
    members: dict[StackKey, list[Reading]] = defaultdict(list)
    for reading in seen:
        key = stack_of(reading.run, keys)
        if reading.measure == "device" and key is not None:
            members[key].append(reading)
    return tuple(fit_stack(key, members[key]) for key in keys)


def stack_of(run: MeasuredRun, keys: Sequence[StackKey]) -> StackKey | None:
    """The stack that a run belongs to, if it is one of `keys`."""
    known = [k for k in keys if k.source == run.source and k.torch_from <= framework_age(run)]
    return max(known, key=lambda k: k.torch_from) if known else None


def spreads(seen: Sequence[Reading], stacks: Sequence[Stack]) -> tuple[Spread, Spread]:
    """Published over predicted, 5 to 95 %, each (GPU, source) group weighing alike: allocated, then reserved.

    Few sources publish reserved memory; device readings less the base of their stack stand in for it.
    """
    allocated: list[tuple[Reading, float]] = []
    reserved: list[tuple[Reading, float]] = []
    for reading in seen:
        if reading.measure == "allocated":
            allocated.append((reading, reading.published / reading.allocated))
        elif reading.measure == "reserved":
            reserved.append((reading, reading.published / reading.reserved))
        else:
            base = _base(reading, stacks)
            if base is not None:
                reserved.append((reading, (reading.published - base) / reading.reserved))
    return _spread(allocated), _spread(reserved)


def _base(reading: Reading, stacks: Sequence[Stack]) -> float | None:
    age = framework_age(reading.run)
    known = [s.constant for s in stacks if s.source == reading.run.source and s.constant.torch_from <= age]
    if not known:
        return None
    constant = max(known, key=lambda c: c.torch_from)
    return (constant.context_mib + constant.convolution_mib * reading.convolutions) * MIB


def _spread(ratios: Sequence[tuple[Reading, float]]) -> Spread:
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for reading, _ in ratios:
        sizes[reading.run.gpu, reading.run.source] += 1
    weights = np.array([1 / sizes[r.run.gpu, r.run.source] for r, _ in ratios])
    low, high = weighted_quantiles(np.array([ratio for _, ratio in ratios]), weights, (0.05, 0.95))
    return Spread(low=round(min(low, 1.0), 3), high=round(max(high, 1.0), 3), rows=len(ratios))


def calibration_to_json(calibration: MemoryCalibration) -> str:
    """Text of data/calibration/memory.json."""
    values = {name: value for name, value in asdict(calibration).items() if name != "stack"}
    return json.dumps(values, indent=1) + "\n"


def stacks_to_json(stacks: Sequence[Stack]) -> str:
    """Text of data/calibration/stacks.json."""
    values = {"source": "scripts/fit/memory.py", "stacks": [asdict(stack) for stack in stacks]}
    return json.dumps(values, indent=1) + "\n"
