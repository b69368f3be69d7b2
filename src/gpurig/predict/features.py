"""What the cost of each operator depends on: ideal times on a GPU, and the named terms that its efficiency is a sum of.

log(efficiency) of an operator is linear in named terms, so that one vector of coefficients serves the predictor and
its fit alike: time = ideal time × exp(−Σ coefficient·value).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gpurig.model.gpu import Gpu
from gpurig.model.trace import Op, OpClass
from gpurig.predict.tiles import Floats, product_time_s, winograd_time_s

Terms = tuple[tuple[str, float], ...]

# Pipelines whose sustained rate is a property of the card. Every operator uses one for arithmetic and "memory".
PIPES = ("simt", "tf32", "half", "memory")
REDUCED = ("fp16", "bf16")
_NO_TERMS: Terms = ()


@dataclass(frozen=True, slots=True)
class OpFeatures:
    """Ideal times of operators on one GPU, one element per operator, and the terms of their efficiencies.

    `compute_s` and `memory_s` run at once, `extra_s` (layout changes around a kernel) comes after, `kernels` counts
    launches on the device. 0 in a time: the operator has none of it.
    """

    compute_s: Floats
    memory_s: Floats
    extra_s: Floats
    kernels: Floats
    compute_terms: tuple[Terms, ...]
    memory_terms: tuple[Terms, ...]
    extra_terms: tuple[Terms, ...]
    pipes: tuple[str, ...]


_DTYPE_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}


def split_gradients(ops: Sequence[Op]) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """Kernels of operators: a convolution's backward is two, one per gradient, that cost differently.

    Returns:
        The operators with such calls in two parts, and for each part the index of the operator that it is of.
    """
    parts: list[Op] = []
    owners: list[int] = []
    for index, op in enumerate(ops):
        both = op.op_class is OpClass.CONV and op.dims[12] == 3
        for part in _gradients(op) if both else (op,):
            parts.append(part)
            owners.append(index)
    return tuple(parts), tuple(owners)


def _gradients(op: Op) -> tuple[Op, Op]:
    n, c_in, h, w, c_out, kh, kw, _, _, groups, out_h, out_w, _, transposed = op.dims
    size = _DTYPE_BYTES.get(op.dtype, 4)
    source, weight, result = n * c_in * h * w, c_out * c_in * kh * kw // groups, n * c_out * out_h * out_w
    half = op.flops // 2

    def part(direction: int, read: int, write: int, kernels: int) -> Op:
        dims = (*op.dims[:12], direction, transposed)
        return replace(op, dims=dims, flops=half, read_bytes=read * size, write_bytes=write * size, num_kernels=kernels)

    return part(1, result + weight, source, 1), part(2, result + source, weight, max(1, op.num_kernels - 1))


def op_features(ops: Sequence[Op], gpu: Gpu, *, era: str = "now") -> OpFeatures:
    """Features of operators on a GPU.

    Args:
        ops: Kernels of a trace, gradients of convolutions apart (`split_gradients`).
        gpu: Needs `sm_count`, `memory_bandwidth_gb_per_s` and `fp32_tflops`.
        era: Age of the kernel libraries, of `ERAS`.

    Raises:
        ValueError: a fact that the GPU needs is not known.
    """
    if gpu.sm_count is None or gpu.memory_bandwidth_gb_per_s is None or gpu.fp32_tflops is None:
        raise ValueError(f"multiprocessors, bandwidth or FP32 peak of {gpu.gpu_id} are not known")
    bandwidth = gpu.memory_bandwidth_gb_per_s * 1e9
    pipes = tuple(pipe_of(op, gpu) for op in ops)
    kinds = tuple(_kind(op) for op in ops)
    peaks = np.array([_peak_flops(pipe, op, kind, gpu) for pipe, op, kind in zip(pipes, ops, kinds, strict=True)])
    num_bytes = np.array([_traffic_bytes(op) for op in ops], dtype=float)
    compute_s = _compute_s(ops, kinds, peaks, float(gpu.sm_count))
    cache = (gpu.l2_mb or 4.0) * 1e6
    transposes = np.array([_transposes(op, pipe, kind) for op, pipe, kind in zip(ops, pipes, kinds, strict=True)])
    transfer = np.array([op.op_class is OpClass.TRANSFER for op in ops])
    link = _host_link_bytes_per_s(gpu)
    return OpFeatures(
        compute_s=compute_s,
        memory_s=np.where(transfer, num_bytes / link, num_bytes / bandwidth),
        extra_s=transposes * num_bytes / bandwidth,
        kernels=np.array([op.num_kernels if op.op_class is not OpClass.VIEW else 0 for op in ops], dtype=float),
        compute_terms=tuple(
            _compute_terms(op, pipe, kind, era) if seconds > 0 else _NO_TERMS
            for op, pipe, kind, seconds in zip(ops, pipes, kinds, compute_s, strict=True)
        ),
        memory_terms=tuple(
            (*_memory_terms(op, kind), ("l2", float(np.exp(-size / cache)))) if size > 0 else _NO_TERMS
            for op, kind, size in zip(ops, kinds, num_bytes, strict=True)
        ),
        extra_terms=tuple((("transpose", 1.0),) if extra > 0 else _NO_TERMS for extra in transposes),
        pipes=pipes,
    )


def pipe_of(op: Op, gpu: Gpu) -> str:
    """The pipeline that an operator's arithmetic runs on: "simt", "tf32" or "half"."""
    if op.op_class not in (OpClass.GEMM, OpClass.CONV, OpClass.ATTENTION, OpClass.RNN):
        return "simt"
    if op.dtype in REDUCED and gpu.peak_tflops(op.dtype) is not None and (gpu.tensor_cores or gpu.vendor == "AMD"):
        return "half"
    if op.dtype == "fp32" and op.tf32 and gpu.tf32_tflops is not None:
        return "tf32"
    return "simt"


