"""Micro-benchmarks on a device: sustained arithmetic per type, bandwidth, issue cost, memory outside the allocator."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gpurig.model.trace import Op, OpClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_WARM_UP = 3
_TINY_CALLS = 500


@dataclass(frozen=True, slots=True)
class Measurement:
    """One operator at one size: seconds of a call, sustained over a few of them back to back."""

    op: Op
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything that was measured of a device."""

    device_name: str
    torch_version: str
    measurements: tuple[Measurement, ...]
    host_s: float  # host time to issue one small operator
    base_bytes: int | None  # device memory in use outside the allocator; None: not readable


@dataclass(frozen=True, slots=True)
class Case:
    """An operator to run: how it is described, and how it is made."""

    op: Op
    make: Callable[[torch.device], Callable[[], Any]]


def measure(
    device: str = "cuda", *, seconds: float = 50.0, scale: int = 4096, progress: Callable[[str], None] = lambda _: None
) -> Measured:
    """Run the micro-benchmarks.

    Args:
        device: "cuda", or "cpu" to try the procedure.
        seconds: Time for all operators together; each runs back to back for its share, so that clocks settle.
        scale: Edge of the largest matrix; smaller for small devices.
        progress: Told what is being measured.
    """
    where = torch.device(device)
    cases = list(cases_for(where, scale))
    share = seconds / len(cases)
    found = []
    for case in cases:
        progress(f"{case.op.name} {case.op.dtype} {'x'.join(map(str, case.op.dims))}")
        found.append(Measurement(case.op, _sustained(case.make(where), where, share)))
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    return Measured(
        device_name=name,
        torch_version=str(torch.__version__),
        measurements=tuple(found),
        host_s=_host_s(where),
        base_bytes=_outside_allocator(where),
    )


def cases_for(device: torch.device, scale: int) -> Iterator[Case]:
    """Matrix products, convolutions and memory-bound operators in every type that the device has."""
    types = ["fp32"]
    if device.type == "cuda":
        types += ["fp16"] + (["bf16"] if torch.cuda.is_bf16_supported() else [])
        if torch.cuda.get_device_capability(device) >= (8, 0):
            types.append("tf32")
    for dtype in types:
        for m, n, k in ((scale, scale, scale), (2 * scale, scale // 4, scale), (scale, scale, scale // 4)):
            yield _gemm(dtype, m, n, k)
        yield _conv(dtype, max(1, scale // 64), 64, 56, 3)
        yield _conv(dtype, max(1, scale // 64), 256, 14, 1)
    for elements in (scale * scale, 4 * scale * scale):
        yield _add("fp32", elements)
        yield _add("fp16", elements)
    yield _softmax(scale, scale)


def _gemm(dtype: str, m: int, n: int, k: int) -> Case:
    real = "fp32" if dtype == "tf32" else dtype
    size = _DTYPES[real].itemsize
    op = Op(
        "mm",
        OpClass.GEMM,
        real,
        2 * m * n * k,
        size * (m * k + k * n),
        size * m * n,
        1,
        (1, m, n, k),
        tf32=dtype == "tf32",
    )

    def make(device: torch.device) -> Callable[[], Any]:
        a = torch.randn(m, k, device=device, dtype=_DTYPES[real])
        b = torch.randn(k, n, device=device, dtype=_DTYPES[real])
        return lambda: _with_tf32(dtype == "tf32", lambda: a @ b)

    return Case(op, make)


def _conv(dtype: str, batch: int, channels: int, edge: int, kernel: int) -> Case:
    real = "fp32" if dtype == "tf32" else dtype
    size = _DTYPES[real].itemsize
    image = batch * channels * edge * edge
    weight = channels * channels * kernel * kernel
    half = real != "fp32"
    dims = (batch, channels, edge, edge, channels, kernel, kernel, 1, 1, 1, edge, edge, 0, 0)
    op = Op(
        "convolution", OpClass.CONV, real, 2 * image * channels * kernel * kernel, size * (image + weight), size * image, 1,
        dims, channels_last=half, tf32=dtype == "tf32",
    )  # fmt: skip

    def make(device: torch.device) -> Callable[[], Any]:
        layout = torch.channels_last if half else torch.contiguous_format
        x = torch.randn(batch, channels, edge, edge, device=device, dtype=_DTYPES[real]).to(memory_format=layout)
        w = torch.randn(channels, channels, kernel, kernel, device=device, dtype=_DTYPES[real]).to(memory_format=layout)
        pad = kernel // 2
        return lambda: _with_tf32(dtype == "tf32", lambda: torch.nn.functional.conv2d(x, w, padding=pad))

    return Case(op, make)


def _add(dtype: str, elements: int) -> Case:
    size = _DTYPES[dtype].itemsize
    op = Op("add", OpClass.ELEMENTWISE, dtype, 0, 2 * size * elements, size * elements, 1)

    def make(device: torch.device) -> Callable[[], Any]:
        a = torch.ones(elements, device=device, dtype=_DTYPES[dtype])
        b, out = torch.ones_like(a), torch.empty_like(a)
        return lambda: torch.add(a, b, out=out)

    return Case(op, make)


def _softmax(rows: int, columns: int) -> Case:
    moved = 4 * rows * columns
    op = Op("_softmax", OpClass.REDUCTION, "fp32", 0, moved, moved, 1, (rows, columns))

    def make(device: torch.device) -> Callable[[], Any]:
        x = torch.randn(rows, columns, device=device)
        return lambda: torch.softmax(x, -1)

    return Case(op, make)


def _with_tf32(wanted: bool, run: Callable[[], Any]) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = wanted
    torch.backends.cudnn.allow_tf32 = wanted
    return run()


def _sustained(run: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Seconds of a call, back to back, for about `seconds` in all: the second half counts."""
    with torch.no_grad():
        for _ in range(_WARM_UP):
            run()
        _wait(device)
        once = _timed(run, device, 1)
        half = max(1, int(seconds / 2 / max(once, 1e-7)))
        _timed(run, device, half)
        return _timed(run, device, half)


def _timed(run: Callable[[], Any], device: torch.device, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        run()
    _wait(device)
    return (time.perf_counter() - started) / calls


def _host_s(device: torch.device) -> float:
    """Host time to issue an operator whose kernel is too small to matter."""
    x = torch.zeros(16, device=device)
    with torch.no_grad():
        for _ in range(_TINY_CALLS):
            x = x + 1
        _wait(device)
        started = time.perf_counter()
        for _ in range(_TINY_CALLS):
            x = x + 1
        issued = time.perf_counter() - started
        _wait(device)
    return issued / _TINY_CALLS


def _outside_allocator(device: torch.device) -> int | None:
    """Device memory in use that the allocator does not hold. Other programs on the card would be counted too."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
