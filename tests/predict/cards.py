"""Cards and traces that the tests of the predictor share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpurig.catalog.gpus import load_gpus
from gpurig.model.trace import Call, InputProfile, Op, OpClass, Phase, StepTrace, Storage, StorageKind

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu


def card(gpu_id: str) -> Gpu:
    return load_gpus()[gpu_id]


def gemm(m: int = 4096, n: int = 4096, k: int = 4096, *, dtype: str = "fp32", tf32: bool = False, batch: int = 1) -> Op:
    size = 2 if dtype in ("fp16", "bf16") else 4
    read, write = size * batch * (m * k + k * n), size * batch * m * n
    return Op("mm", OpClass.GEMM, dtype, 2 * batch * m * n * k, read, write, 1, (batch, m, n, k), tf32=tf32)


def convolution(
    *,
    batch: int = 32,
    c_in: int = 128,
    c_out: int = 128,
    size: int = 28,
    kernel: int = 3,
    groups: int = 1,
    dtype: str = "fp32",
    direction: int = 0,
    channels_last: bool = False,
    tf32: bool = False,
) -> Op:
    width = 2 if dtype in ("fp16", "bf16") else 4
    taps = kernel * kernel
    flops = 2 * batch * size * size * c_out * c_in * taps // groups
    dims = (batch, c_in, size, size, c_out, kernel, kernel, 1, 1, groups, size, size, direction, 0)
    read = width * (batch * c_in * size * size + c_in * c_out * taps // groups)
    write = width * batch * c_out * size * size
    both = 2 if direction == 3 else 1
    name = "convolution" if direction == 0 else "convolution_backward"
    return Op(name, OpClass.CONV, dtype, both * flops, read, write, both, dims, channels_last, tf32)


def add(elements: int = 1 << 24, *, dtype: str = "fp32") -> Op:
    size = 2 if dtype in ("fp16", "bf16") else 4
    return Op("add", OpClass.ELEMENTWISE, dtype, 0, 2 * size * elements, size * elements, 1)


VIEW = Op("view", OpClass.VIEW, "", 0, 0, 0, 0)
SYNC = Op("_local_scalar_dense", OpClass.SYNC, "fp32", 0, 0, 0, 0)


def trace_of(
    *parts: tuple[Op, Phase, int],
    precision: str = "fp32",
    accumulation: int = 1,
    gradients: tuple[int, ...] = (4 << 20,) * 8,
    profile: InputProfile | None = None,
) -> StepTrace:
    """A step of (operator, phase, times)."""
    ops = tuple(op for op, _, _ in parts)
    calls = tuple(Call(index, phase, -1) for index, (_, phase, times) in enumerate(parts) for _ in range(times))
    return StepTrace(
        label="test",
        torch_version="2.6.0",
        sm=80,
        precision=precision,
        steps_traced=2,
        samples_per_step=8,
        micro_batch=8,
        accumulation=accumulation,
        num_parameters=1000,
        num_trainable=1000,
        ops=ops,
        calls=calls,
        sites=(),
        storages=(Storage(1 << 20, StorageKind.PARAMETER, -1, Phase.SETUP),),
        events=((1, 0, -1),),
        steady_from=1,
        gradient_bytes=gradients,
        input=profile,
    )


def plain_step(times: int = 10, **options: object) -> StepTrace:
    """Products forward and backward, an update over memory."""
    return trace_of(
        (gemm(), Phase.FORWARD, times),
        (gemm(), Phase.BACKWARD, 2 * times),
        (add(), Phase.OPTIMIZER, 2),
        **options,  # type: ignore[arg-type]
    )
