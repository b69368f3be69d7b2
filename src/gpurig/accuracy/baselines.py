"""What simpler methods would have said, to compare with: a roofline at the data sheet's peaks, parameters × 16 bytes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpurig.model.trace import OpClass, StorageKind
from gpurig.predict.facts import with_assumed_facts
from gpurig.predict.features import pipe_of

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu
    from gpurig.model.trace import Op, StepTrace

BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and two moments


def naive_step_time_s(trace: StepTrace, gpu: Gpu, accumulation: int) -> float:
    """Σ over operators of the longer of FLOPs / peak and bytes / bandwidth: no efficiency, no overhead, no overlap."""
    known, _ = with_assumed_facts(gpu)
    calls = Counter(call.op for call in trace.calls)
    step = sum(count * _naive_s(trace.ops[op], known) for op, count in calls.items())
    return step * accumulation / trace.accumulation


def _naive_s(op: Op, gpu: Gpu) -> float:
    if op.op_class is OpClass.VIEW:
        return 0.0
    pipe = pipe_of(op, gpu)
    peak = {"half": gpu.peak_tflops(op.dtype) or gpu.fp16_tflops, "tf32": gpu.tf32_tflops}.get(pipe) or gpu.fp32_tflops
    bandwidth = gpu.memory_bandwidth_gb_per_s
    assert peak is not None
    assert bandwidth is not None
    return max(op.flops / (peak * 1e12), (op.read_bytes + op.write_bytes) / (bandwidth * 1e9))


def parameters_times_16(trace: StepTrace) -> int:
    """The rule of thumb for training memory: 16 bytes per parameter and nothing else."""
    if trace.num_parameters:
        return BYTES_PER_PARAMETER * trace.num_parameters
    held = sum(s.num_bytes for s in trace.storages if s.kind is StorageKind.PARAMETER)
    return BYTES_PER_PARAMETER * held // 4
