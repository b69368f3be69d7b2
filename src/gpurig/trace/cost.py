"""What one operator call costs: class, FLOPs, bytes, kernels, and the dimensions that its efficiency depends on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from gpurig.model.trace import Op, OpClass
from gpurig.trace.device import on_device, tensors

aten = torch.ops.aten

_DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.bool: "bool",
    torch.complex64: "fp32",
    torch.complex128: "fp64",
}
_VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "detach",
        "alias",
        "split",
        "split_with_sizes",
        "chunk",
        "as_strided",
        "_reshape_alias",
        "unbind",
        "diagonal",
        "narrow",
        "view_as",
        "lift_fresh",
        "unfold",
        "movedim",
        "view_as_real",
        "view_as_complex",
        "real",
        "imag",
        "expand_as",
        "swapaxes",
        "unsafe_split",
        "unsafe_chunk",
        "squeeze_",
        "unsqueeze_",
        "t_",
        "transpose_",
        "detach_",
        "set_",
    ]
)
_NO_KERNEL = frozenset(
    ["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "empty_permuted"]
)
_WRITE_ONLY = frozenset(
    [
        "zeros",
        "zeros_like",
        "new_zeros",
        "ones",
        "ones_like",
        "new_ones",
        "full",
        "full_like",
        "new_full",
        "fill_",
        "zero_",
        "arange",
        "scalar_tensor",
        "eye",
        "uniform_",
        "normal_",
        "random_",
        "rand",
        "randn",
        "randint",
        "randperm",
        "bernoulli_",
        "exponential_",
        "trunc_normal_",
        "linspace",
        "rand_like",
        "randn_like",
    ]
)
_NORMS = ("batch_norm", "layer_norm", "group_norm", "rms_norm", "instance_norm", "native_norm")
_REDUCTIONS = (
    "softmax", "sum", "mean", "loss", "argmax", "argmin", "max_pool", "avg_pool", "norm", "logsumexp", "var", "std",
    "prod", "amax", "amin", "any", "all", "cumsum", "cumprod", "max", "min", "upsample", "grid_sampler",
)  # fmt: skip
_COPIES = frozenset(
    [
        "_to_copy",
        "copy_",
        "clone",
        "cat",
        "stack",
        "contiguous",
        "index_select",
        "gather",
        "constant_pad_nd",
        "reflection_pad2d",
        "roll",
        "flip",
        "repeat",
        "slice_backward",
        "select_backward",
        "index",
        "slice_scatter",
        "select_scatter",
        "as_strided_scatter",
        "im2col",
        "col2im",
    ]
)
_EMBEDDING = frozenset(["embedding", "embedding_dense_backward", "_embedding_bag", "_embedding_bag_backward"])
_SORTS = frozenset(
    [
        "sort",
        "topk",
        "argsort",
        "_unique2",
        "unique_dim",
        "nonzero",
        "bincount",
        "searchsorted",
        "masked_select",
        "msort",
    ]
)
_ACCUMULATES = frozenset(
    ["index_put_", "index_put", "_index_put_impl_", "scatter_add", "scatter_add_", "index_add", "index_add_"]
)
_TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}  # ATen/native/cuda/MultiTensorApply.cuh
_CHUNK_ELEMENTS, _CHUNKS_PER_LAUNCH = 65536, 320


def describe(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    """The cost of one call, from the shapes of its arguments and result."""
    name = func._schema.name.rpartition("::")[2]
    if name in _VIEWS or name in _NO_KERNEL:
        return Op(name, OpClass.VIEW, "", 0, 0, 0, 0)
    special = _SPECIAL.get(name)
    if special is not None:
        return special(name, args, kwargs, out)
    if name.startswith(("_foreach_", "_fused_", "_amp_foreach_")):
        return _multi_tensor(name, args, kwargs, out)
    return _generic(func, name, args, kwargs, out)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type in an Op: integers of every width are "int"."""
    return _DTYPES.get(dtype, "int")


