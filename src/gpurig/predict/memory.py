"""Device memory of one rank: the allocator's history, then what lies outside the allocator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpurig.model.prediction import MemoryPrediction
from gpurig.model.trace import OpClass, Phase, StepTrace, Storage, StorageKind
from gpurig.predict.allocator import AllocatorSettings, OutOfMemory, Usage, replay
from gpurig.predict.base_memory import torch_version

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu
    from gpurig.model.recipe import Recipe
    from gpurig.predict.base_memory import BaseMemory, MemoryCalibration

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu
    from gpurig.model.recipe import Recipe

_CUBLAS_WORKSPACE = 8_519_680  # ATen/cuda/CUDABlas: 4096·1024·2 + 16·1024·8 bytes a handle and stream
_CUBLAS_WORKSPACE_HOPPER = 32 << 20
FIRST_SM_WITH_TF32 = 80
CONV_WORKSPACE_SHARE = 0.5
CONV_WORKSPACE_SHARE_BENCHMARK = 2.0
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
    """Blocks that cuBLAS holds throughout: one for the thread of the script, one for autograd's, if they multiply matrices.

    PyTorch allocates them from 1.13 on, for each pair of handle and stream; before, cuBLAS did so by itself.
    A card that is not NVIDIA's (`gpu_sm` None) has none.
    Source: ATen/cuda/CublasHandlePool.cpp, github.com/pytorch/pytorch/pull/83461.
    """
    if gpu_sm is None or torch_version(trace.torch_version) < (1, 13):
        return ()
    size = _CUBLAS_WORKSPACE_HOPPER if gpu_sm == 90 else _CUBLAS_WORKSPACE
    backward = {c.phase is Phase.BACKWARD for c in trace.calls if trace.ops[c.op].op_class is OpClass.GEMM}
    return (size,) * len(backward)


def convolution_workspaces(trace: StepTrace, gpu_sm: int | None) -> dict[int, int]:
    """Bytes that cuDNN takes during each convolution of the steady step, by index of the call.

    Tensor cores want channels last; a convolution in the default layout works on a copy of what it reads or writes:
    half of its operands. Where the script lets cuDNN try all algorithms, the quickest may take several times as much,
    in either layout.
    What single algorithms take is not published: some nets need gigabytes more at one batch size than at the next.
    Source: fitted to device-level readings of nets in fp32 with TF32, and of three nets with cudnn.benchmark
    (scripts/fit/memory.py).
    """
    share = CONV_WORKSPACE_SHARE_BENCHMARK if trace.cudnn_benchmark else CONV_WORKSPACE_SHARE
    if (gpu_sm or 0) < FIRST_SM_WITH_TF32:
        return {}
    found: dict[int, int] = {}
    for position, call in enumerate(trace.calls):
        op = trace.ops[call.op]
        copied = trace.cudnn_benchmark or not op.channels_last
        if op.op_class is OpClass.CONV and copied and (op.tf32 or op.dtype in ("fp16", "bf16")):
            found[position] = int(share * (op.read_bytes + op.write_bytes))
    return found


def replay_key(trace: StepTrace, gpu_sm: int | None) -> tuple[int, ...]:
    """Equal for classes of GPU on which the replay of `trace` comes to the same: what libraries take is the same."""
    return (*workspaces(trace, gpu_sm), sum(convolution_workspaces(trace, gpu_sm).values()))


def _with_workspaces(
    sizes: list[int], events: tuple[tuple[int, int, int], ...], wanted: dict[int, int]
) -> list[tuple[int, int, int]]:
    """`events` with each workspace taken and given back once its call has a result; `sizes` grows by their sizes."""
    if not wanted:
        return list(events)
    pending = dict(wanted)
    out: list[tuple[int, int, int]] = []
    for number, (sign, storage, position) in enumerate(events):
        out.append((sign, storage, position))
        more = number + 1 < len(events) and events[number + 1][0] > 0 and events[number + 1][2] == position
        size = pending.pop(position, 0) if sign > 0 and not more else 0
        if size:
            out += [(1, len(sizes), position), (-1, len(sizes), position)]
            sizes.append(size)
    return out


def allocator_usage(
    trace: StepTrace, gpu_sm: int | None, *, settings: AllocatorSettings | None = None, capacity: int | None = None
) -> Usage:
    """Replay of the traced history, with the workspaces that cuBLAS and cuDNN take.

    Raises:
        OutOfMemory: it does not fit into `capacity` even after cached segments are released.
    """
    sizes = [s.num_bytes for s in trace.storages]
    events = _with_workspaces(sizes, trace.events, convolution_workspaces(trace, gpu_sm))
    return replay(sizes, events, settings=settings, capacity=capacity, resident=workspaces(trace, gpu_sm))


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
    for storage in _of_trace(trace, usage):
        at_peak[storage.kind] += _rounded(storage.num_bytes)
    fixed = sum(workspaces(trace, gpu.sm))
    base = calibration.base(gpu, trace)
    return MemoryPrediction(
        parameters=at_peak[StorageKind.PARAMETER],
        gradients=at_peak[StorageKind.GRADIENT],
        optimizer=at_peak[StorageKind.OPTIMIZER],
        activations=at_peak[StorageKind.ACTIVATION],
        temporaries=at_peak[StorageKind.TEMPORARY],
        inputs=at_peak[StorageKind.INPUT],
        workspace=usage.peak_allocated - sum(at_peak.values()),
        peak_allocated=usage.peak_allocated,
        peak_reserved=usage.peak_reserved,
        base=base.num_bytes,
        communication=communication_bytes(trace, recipe),
        band=calibration.device_band(gpu, trace, usage.peak_reserved),
        allocated_band=calibration.allocator_band(calibration.allocated),
        reserved_band=calibration.allocator_band(calibration.reserved),
        base_reason=_reason(base, fixed),
    )


def _of_trace(trace: StepTrace, usage: Usage) -> list[Storage]:
    """The program's own storages at the peak; library workspaces are not in the trace."""
    return [trace.storages[index] for index in usage.live_at_peak if index < len(trace.storages)]


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
    if memory.peak_allocated + outside > usable:  # too much even if nothing were cached
        return None if memory.peak_device * memory.band.low <= usable else False
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
    for storage in _of_trace(trace, usage):
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
    return None if usage.peak_position < 0 else trace.calls[usage.peak_position].phase
