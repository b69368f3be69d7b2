"""Device memory of one rank: the allocator's history, then what lies outside the allocator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpurig.model.prediction import MemoryPrediction
from gpurig.model.trace import OpClass, Phase, StepTrace, StorageKind
from gpurig.predict.allocator import AllocatorSettings, OutOfMemory, Usage, replay

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu
    from gpurig.model.recipe import Recipe
    from gpurig.predict.base_memory import BaseMemory, MemoryCalibration

_CUBLAS_WORKSPACE = 8_519_680  # ATen/cuda/CUDABlas: 4096·1024·2 + 16·1024·8 bytes a handle and stream
_CUBLAS_WORKSPACE_HOPPER = 32 << 20
_DDP_FIRST_BUCKET, _DDP_BUCKET = 1 << 20, 25 << 20
_NCCL_BUFFERS = 110 << 20  # rings and channels of one communicator on 8 GPUs; 60-200 MiB by topology
_TIMELINE_KINDS = tuple(StorageKind)


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes in use after one event of the steady step."""

    position: int  # index of the call in the trace, -1 before the first
    by_kind: tuple[int, ...]  # in the order of StorageKind

    @property
    def total(self) -> int:
        return sum(self.by_kind)


@dataclass(frozen=True, slots=True)
class Contributor:
    """Storages of one kind from one line of the user's code, alive at the peak."""

    num_bytes: int
    count: int
    kind: StorageKind
    site: int  # index into StepTrace.sites, -1: not known


def workspaces(trace: StepTrace, gpu_sm: int | None) -> tuple[int, ...]:
    """Blocks that libraries hold throughout: one cuBLAS workspace if any matrix product runs."""
    matrix = any(op.op_class in (OpClass.GEMM, OpClass.ATTENTION) for op in trace.ops)
    if not matrix:
        return ()
    return (_CUBLAS_WORKSPACE_HOPPER if (gpu_sm or 0) >= 90 else _CUBLAS_WORKSPACE,)


def allocator_usage(
    trace: StepTrace, gpu_sm: int | None, *, settings: AllocatorSettings | None = None, capacity: int | None = None
) -> Usage:
    """Replay of the traced history.

    Raises:
        OutOfMemory: it does not fit into `capacity` even after cached segments are released.
    """
    sizes = [s.num_bytes for s in trace.storages]
    return replay(sizes, trace.events, settings=settings, capacity=capacity, resident=workspaces(trace, gpu_sm))


def predict_memory(
    trace: StepTrace,
    recipe: Recipe,
    gpu: Gpu,
    calibration: MemoryCalibration,
    *,
    settings: AllocatorSettings | None = None,
    usage: Usage | None = None,
) -> MemoryPrediction:
    """Peak memory of one rank during one step.

    Args:
        trace: The step at the recipe's micro-batch and precision.
        recipe: Tells whether gradients are exchanged.
        gpu: The device.
        calibration: Base memory by GPU and software, workspaces, and the error band.
        settings: Allocator settings of the run.
        usage: The replay of `allocator_usage`, if the caller has it.
    """
    usage = usage or allocator_usage(trace, gpu.sm, settings=settings)
    at_peak: Counter[StorageKind] = Counter()
    for storage in usage.live_at_peak:
        at_peak[trace.storages[storage].kind] += _rounded(trace.storages[storage].num_bytes)
    fixed = sum(workspaces(trace, gpu.sm))
    base = calibration.base(gpu, trace)
    conv = calibration.convolution_workspace(trace)
    return MemoryPrediction(
        parameters=at_peak[StorageKind.PARAMETER],
        gradients=at_peak[StorageKind.GRADIENT],
        optimizer=at_peak[StorageKind.OPTIMIZER],
        activations=at_peak[StorageKind.ACTIVATION],
        temporaries=at_peak[StorageKind.TEMPORARY],
        inputs=at_peak[StorageKind.INPUT],
        workspace=usage.peak_allocated - sum(at_peak.values()),
        peak_allocated=usage.peak_allocated,
        peak_reserved=usage.peak_reserved + conv,
        base=base.num_bytes,
        communication=communication_bytes(trace, recipe),
        band=calibration.band(gpu, trace),
        base_reason=_reason(base, fixed),
    )


def _reason(base: BaseMemory, fixed: int) -> str:
    return f"{base.reason}; library workspace inside the allocator {fixed / (1 << 20):.0f} MiB"


def _rounded(num_bytes: int) -> int:
    return max(512, -(-num_bytes // 512) * 512)


def communication_bytes(trace: StepTrace, recipe: Recipe) -> int:
    """Gradient buckets of DDP and NCCL's buffers; 0 on one GPU.

    DDP copies gradients into buckets (unless gradient_as_bucket_view): one more copy of the trainable gradients.
    Source: torch.nn.parallel.DistributedDataParallel; NCCL's buffers are an estimate.
    """
    if recipe.num_gpus == 1:
        return 0
    return sum(trace.gradient_bytes) + _NCCL_BUFFERS


def fits(
    trace: StepTrace, memory: MemoryPrediction, gpu: Gpu, settings: AllocatorSettings | None = None
) -> bool | None:
    """Whether the step runs on the device; None inside the error band of the limit.

    Near the limit the allocator gives cached segments back before it fails, so more fits than the reserved peak says.
    """
    usable = int(gpu.usable_memory_gib * (1 << 30))
    outside = memory.base + memory.communication
    if memory.peak_reserved + outside <= usable and memory.peak_device * memory.band.high <= usable:
        return True
    try:
        allocator_usage(trace, gpu.sm, settings=settings, capacity=usable - outside)
    except OutOfMemory:
        return None if memory.peak_device * memory.band.low <= usable else False
    return None if memory.peak_device * memory.band.high > usable else True


def timeline(trace: StepTrace) -> tuple[Moment, ...]:
    """Bytes in use by kind over the steady step, one moment an event."""
    now = [0] * len(_TIMELINE_KINDS)
    index = {kind: i for i, kind in enumerate(_TIMELINE_KINDS)}
    moments: list[Moment] = []
    for number, (sign, storage, position) in enumerate(trace.events):
        held = trace.storages[storage]
        now[index[held.kind]] += sign * _rounded(held.num_bytes)
        if number >= trace.steady_from:
            moments.append(Moment(position, tuple(now)))
    return tuple(moments)


def contributors(trace: StepTrace, usage: Usage, limit: int = 12) -> tuple[Contributor, ...]:
    """What holds the memory at the peak, by line of code, largest first."""
    totals: dict[tuple[StorageKind, int], list[int]] = {}
    for index in usage.live_at_peak:
        storage = trace.storages[index]
        entry = totals.setdefault((storage.kind, storage.site), [0, 0])
        entry[0] += _rounded(storage.num_bytes)
        entry[1] += 1
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])
    return tuple(Contributor(size, count, kind, site) for (kind, site), (size, count) in ranked[:limit])


def activation_bytes(trace: StepTrace) -> int:
    """Bytes of activations alive at the end of forward: what checkpointing or a smaller batch would save."""
    return max((m.by_kind[_TIMELINE_KINDS.index(StorageKind.ACTIVATION)] for m in timeline(trace)), default=0)


def phase_of_peak(trace: StepTrace, usage: Usage) -> Phase | None:
    """The phase in which the allocated peak falls, if it is in the steady step."""
    if usage.peak_event < 0 or trace.events[usage.peak_event][2] < 0:
        return None
    return trace.calls[trace.events[usage.peak_event][2]].phase
