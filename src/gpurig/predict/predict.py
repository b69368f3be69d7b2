"""Step time of a trace under a recipe on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpurig.model.gpu import Gpu
from gpurig.model.prediction import Band, ClassTime, Method, TimePrediction
from gpurig.model.recipe import Recipe
from gpurig.model.trace import Op, OpClass, Phase, StepTrace
from gpurig.predict.coefficients import Coefficients, Residuals, packaged_coefficients
from gpurig.predict.communication import Link, exposed_time_s, link_of
from gpurig.predict.facts import with_assumed_facts
from gpurig.predict.features import era_of
from gpurig.predict.pipeline import input_time_s, is_serial
from gpurig.predict.queue import Walk, walk
from gpurig.predict.roofline import OpCosts, op_costs
from gpurig.predict.tiles import Floats

# torch.compile fuses chains of memory-bound operators and issues them without Python: shares that remain, guessed from
# published eager and compiled timings of single operators
COMPILED_MEMORY_SHARE = 0.55
COMPILED_HOST_SHARE = 0.35
_FUSIBLE = (OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.NORM, OpClass.COPY)
_MATRIX = (OpClass.GEMM, OpClass.CONV, OpClass.ATTENTION)
_UNCALIBRATED = (OpClass.RNN, OpClass.SORT, OpClass.OTHER)
_DEFAULT_BAND = Residuals(low=0.6, median=1.0, high=1.7, rows=0)


def predict_time(
    trace: StepTrace,
    recipe: Recipe,
    gpu: Gpu,
    *,
    link: Link | None = None,
    vcpus: int | None = None,
    coefficients: Coefficients | None = None,
    era: str | None = None,
    waits_at_end: bool = False,
) -> TimePrediction:
    """Wall time of one optimizer step.

    Args:
        trace: One step at the recipe's micro-batch. Its precision must be the recipe's, or differ only as TF32 from
            fp32 or fp16 from bf16, where the operators are the same.
        recipe: GPUs, accumulation, precision.
        gpu: Card. Facts that its data sheet leaves open are assumed, and widen the band.
        link: What joins several GPUs; None: what the card's data sheet suggests.
        vcpus: Virtual cores of the instance, for the input pipeline.
        coefficients: A calibration other than the packaged one.
        era: Age of the kernel libraries (`features.ERAS`); None: that of the traced torch.
        waits_at_end: The loop waits for the device after every step, as timing loops do.

    Raises:
        ValueError: the trace has another precision than the recipe and has to be made again, or the card's facts are
            too few to say anything.
    """
    coefficients = coefficients or packaged_coefficients()
    known_gpu, assumed = with_assumed_facts(gpu)
    ops = at_precision(trace, recipe.precision)
    compiled = recipe.compiled or trace.compiled
    costs = _fused(
        ops, op_costs(ops, known_gpu, coefficients, era=era or era_of(trace.torch_version)), compiled=compiled
    )
    loop = _Loop(trace, ops, costs, coefficients, known_gpu, compiled=compiled, waits_at_end=waits_at_end)
    step = loop.step(recipe.accumulation / trace.accumulation)
    backward_s = loop.phase_s(Phase.BACKWARD) / trace.accumulation
    exposed_s = 0.0
    if recipe.num_gpus > 1:
        exposed_s = exposed_time_s(
            trace.gradient_bytes or (4 * trace.num_trainable,),
            backward_s,
            recipe.num_gpus,
            recipe.num_nodes,
            link or link_of(gpu),
            sharded=trace.data_parallel == "fsdp",
        )
    input_s = input_time_s(trace.input, vcpus=vcpus, gpus_per_node=recipe.gpus_per_node)
    if input_s is not None:
        input_s *= recipe.accumulation
    compute_s = step.step_time_s + exposed_s
    total_s = _with_input(compute_s, input_s, serial=is_serial(trace.input))
    flops = loop.flops(recipe.accumulation / trace.accumulation)
    return TimePrediction(
        step_time_s=total_s,
        forward_s=loop.phase_s(Phase.FORWARD) * recipe.accumulation / trace.accumulation,
        backward_s=loop.phase_s(Phase.BACKWARD) * recipe.accumulation / trace.accumulation,
        optimizer_s=loop.phase_s(Phase.OPTIMIZER),
        host_issue_s=step.host_s,
        device_busy_s=step.device_s,
        exposed_communication_s=exposed_s,
        input_s=input_s,
        bottleneck=_bottleneck(loop, step, exposed_s, input_s, total_s),
        by_class=loop.by_class(recipe.accumulation / trace.accumulation),
        mfu=_mfu(flops, total_s, recipe.precision, gpu),
        band=_band(loop, coefficients, gpu, recipe, assumed=assumed, compiled=compiled),
    )


def at_precision(trace: StepTrace, precision: str) -> tuple[Op, ...]:
    """The operators of a trace as they run in a precision, where tracing again would give the same ones.

    Raises:
        ValueError: another precision has other operators: casts, types, workspaces.
    """
    if precision == trace.precision:
        return trace.ops
    if {precision, trace.precision} == {"fp32", "tf32"}:
        return tuple(replace(op, tf32=True) if op.dtype == "fp32" and not op.tf32 else op for op in trace.ops)
    for this, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if precision.replace(this, other) == trace.precision:
            return tuple(replace(op, dtype=this) if op.dtype == other else op for op in trace.ops)
    raise ValueError(f"a trace in {trace.precision} does not show the operators of {precision}: trace again")


def _fused(ops: Sequence[Op], costs: OpCosts, *, compiled: bool) -> OpCosts:
    if not compiled:
        return costs
    share = np.array([COMPILED_MEMORY_SHARE if op.op_class in _FUSIBLE else 1.0 for op in ops])
    return OpCosts(costs.time_s * share, costs.compute_s, costs.memory_s * share)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Calls of a step as arrays, in issue order."""

    op: Floats
    host_s: Floats
    device_s: Floats
    syncs: Floats
    phases: tuple[Phase, ...]


