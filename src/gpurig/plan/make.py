"""From a script to a Plan: trace its variants, load the catalogue, rank. The one call behind ``gpurig plan``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpurig.catalog.gpus import load_gpus, parts_of_family
from gpurig.catalog.names import resolve
from gpurig.catalog.query import OfferFilter
from gpurig.catalog.search import find_offers
from gpurig.errors import NotTraceable, ScriptFailed
from gpurig.model.offer import Currency, Price
from gpurig.model.plan import BatchPolicy, Goal, Plan, SpotPolicy
from gpurig.model.trace import OpClass, StepTrace
from gpurig.plan.rank import rank
from gpurig.plan.recipes import ScriptBatch
from gpurig.plan.run_length import run_length
from gpurig.plan.workload import FamilyKey, StepFamily, TracedWorkload
from gpurig.predict import base_memory
from gpurig.predict.coefficients import packaged_coefficients, read_coefficients
from gpurig.trace.card import CardFacts
from gpurig.trace.script import ScriptRequest, ScriptTrace, trace_script

if TYPE_CHECKING:
    from pathlib import Path

    from gpurig.catalog.prices import Rate, Rates
    from gpurig.model.gpu import Gpu

_MODERN_SM = 80
_SLOW_TRACE_S = 45.0  # a script that takes so long to trace is not traced again for other batch sizes
_OLD_CARD = CardFacts(name="Tesla T4", memory_bytes=16 << 30, capability=(7, 5), sm_count=40)
Progress = Callable[[str], None]
Tracer = Callable[[ScriptRequest], ScriptTrace]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is to be planned, and under which wishes.

    Attributes:
        script: What to trace.
        label: What to call it; None: the script's name.
        names: GPU names; none: all.
        wanted: Further conditions on offers.
        epochs, steps, samples: Length of the run; at most one.
        precisions: Precisions to try besides the script's own.
        vary_batch: Trace a second batch size, so that other micro-batches are known.
        own_prices: The user's price file.
        calibration: Coefficients of the time model other than the packaged ones.
        rates: Conversion rates given by the user.
    """

    script: ScriptRequest
    label: str | None = None
    names: tuple[str, ...] = ()
    wanted: OfferFilter = field(default_factory=OfferFilter)
    epochs: float | None = None
    steps: float | None = None
    samples: float | None = None
    precisions: tuple[str, ...] = ()
    vary_batch: bool = True
    currency: Currency = Currency.USD
    budget: float | None = None
    deadline_h: float | None = None
    spot: SpotPolicy = SpotPolicy.ALLOW
    batch: BatchPolicy = BatchPolicy.KEEP
    max_gpus: int = 8
    max_nodes: int = 1
    own_prices: Path | None = None
    calibration: Path | None = None
    rates: tuple[Rate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with what it was made from."""

    plan: Plan
    workload: TracedWorkload
    traced: ScriptTrace
    gpus: Mapping[str, Gpu]
    rates: Rates
    notes: tuple[str, ...]

    @property
    def trace(self) -> StepTrace:
        """The script's own step."""
        return self.workload.reference


def make_plan(request: PlanRequest, *, progress: Progress = lambda _: None, tracer: Tracer = trace_script) -> Planned:
    """Trace a script and rank everything that can be rented for it.

    Args:
        request: What is to be planned.
        progress: Told what is being done, for a person who waits.
        tracer: Runs one trace; the script door unless a test says otherwise.

    Raises:
        ScriptNotFound, ScriptFailed, NotTraceable, MissingPackage: the script could not be traced.
        UnknownName, BadFile: a wish or a price file is wrong.
    """
    search = find_offers(
        request.names, replace(request.wanted, suspect=True), prices=request.own_prices, rates=request.rates
    )
    progress("tracing the script (it is executed, without a GPU)")
    traced = tracer(request.script)
    if request.label is None:
        traced = replace(traced, trace=replace(traced.trace, label=request.script.script))
    else:  # a model by name: its loader is made up, and says nothing about anybody's data
        traced = replace(traced, trace=replace(traced.trace, label=request.label, input=None))
    families, notes = _families(request, traced, progress, tracer)
    workload = workload_of(families, traced.trace, request.calibration)
    goal = Goal(
        run=run_length(
            traced.trace, request.script.argv, epochs=request.epochs, steps=request.steps, samples=request.samples
        ),
        currency=request.currency,
        budget=request.budget,
        deadline_h=request.deadline_h,
        spot=request.spot,
        batch=request.batch,
        max_gpus=request.max_gpus,
        max_nodes=request.max_nodes,
    )
    progress("ranking offers")
    gpus = load_gpus()
    offers = (*search.offers, *search.set_aside)

    def convert(price: Price) -> float:
        return search.rates.convert(price.amount_per_h, price.currency, request.currency)

    plan = rank(offers, gpus, parts_of_family, workload, goal, convert, filtered_out=search.num_searched - len(offers))
    return Planned(
        plan=plan, workload=workload, traced=traced, gpus=gpus, rates=search.rates, notes=(*traced.notes, *notes)
    )


def workload_of(
    families: Mapping[FamilyKey, StepFamily], trace: StepTrace, calibration: Path | None = None
) -> TracedWorkload:
    """The planner's view of traced steps, with the packaged calibration unless another is given.

    Raises:
        BadFile: `calibration` does not hold coefficients.
    """
    script = ScriptBatch(
        micro_batch=trace.micro_batch, accumulation=trace.accumulation, world_size=max(1, trace.world_size)
    )
    coefficients, memory = packaged_coefficients(), base_memory.load()
    if calibration is not None:
        coefficients = read_coefficients(calibration)
        memory = memory.with_measured(base_memory.measured_bases(calibration))
    return TracedWorkload(families, script, memory, coefficients)


def _families(
    request: PlanRequest, base: ScriptTrace, progress: Progress, tracer: Tracer
) -> tuple[dict[FamilyKey, StepFamily], list[str]]:
    """Trace what else the planner needs: other batch sizes, older GPUs' attention, other precisions."""
    notes: list[str] = []
    families: dict[FamilyKey, StepFamily] = {}
    families[FamilyKey(base.trace.precision, modern=True)] = _family(
        request, request.script, base, progress, tracer, notes
    )
    slow = base.wall_time_s > _SLOW_TRACE_S
    variants: list[tuple[str | None, bool]] = [(None, False)] if _depends_on_class(base.trace) and not slow else []
    variants += [(precision, True) for precision in request.precisions if precision != base.trace.precision]
    for precision, modern in variants:
        script = replace(request.script, precision=precision, card=request.script.card if modern else _OLD_CARD)
        progress(f"tracing it in {precision}" if precision else "tracing it as on GPUs without flash attention")
        try:
            other = tracer(script)
        except (ScriptFailed, NotTraceable) as error:
            notes.append(f"not traced {'in ' + precision if precision else 'for older GPUs'}: {error.message}")
            continue
        key = FamilyKey(other.trace.precision, modern=modern)
        if key not in families:
            families[key] = _family(request, script, other, progress, tracer, notes)
    return families, notes


def _family(
    request: PlanRequest, script: ScriptRequest, base: ScriptTrace, progress: Progress, tracer: Tracer, notes: list[str]
) -> StepFamily:
    """The trace, and a second one at half (or twice) the micro-batch if the script's loader can be told."""
    trace = base.trace
    if not (request.vary_batch and base.batch_knob and trace.micro_batch):
        return StepFamily(trace)
    if base.wall_time_s > _SLOW_TRACE_S:
        notes.append(f"other batch sizes are not known: one trace took {base.wall_time_s:.0f} s, so no second was made")
        return StepFamily(trace)
    scale = 0.5 if trace.micro_batch > 1 else 2.0
    progress(f"tracing it at {'half' if scale < 1 else 'twice'} the batch")
    try:
        other = tracer(replace(script, batch_scale=scale)).trace
    except (ScriptFailed, NotTraceable) as error:
        notes.append(f"other batch sizes are not known: {error.message}")
        return StepFamily(trace)
    if other.micro_batch is None or other.micro_batch == trace.micro_batch:
        return StepFamily(trace)
    low, high = sorted((trace, other), key=lambda t: t.micro_batch or 0)
    family = StepFamily(low, high)
    if not family.adjustable:
        notes.append("other batch sizes are not predicted: the script takes another path at them")
        return StepFamily(trace)
    return family


def _depends_on_class(trace: StepTrace) -> bool:
    """Whether older GPUs would run other attention kernels than the traced ones. None of them has bf16."""
    return (
        trace.sm >= _MODERN_SM
        and not trace.precision.startswith("bf16")
        and any(op.op_class is OpClass.ATTENTION and "flash" in op.name for op in trace.ops)
    )


def exact_parts(named: Sequence[tuple[str, int]], planned: Planned) -> tuple[tuple[str, int], ...]:
    """Named GPUs as exact parts; where a name means several parts, those that the plan has, else the first."""
    found: list[tuple[str, int]] = []
    for name, count in named:
        parts = [gpu.gpu_id for gpu in resolve(name, planned.gpus)]
        offered = [p for p in parts if any(c.gpu_id == p and c.recipe.num_gpus == count for c in planned.plan.choices)]
        found += [(part, count) for part in (offered or parts[:1])]
    return tuple(found)