def _peak_flops(pipe: str, op: Op, kind: str, gpu: Gpu) -> float:
    if pipe == "half" and kind != "depthwise":  # depthwise convolution has no use for tensor cores
        return (gpu.peak_tflops(op.dtype) or gpu.fp16_tflops or 1.0) * 1e12
    if pipe == "tf32" and kind != "depthwise":
        return (gpu.tf32_tflops or 1.0) * 1e12
    if op.dtype == "fp64":
        return (gpu.fp64_tflops or (gpu.fp32_tflops or 1.0) / 32) * 1e12
    return (gpu.fp32_tflops or 1.0) * 1e12


def _host_link_bytes_per_s(gpu: Gpu) -> float:
    """What a pageable copy reaches of PCIe: about 40 % of 0.985 GB/s per lane and doubling per generation."""
    generation, lanes = gpu.pcie_gen or 3.0, gpu.pcie_lanes or 16
    return float(0.4 * 0.985e9 * 2 ** (generation - 3) * lanes)


def _kind(op: Op) -> str:
    """Finer class of an operator: what it is called in the coefficients."""
    if op.op_class is OpClass.GEMM:
        return "gemm"
    if op.op_class is OpClass.CONV:
        return _conv_kind(op)
    if op.op_class is OpClass.ATTENTION:
        return "flash" if "flash" in op.name or "cudnn" in op.name else "efficient"
    if op.op_class is OpClass.RNN:
        return "rnn"
    return _memory_kind(op)


def _conv_kind(op: Op) -> str:
    c_in, c_out, groups = op.dims[1], op.dims[4], op.dims[9]
    if groups == 1:
        return "conv"
    return "depthwise" if c_in == groups and c_out % groups == 0 else "grouped"


_KIND_BY_WORD = (
    ("batch_norm", "batchnorm"),
    ("layer_norm", "layernorm"),
    ("group_norm", "groupnorm"),
    ("softmax", "softmax"),
    ("pool", "pool"),
    ("upsample", "pool"),
    ("pow", "pow"),
)


def _memory_kind(op: Op) -> str:
    if op.op_class in (OpClass.NORM, OpClass.REDUCTION, OpClass.ELEMENTWISE):
        for word, kind in _KIND_BY_WORD:
            if word in op.name:
                return kind
    return {
        OpClass.NORM: "layernorm",
        OpClass.REDUCTION: "reduction",
        OpClass.ELEMENTWISE: "elementwise",
        OpClass.COPY: "copy",
        OpClass.EMBEDDING: "embedding",
        OpClass.OPTIMIZER: "optimizer",
        OpClass.SORT: "sort",
        OpClass.TRANSFER: "transfer",
    }.get(op.op_class, "elementwise")


def _traffic_bytes(op: Op) -> int:
    """Bytes through device memory, with the passes that a kernel makes over its input."""
    if op.op_class is OpClass.VIEW:
        return 0
    total = op.read_bytes + op.write_bytes
    if op.op_class is OpClass.NORM and ("batch_norm" in op.name or "group_norm" in op.name):
        return total + op.read_bytes  # statistics first, then the values again
    if op.name == "embedding_dense_backward":
        return total + op.write_bytes
    return total


