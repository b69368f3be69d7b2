"""From a traced run to predicted values in the units in which the run was published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpurig.accuracy.build import traced_accumulation
from gpurig.accuracy.table import BYTES_PER_UNIT, MeasuredRun
from gpurig.accuracy.workload import Workload, framework_age
from gpurig.model.recipe import Recipe

if TYPE_CHECKING:
    from gpurig.model.trace import StepTrace

IMAGENET_IMAGES = 1_281_167
RATE_UNITS = ("images/s", "sequences/s", "samples/s", "records/s")
_SPECIAL_RATES = ("mel-frames/s", "audio-samples/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One published value of a run and what was predicted for it, in the table's own unit.

    Attributes:
        kind: "time" or "memory".
        measure: "step time", or which memory: "allocated", "reserved", "device".
        predicted: None where there is no answer; `reason` says why.
        time_ratio: Predicted over published step time, whatever the unit; the same for memory.
        trusted: Whether the source's value counts: not suspect, not bounded by the card, and core where the table says.
    """

    row_id: str
    kind: str
    measure: str
    gpu: str
    source_repo: str
    model: str
    family: str
    unit: str
    published: float
    predicted: float | None
    reason: str
    ratio: float | None
    trusted: bool
    naive_ratio: float | None = None  # the same of a simpler method (`baselines`)

    @property
    def error(self) -> float | None:
        """Absolute relative error of the time or of the memory."""
        return None if self.ratio is None else abs(self.ratio - 1)


def step_time_s(run: MeasuredRun, workload: Workload) -> float | None:
    """The published step time: one optimizer step on all GPUs. None: the unit does not say."""
    if not run.throughput:
        return None
    samples = workload.batch * workload.accumulation * run.num_gpus
    unit, value = run.throughput_unit, run.throughput
    if unit in RATE_UNITS:
        return samples / value
    if unit.startswith("tokens/s"):
        if workload.seq_len is None:
            return None
        gpus = run.num_gpus if unit.endswith("per GPU") else 1
        return samples * workload.seq_len / (value * gpus)
    if unit in ("s/iter", "ms/iter"):
        return value * workload.accumulation * (1e-3 if unit == "ms/iter" else 1.0)
    if unit == "steps/s":
        return 1 / value
    if unit == "s for 1024 samples":
        return value * samples / 1024
    if unit.startswith("hours per 100"):
        return value * 3600 * samples / (100 * IMAGENET_IMAGES)
    return None


def in_unit_of(run: MeasuredRun, published_s: float, predicted_s: float) -> float:
    """A predicted step time as the published unit has it: a rate falls where a time rises."""
    value = run.throughput or 0.0
    is_rate = run.throughput_unit in (*RATE_UNITS, "steps/s") or run.throughput_unit.startswith("tokens/s")
    return value * (published_s / predicted_s if is_rate else predicted_s / published_s)


def memory_measure(run: MeasuredRun) -> str:
    """Which memory a row's words mean: "allocated", "reserved" or "device"."""
    words = run.memory_measure.lower()
    if "reserved" in words:
        return "reserved"
    if any(word in words for word in ("nvml", "nvidia-smi", "device", "per gpu")):
        return "device"
    return "allocated"


def memory_bytes(run: MeasuredRun) -> float | None:
    return None if run.memory is None else run.memory * BYTES_PER_UNIT[run.memory_unit]


def recipe_of(run: MeasuredRun, workload: Workload, trace: StepTrace) -> Recipe:
    """The recipe of a run: as traced, with all accumulation steps and GPUs. More than 8 GPUs are nodes of 8."""
    nodes = run.num_gpus // 8 if run.num_gpus > 8 and run.num_gpus % 8 == 0 else 1
    precision = trace.precision
    if precision == "fp32" and workload.tf32 == "on":
        precision = "tf32"
    return Recipe(
        precision=precision,
        micro_batch=workload.batch,
        accumulation=workload.accumulation,
        num_gpus=run.num_gpus,
        num_nodes=nodes,
        checkpointing=workload.checkpointing,
        channels_last=workload.channels_last,
    )


def as_run(trace: StepTrace, run: MeasuredRun, workload: Workload) -> StepTrace:
    """The trace with what the run's software decides: its torch version, and whether fp32 may run as TF32."""
    major, minor = framework_age(run)
    ops = trace.ops
    if workload.tf32 == "off":
        ops = tuple(replace(op, tf32=False) if op.tf32 else op for op in ops)
    elif workload.tf32 == "on":
        ops = tuple(replace(op, tf32=True) if op.dtype == "fp32" and not op.tf32 else op for op in ops)
    return replace(trace, torch_version=f"{major}.{minor}", ops=ops, accumulation=traced_accumulation(workload))


def is_trusted(run: MeasuredRun, kind: str, *, table_has_core: bool) -> bool:
    """Whether a value counts in the headline figures."""
    if run.suspect or (kind == "memory" and run.near_capacity):
        return False
    if not table_has_core:
        return True
    wanted = {"time": ("throughput", "both"), "memory": ("memory", "both")}[kind]
    return run.core and run.core_kind in wanted