# --- bytes --------------------------------------------------------------------------------------------------------------
def _bytes(tensor: torch.Tensor) -> int:
    """Bytes that an operator touches: broadcast (expanded) tensors count once."""
    if not on_device(tensor):
        return 0
    size = tensor.numel() * tensor.element_size()
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride == 0 and length > 1:
            size //= length
    return int(size)


def _read(values: Any) -> int:
    seen: set[int] = set()
    total = 0
    for tensor in tensors(values):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            total += _bytes(tensor)
    return total


def _written(name: str, args: tuple[Any, ...], out: Any) -> int:
    if name.endswith("_") and args and isinstance(args[0], torch.Tensor):
        return _bytes(args[0])
    return sum(_bytes(t) for t in tensors(out if isinstance(out, (tuple, list)) else (out,)))


def _dtype(values: Any) -> str:
    for tensor in tensors(values):
        return _DTYPES.get(tensor.dtype, "int")
    return ""


def _channels_last(tensor: torch.Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim())
    return wanted is not None and tensor.is_contiguous(memory_format=wanted) and not tensor.is_contiguous()


# --- operators with dimensions --------------------------------------------------------------------------------------------
def _gemm(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    a, b = (args[1], args[2]) if name in ("addmm", "baddbmm", "addmv", "addmm_", "baddbmm_") else (args[0], args[1])
    if name in ("dot", "vdot"):
        batch, m, n, k = 1, 1, 1, a.numel()
    elif name in ("mv", "addmv"):
        batch, m, n, k = 1, a.shape[0], 1, a.shape[1]
    elif a.dim() == 3:
        batch, m, k, n = a.shape[0], a.shape[1], a.shape[2], b.shape[2]
    else:
        batch, m, k, n = 1, a.shape[0], a.shape[1], b.shape[1]
    return Op(
        name, OpClass.GEMM, _DTYPES.get(a.dtype, "int"), 2 * batch * m * n * k, _read(args), _written(name, args, out), 1,
        (batch, m, n, k), tf32=torch.backends.cuda.matmul.allow_tf32,
    )  # fmt: skip


def _conv(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    """Forward convolution; `_conv_backward` makes one Op for both gradients."""
    x, weight = args[0], args[1]
    dims = _conv_dims(x, weight, args[3], args[5], args[8], out, 0, transposed=args[6])
    return Op(
        name, OpClass.CONV, _DTYPES.get(x.dtype, "int"), _conv_flops(dims), _read(args), _bytes(out), 1, dims,
        _channels_last(x) or _channels_last(weight), torch.backends.cudnn.allow_tf32,
    )  # fmt: skip


def _conv_backward(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    grad, x, weight, mask = args[0], args[1], args[2], args[10]
    direction = 3 if mask[0] and mask[1] else (1 if mask[0] else 2)
    dims = _conv_dims(x, weight, args[4], args[6], args[9], grad, direction, transposed=args[7])
    gradients = int(mask[0]) + int(mask[1])
    kernels = gradients + int(mask[2])
    reads = gradients * _bytes(grad) + (_bytes(weight) if mask[0] else 0) + (_bytes(x) if mask[1] else 0)
    return Op(
        name, OpClass.CONV, _DTYPES.get(x.dtype, "int"), gradients * _conv_flops(dims), reads, _written(name, (), out),
        kernels, dims, _channels_last(x) or _channels_last(weight), torch.backends.cudnn.allow_tf32,
    )  # fmt: skip


def _conv_dims(
    x: torch.Tensor, weight: torch.Tensor, stride: Any, dilation: Any, groups: int, result: torch.Tensor, direction: int, *,
    transposed: bool,
) -> tuple[int, ...]:  # fmt: skip
    spatial, kernel, produced = list(x.shape[2:]), list(weight.shape[2:]), list(result.shape[2:])
    depth = kernel_depth = out_depth = 1
    if len(spatial) == 3:
        depth, kernel_depth, out_depth = spatial.pop(0), kernel.pop(0), produced.pop(0)
    if len(spatial) == 1:
        spatial, kernel, produced = [1, *spatial], [1, *kernel], [1, *produced]
    del depth
    return (
        x.shape[0] * out_depth, x.shape[1], spatial[0], spatial[1], result.shape[1], kernel[0] * kernel_depth, kernel[1],
        max(stride), max(dilation), groups, produced[0], produced[1], direction, int(transposed),
    )  # fmt: skip


def _conv_flops(dims: tuple[int, ...]) -> int:
    n, c_in, h, w, c_out, kh, kw, _, _, groups, out_h, out_w, _, transposed = dims
    positions = h * w if transposed else out_h * out_w
    return 2 * n * positions * c_out * c_in * kh * kw // groups


def _attention(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    backward = "backward" in name
    q, k, v = (args[1], args[2], args[3]) if backward else (args[0], args[1], args[2])
    packet = getattr(aten, name)
    flops = 0
    if packet in flop_registry:
        flops = int(flop_registry[packet](*args, **kwargs, out_val=out))
    causal = any(a is True for a in args[3:]) or kwargs.get("is_causal") is True
    dims = (q.shape[0], q.shape[1], q.shape[2], k.shape[2], v.shape[3], int(causal), int(backward))
    return Op(
        name, OpClass.ATTENTION, _DTYPES.get(q.dtype, "int"), flops, _read(args), _written(name, args, out),
        3 if backward else 1, dims,
    )  # fmt: skip


def _rnn(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    backward = name.endswith("backward")
    x, weights = args[0], [w for w in args[1] if isinstance(w, torch.Tensor)]
    shift = 4 if backward else 0
    mode, hidden, layers, batch_first, bidirectional, batch_sizes = (
        args[6 + shift], args[7 + shift], args[9 + shift], args[10 + shift], args[13 + shift], args[14 + shift]
    )  # fmt: skip
    gates = {2: 4, 3: 3}.get(mode, 1)
    if batch_sizes:
        length, batch = len(batch_sizes), max(1, x.shape[0] // len(batch_sizes))
    else:
        length, batch = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    matrix = sum(w.numel() for w in weights if w.dim() > 1)
    flops = 2 * matrix * length * batch * (2 if backward else 1)
    dims = (length, batch, x.shape[-1], hidden, layers, 2 if bidirectional else 1, gates)
    return Op(
        name, OpClass.RNN, _DTYPES.get(x.dtype, "int"), flops, _read(args), _written(name, (), out), length * layers, dims,
        tf32=torch.backends.cudnn.allow_tf32,
    )  # fmt: skip


def _transfer(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    source = args[1] if name == "copy_" else args[0]
    target = args[0] if name == "copy_" else out
    if on_device(source) and on_device(target):
        read = _bytes(source)
        return Op(name, OpClass.COPY, _DTYPES.get(source.dtype, "int"), 0, read, _bytes(target), 1)
    moved = source.numel() * source.element_size()
    return Op(name, OpClass.TRANSFER, _DTYPES.get(source.dtype, "int"), 0, moved, moved, 0)


def _item(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    return Op(name, OpClass.SYNC, _dtype(args), 0, 0, 0, 0)


def _multi_tensor(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    """Optimizer kernels over lists of tensors; chunks and launches as in ATen's multi_tensor_apply."""
    lists = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
    first = lists[0] if lists else []
    chunks = sum(math.ceil(t.numel() / _CHUNK_ELEMENTS) for t in first)
    depth = min(5, len(lists) + (0 if name.endswith("_") else 1))
    kernels = max(math.ceil(len(first) / _TENSORS_PER_LAUNCH[max(1, depth)]), math.ceil(chunks / _CHUNKS_PER_LAUNCH), 1)
    if name in ("_foreach_zero_", "_foreach_norm"):
        kernels = max(kernels, 1)
    read = _read(args)
    if name.startswith("_fused_"):
        written = sum(_bytes(t) for index in (0, 2, 3) if index < len(lists) for t in lists[index])
        elements = sum(t.numel() for t in first)
        return Op(name, OpClass.OPTIMIZER, _dtype(args), 15 * elements, read, written, kernels)
    written = sum(_bytes(t) for t in first) if name.endswith("_") else sum(_bytes(t) for t in tensors((out,)))
    if name == "_foreach_zero_":
        read = 0
    if name == "_foreach_copy_":
        read = sum(_bytes(t) for t in lists[1])
    return Op(name, OpClass.OPTIMIZER, _dtype(args), 0, read, written, kernels)


def _generic(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Op:
    write = _written(name, args, out)
    dtype = _dtype(args) or _dtype((out,) if isinstance(out, torch.Tensor) else out or ())
    if name in _WRITE_ONLY:
        return Op(name, OpClass.ELEMENTWISE, dtype, 0, 0, write, 1)
    read = _read(args)
    packet = getattr(aten, name, None)
    flops = 0
    if packet in flop_registry:
        flops = int(flop_registry[packet](*args, **kwargs, out_val=out))
        if flops:
            return Op(name, OpClass.GEMM, dtype, flops, read, write, 1)
    op_class, kernels = _class_of(name)
    if op_class is OpClass.EMBEDDING and name == "embedding":
        read = _bytes(args[1]) + write  # only the rows that are looked up
    elif name in ("index", "index_select", "gather"):
        read = write + _read(args[1:])
    elif name in ("slice_backward", "select_backward"):
        read = _bytes(args[0])
    elif name in _ACCUMULATES:
        read = 2 * _read(args[1:])
        write = min(write, read)
    dims = _rows_and_columns(args, op_class)
    return Op(
        name, op_class, dtype, 0, read, write, kernels, dims, _channels_last(args[0]) if _is_tensor(args) else False
    )


def _is_tensor(args: tuple[Any, ...]) -> bool:
    return bool(args) and isinstance(args[0], torch.Tensor)


def _class_of(name: str) -> tuple[OpClass, int]:
    """Class and number of kernels of an operator without matrix arithmetic."""
    if name in _COPIES:
        return OpClass.COPY, 1
    if name in _EMBEDDING:
        return OpClass.EMBEDDING, 1 if name == "embedding" else 5
    if name in _SORTS:
        return OpClass.SORT, 4
    if name in _ACCUMULATES:
        return OpClass.EMBEDDING, 5
    if any(n in name for n in _NORMS) and "foreach" not in name:
        return OpClass.NORM, 2 if "backward" in name else 1
    if any(r in name for r in _REDUCTIONS) and name not in ("maximum", "minimum", "clamp_min", "clamp_max"):
        return OpClass.REDUCTION, 1
    return OpClass.ELEMENTWISE, 1


def _rows_and_columns(args: tuple[Any, ...], op_class: OpClass) -> tuple[int, ...]:
    if op_class not in (OpClass.NORM, OpClass.REDUCTION) or not _is_tensor(args) or args[0].dim() == 0:
        return ()
    columns = args[0].shape[-1]
    return (args[0].numel() // max(1, columns), columns)


_Special = Callable[[str, tuple[Any, ...], dict[str, Any], Any], Op]
_SPECIAL: dict[str, _Special] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addmm_", "baddbmm_"), _gemm),
    "convolution": _conv,
    "convolution_backward": _conv_backward,
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_flash_attention_backward",
            "_scaled_dot_product_efficient_attention_backward",
        ),
        _attention,
    ),
    "_cudnn_rnn": _rnn,
    "_cudnn_rnn_backward": _rnn,
    "_to_copy": _transfer,
    "copy_": _transfer,
    "_local_scalar_dense": _item,
}