def _compute_s(ops: Sequence[Op], kinds: tuple[str, ...], peaks: Floats, sm_count: float) -> Floats:
    """Ideal arithmetic time per operator."""
    seconds = np.array([op.flops for op in ops], dtype=float) / peaks
    is_kind = {kind: np.array([k == kind for k in kinds], dtype=bool) for kind in ("gemm", "conv", "grouped")}
    gemm = np.flatnonzero(is_kind["gemm"])
    if gemm.size:
        shape = np.array([ops[i].dims for i in gemm], dtype=float)
        seconds[gemm] = product_time_s(*shape.T, peaks[gemm], sm_count)
    conv = np.flatnonzero(is_kind["conv"] | is_kind["grouped"])
    if conv.size:
        seconds[conv] = _conv_s([ops[i] for i in conv], peaks[conv], sm_count)
    return seconds


def _conv_s(ops: list[Op], peaks: Floats, sm_count: float) -> Floats:
    """Convolutions as implicit products; fp32 3 × 3 also as Winograd, whichever is less."""
    batch, m, n, k = np.array([_conv_product(op) for op in ops], dtype=float).T
    seconds = product_time_s(batch, m, n, k, peaks, sm_count)
    wino = np.array([_may_winograd(op) for op in ops])
    if wino.any():
        chosen = [op for op, yes in zip(ops, wino, strict=True) if yes]
        images, c_in, c_out, height, width = np.array(
            [(d.dims[0], *_in_out(d), d.dims[10], d.dims[11]) for d in chosen], dtype=float
        ).T
        seconds[wino] = np.minimum(
            seconds[wino], winograd_time_s(images, c_in, c_out, height, width, peaks[wino], sm_count)
        )
    return seconds


def _in_out(op: Op) -> tuple[int, int]:
    c_in, c_out, direction = op.dims[1], op.dims[4], op.dims[12]
    return (c_out, c_in) if direction == 1 else (c_in, c_out)