class _Loop:
    """A step's calls with their times on host and device."""

    def __init__(
        self,
        trace: StepTrace,
        ops: tuple[Op, ...],
        costs: OpCosts,
        coefficients: Coefficients,
        gpu: Gpu,
        *,
        compiled: bool,
        waits_at_end: bool,
    ) -> None:
        self.trace = trace
        self.ops = ops
        self.costs = costs
        self._waits_at_end = waits_at_end
        self._index = np.array([call.op for call in trace.calls], dtype=int)
        self._phases = np.array([call.phase for call in trace.calls])
        self._device_s = costs.time_s[self._index]
        self._syncs = np.array([op.op_class is OpClass.SYNC for op in ops], dtype=bool)[self._index]
        factor = float(np.exp(coefficients.host_log_factor(gpu)))
        self._host_s = np.array([host_time_s(ops[c.op], c.phase, coefficients) for c in trace.calls]) * factor
        if compiled:
            self._host_s = self._host_s * np.where(self._phases == Phase.OPTIMIZER, 1.0, COMPILED_HOST_SHARE)

    def step(self, repeats: float) -> Walk:
        """The step with `repeats` times the traced forward and backward passes."""
        whole = self._walk(np.ones(len(self._index), dtype=bool))
        if repeats == 1:
            return whole
        part = self._walk(self._phases != Phase.OPTIMIZER)
        more = repeats - 1
        return Walk(
            whole.step_time_s + more * part.step_time_s,
            whole.host_s + more * part.host_s,
            whole.device_s + more * part.device_s,
        )

    def _walk(self, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Walk:
        return walk(self._host_s[chosen], self._device_s[chosen], self._syncs[chosen], waits_at_end=self._waits_at_end)

    def phase_s(self, phase: Phase) -> float:
        """The longer of host and device in one phase of the traced step."""
        chosen = self._phases == phase
        return float(max(self._host_s[chosen].sum(), self._device_s[chosen].sum()))

    def repeats_of(self, repeats: float) -> Floats:
        counts: Floats = np.zeros(len(self.ops))
        weights = np.where(self._phases == Phase.OPTIMIZER, 1.0, repeats)
        np.add.at(counts, self._index, weights)
        return counts

    def flops(self, repeats: float) -> float:
        return float(self.repeats_of(repeats) @ np.array([op.flops for op in self.ops], dtype=float))

    def by_class(self, repeats: float) -> tuple[ClassTime, ...]:
        """Device time per class of operator, the longest first."""
        counts = self.repeats_of(repeats)
        found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
        for op, count, seconds in zip(self.ops, counts, self.costs.time_s, strict=True):
            entry = found[op.op_class.value]
            for i, value in enumerate((seconds, op.flops, op.read_bytes + op.write_bytes, 1)):
                entry[i] += count * value
        rows = [
            ClassTime(op_class=name, time_s=t, flops=int(f), num_bytes=int(b), calls=round(n))
            for name, (t, f, b, n) in found.items()
            if t > 0
        ]
        return tuple(sorted(rows, key=lambda row: -row.time_s))

    def compute_share(self) -> float:
        """Share of device time in operators that arithmetic limits."""
        counts = self.repeats_of(1)
        limited = self.costs.compute_s > self.costs.memory_s
        total = float(counts @ self.costs.time_s)
        return float((counts * limited) @ self.costs.time_s) / total if total else 0.0

    def uncalibrated_share(self) -> float:
        """Share of device time in classes that no measurement stands behind."""
        counts = self.repeats_of(1)
        unknown = np.array([op.op_class in _UNCALIBRATED for op in self.ops])
        total = float(counts @ self.costs.time_s)
        return float((counts * unknown) @ self.costs.time_s) / total if total else 0.0


def host_time_s(op: Op, phase: Phase, coefficients: Coefficients) -> float:
    """Host time to issue one call."""
    return coefficients.host_s[host_class(op, phase)]


def host_class(op: Op, phase: Phase) -> str:
    """Which of `coefficients.HOST_CLASSES` a call is."""
    if op.op_class is OpClass.VIEW:
        return "view"
    if op.op_class is OpClass.SYNC:
        return "sync"
    return {Phase.BACKWARD: "backward", Phase.OPTIMIZER: "optimizer"}.get(phase, "forward")


def _with_input(compute_s: float, input_s: float | None, *, serial: bool) -> float:
    if input_s is None:
        return compute_s
    return compute_s + input_s if serial else max(compute_s, input_s)


def _bottleneck(loop: _Loop, step: Walk, exposed_s: float, input_s: float | None, total_s: float) -> str:
    if input_s is not None and input_s > 0.5 * total_s and input_s > step.step_time_s * 0.999:
        return "input"
    if exposed_s > 0.2 * total_s:
        return "communication"
    if step.host_s > step.device_s:
        return "launch"
    return "compute" if loop.compute_share() >= 0.5 else "memory bandwidth"


def _mfu(flops: float, total_s: float, precision: str, gpu: Gpu) -> float | None:
    """FLOPs of the step over those of the peak of its precision."""
    dtype = precision.removesuffix("-amp")
    peak = gpu.peak_tflops(dtype) or gpu.fp32_tflops
    return flops / (total_s * peak * 1e12) if peak and total_s > 0 else None


def _band(
    loop: _Loop, coefficients: Coefficients, gpu: Gpu, recipe: Recipe, *, assumed: tuple[str, ...], compiled: bool
) -> Band:
    gpu_known = gpu.gpu_id in coefficients.gpu_rates
    model_known = loop.uncalibrated_share() < 0.2 and not compiled and gpu.vendor == "NVIDIA"
    reasons = ["this GPU was calibrated" if gpu_known else "this GPU was not measured: its data sheet and relatives"]
    if not model_known:
        reasons.append(
            "the model's kinds of operator were not calibrated" if not compiled else "torch.compile is modelled"
        )
    if assumed:
        reasons.append(f"assumed: {', '.join(assumed)}")
    if recipe.num_gpus > 1:
        reasons.append("communication from published bandwidths")
    key = f"gpu:{'yes' if gpu_known else 'no'} model:{'yes' if model_known else 'no'}"
    residuals = coefficients.bands.get(key, _DEFAULT_BAND)
    wider = 1.15 if recipe.num_gpus > 1 or assumed else 1.0
    calibrated = gpu_known and model_known
    return Band(
        low=residuals.low / wider,
        high=residuals.high * wider,
        method=Method.CALIBRATED if calibrated else Method.DERIVED,
        reason="; ".join(reasons),
    )