def _conv_product(op: Op) -> tuple[float, float, float, float]:
    """(batch, m, n, k) of the product that a convolution amounts to.

    Groups are products of their own; channels fill the tensor core's granule of 8.
    """
    n_img, c_in, height, width, c_out, kh, kw, _, _, groups, out_h, out_w, direction, transposed = op.dims
    if transposed:
        height, width, out_h, out_w, c_in, c_out = out_h, out_w, height, width, c_out, c_in
        direction = {0: 1, 1: 0, 2: 2}[direction]
    granule = 8 if op.dtype in REDUCED else 4
    per_in, per_out = (-(-c // groups // granule) * granule for c in (c_in, c_out))
    taps = kh * kw
    if direction == 0:
        return groups, n_img * out_h * out_w, per_out, per_in * taps
    if direction == 1:
        # a strided gradient touches each output once per tap: FLOPs of the forward pass spread over the input
        share = out_h * out_w / max(1, height * width)
        return groups, n_img * height * width, per_in, per_out * taps * share
    return groups, per_out, per_in * taps, n_img * out_h * out_w


def _may_winograd(op: Op) -> bool:
    return (
        op.dtype == "fp32"
        and not op.tf32
        and op.dims[5:10] == (3, 3, 1, 1, 1)
        and op.dims[12] in (0, 1)
        and min(op.dims[1], op.dims[4]) >= 16
    )


def _transposes(op: Op, pipe: str, kind: str) -> float:
    """Passes over the operands that change their layout: tensor-core convolution wants channels last."""
    if kind in ("conv", "grouped") and pipe in ("half", "tf32") and not op.channels_last:
        return 2.0
    if kind in ("conv", "grouped") and pipe == "simt" and op.channels_last:
        return 2.0
    return 0.0


ERAS = ("old", "now")  # kernel libraries of torch before 1.10, and since


def era_of(torch_version: str) -> str:
    """Age class of the kernel libraries of a torch version such as "1.13.0"; "now" where it is not known."""
    parts = torch_version.split(".")
    try:
        version = (int(parts[0]), int(parts[1]))
    except (ValueError, IndexError):
        return "now"
    return "old" if version < (1, 10) else "now"


def _compute_terms(op: Op, pipe: str, kind: str, era: str) -> Terms:
    if kind in ("gemm", "conv", "grouped"):
        terms: list[tuple[str, float]] = [(f"{kind}:{pipe}", 1.0), (f"pipe:{pipe}", 1.0)]
        if pipe != "simt" and era != "now":
            terms.append((f"era:{era}:{'gemm' if kind == 'gemm' else 'conv'}", 1.0))
        terms += _gemm_terms(op, pipe) if kind == "gemm" else _conv_terms(op, pipe, kind)
        return tuple(terms)
    if kind == "depthwise":
        return _depthwise_terms(op, has_half=pipe == "half")
    if kind in ("flash", "efficient"):
        direction = "backward" if op.dims[6] else "forward"
        return ((f"{kind}:{direction}", 1.0), (f"pipe:{pipe}", 1.0), ("attention:causal", float(op.dims[5])))
    if kind == "rnn":
        return (("rnn", 1.0), (f"pipe:{pipe}", 1.0))
    return (("other_compute", 1.0), ("pipe:simt", 1.0))


def _gemm_terms(op: Op, pipe: str) -> list[tuple[str, float]]:
    terms = []
    _, m, n, k = op.dims
    granule = 8 if pipe == "half" else 4
    if pipe != "simt" and (m % granule or n % granule or k % granule):
        terms.append(("gemm:misaligned", 1.0))
    if pipe == "simt" and op.dtype in REDUCED:
        terms.append(("half_on_simt:gemm", 1.0))
    if op.name in ("bmm", "baddbmm"):
        terms.append((f"bmm:{pipe}", 1.0))
    return terms


_DIRECTIONS = ("forward", "input", "weight")


def _conv_terms(op: Op, pipe: str, kind: str) -> list[tuple[str, float]]:
    c_in, c_out, kh, kw, stride, groups = op.dims[1], op.dims[4], op.dims[5], op.dims[6], op.dims[7], op.dims[9]
    direction = _DIRECTIONS[op.dims[12]]
    family = "simt" if pipe == "simt" else "tensor"
    terms = [(f"{kind}:{family}:{direction}", 1.0)] if direction != "forward" else []
    if kh * kw == 1 and groups == 1:
        terms.append((f"conv:1x1:{family}", 1.0))
    if min(c_in, c_out) // groups <= 4 and groups == 1:
        terms.append((f"conv:few_channels:{family}", 1.0))
    if stride > 1 and direction == "input":
        terms.append(("conv:strided_gradient", 1.0))
    if kind == "grouped":
        width = min(c_in, c_out) // groups
        terms.append((f"grouped:width:{family}", float(np.log2(max(1, width) / 32))))
    if pipe == "half" and op.channels_last:
        terms.append(("conv:half:channels_last", 1.0))
    if pipe == "simt" and op.dtype in REDUCED:
        terms.append(("half_on_simt:conv", 1.0))
    return terms


def _depthwise_terms(op: Op, *, has_half: bool) -> Terms:
    direction = _DIRECTIONS[op.dims[12]]
    terms = [(f"depthwise:{direction}", 1.0), ("pipe:simt", 1.0)]
    if op.channels_last:
        terms.append((f"depthwise:channels_last:{'weight' if direction == 'weight' else 'data'}", 1.0))
    if op.dtype in REDUCED:
        where = "half" if has_half else "half_on_simt"
        terms.append((f"depthwise:{where}:{'weight' if direction == 'weight' else 'data'}", 1.0))
    taps = op.dims[5] * op.dims[6]
    terms.append((f"depthwise:taps:{'weight' if direction == 'weight' else 'data'}", float(np.log2(taps / 9))))
    return tuple(terms)


@lru_cache(maxsize=4096)
def _memory_terms_of(kind: str, backward: bool, reduced: bool, channels_last: bool, name: str) -> Terms:
    terms: list[tuple[str, float]] = [("pipe:memory", 1.0)]
    if kind in ("batchnorm", "layernorm", "groupnorm", "softmax", "pool", "embedding"):
        terms.append((f"memory:{kind}:{'backward' if backward else 'forward'}", 1.0))
    else:
        terms.append((f"memory:{kind}", 1.0))
    if reduced and kind in ("elementwise", "copy", "reduction"):
        terms.append((f"memory:half:{kind}", 1.0))
    if channels_last and kind == "batchnorm":
        terms.append(("memory:batchnorm:channels_last", 1.0))
    if name == "_to_copy":
        terms.append(("memory:cast", 1.0))
    return tuple(terms)


def _memory_terms(op: Op, kind: str) -> Terms:
    if kind == "transfer":
        return (("memory:transfer", 1.0),)
    if kind == "depthwise":
        direction = "weight" if op.dims[12] == 2 else "data"
        return (("pipe:memory", 1.0), (f"memory:depthwise:{direction}", 1.0))
    return _memory_terms_of(kind, "backward" in op.name, op.dtype in REDUCED, op.channels_last, op.name)
