"""Which kernel CUDA would take where PyTorch's composite operators ask for the device in C++.

Registered on the AutogradCUDA key, which only planned tensors carry: dropout, attention, recurrent networks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
ONE_KERNEL = ("silu_backward", "mish_backward")


def install(library: torch.library.Library, sm: int) -> None:
    """Register CUDA's choices for a GPU of compute capability `sm` (70, 75, 80, 86, 89, 90 …)."""
    library.impl("dropout", _dropout, "AutogradCUDA")
    library.impl("scaled_dot_product_attention", attention(sm), "AutogradCUDA")
    for name, mode in (("rnn_relu", 0), ("rnn_tanh", 1), ("lstm", 2), ("gru", 3)):
        library.impl(f"{name}.input", _recurrent(mode), "AutogradCUDA")
        library.impl(f"{name}.data", _recurrent_packed(mode), "AutogradCUDA")
    library.impl("_cudnn_rnn", _cudnn_rnn_autocast, "AutocastCUDA")
    for name in ONE_KERNEL:
        # where PyTorch is built without CUDA these have no kernel of their own there, and would come as their composite
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            library.impl(name, _seen_before, "CUDA")


def _seen_before(*_: Any) -> Any:
    """Never called: the planned device sees the operator first. It is there so that C++ does not decompose it."""
    raise NotImplementedError


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    # ATen/native/Dropout.cpp: the fused kernel saves one byte a value; the composite saves a mask of x's own type
    if train and 0 < p < 1 and x.numel() > 0:
        return torch.native_dropout(x, p, train)[0]
    if not train or p == 0:
        return x  # as ATen does; the decomposition would come back as a copy
    return aten.dropout.default.decompose(x, p, train)


def attention(sm: int) -> Callable[..., torch.Tensor]:
    """Scaled dot-product attention with the kernel that a GPU of class `sm` takes: flash, memory-efficient or math."""

    def sdpa(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        kind = choose(query, key, value, attn_mask, sm, grouped=enable_gqa)
        if kind == "math":
            return aten.scaled_dot_product_attention.default.decompose(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa and kind != "flash":
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        if kind == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        mask = _expanded_mask(attn_mask, query, key)
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, _needs_grad(query, key, value, mask), dropout_p, is_causal, scale=scale
        )[0]

    return sdpa


def choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    sm: int,
    *,
    grouped: bool = False,
) -> str:
    """The backend that ATen/native/transformers/cuda/sdp_utils.cpp would choose: "flash", "efficient" or "math"."""
    if query.dim() != 4 or query.dtype not in (*_HALF, torch.float32) or query.numel() == 0:
        return "math"
    head_dim = query.shape[-1]
    same_head_dim = head_dim == key.shape[-1] == value.shape[-1]
    enabled = torch.backends.cuda
    flash = (
        enabled.flash_sdp_enabled()
        and sm >= 80
        and query.dtype in _HALF
        and mask is None
        and same_head_dim
        and head_dim <= 256
    )
    if flash:
        return "flash"
    aligned_to = 8 if query.dtype in _HALF else 4
    efficient = (
        enabled.mem_efficient_sdp_enabled()
        and sm >= 50
        and not (query.dtype is torch.bfloat16 and sm < 80)
        and head_dim % aligned_to == 0
        and value.shape[-1] % aligned_to == 0
        and not (grouped and sm < 80)
    )
    return "efficient" if efficient else "math"


def _needs_grad(*tensors: torch.Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, causal: bool, scale: float | None
) -> Any:
    head_dim = q.shape[-1]
    padding = -head_dim % 8  # the kernel wants multiples of 8 and pads copies otherwise
    if padding:
        scale = head_dim**-0.5 if scale is None else scale
        q, k, v = (torch.nn.functional.pad(t, (0, padding)) for t in (q, k, v))
    out = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, causal, scale=scale)[0]
    return out[..., :head_dim] if padding else out


def _expanded_mask(mask: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    length = k.shape[-2]
    if length % 16:  # the kernel reads the mask in aligned rows: ATen pads a copy and slices it
        mask = torch.nn.functional.pad(mask, (0, 16 - length % 16))[..., :length]
    return mask.expand(q.shape[0], q.shape[1], q.shape[2], length)


# --- recurrent networks: one cuDNN call for all layers and steps ----------------------------------------------------------
def _recurrent(mode: int) -> Callable[..., Any]:
    def rnn(
        x: torch.Tensor, hx: Any, params: list[torch.Tensor], has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        return _cudnn(mode, x, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, ())

    return rnn


def _recurrent_packed(mode: int) -> Callable[..., Any]:
    def rnn(
        data: torch.Tensor, batch_sizes: torch.Tensor, hx: Any, params: list[torch.Tensor], has_biases: bool,
        num_layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        sizes = tuple(batch_sizes.tolist())
        return _cudnn(mode, data, hx, params, has_biases, num_layers, dropout, train, bidirectional, False, sizes)

    return rnn


def _cudnn(
    mode: int, x: torch.Tensor, hx: Any, params: list[torch.Tensor], has_biases: bool, num_layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool, batch_sizes: tuple[int, ...],
) -> Any:  # fmt: skip
    h, c = (hx[0], hx[1]) if mode == 2 else (hx, None)
    per_layer = len(params) // (num_layers * (2 if bidirectional else 1))
    hidden = params[1].shape[1] if per_layer != 5 else params[0].shape[0] // 4
    projection = 0 if per_layer != 5 else h.shape[-1]
    out = aten._cudnn_rnn(
        x, params, per_layer, None, h, c, mode, hidden, projection, num_layers, batch_first, dropout, train,
        bidirectional, batch_sizes, None,
    )  # fmt: skip
    return out[:3] if mode == 2 else out[:2]


def _cudnn_rnn_autocast(x: torch.Tensor, weight: list[torch.Tensor], stride: int, *rest: Any) -> Any:
    """autocast::_cudnn_rnn_cast_reflatten: input, states and weights in the lower precision, weights copied each time."""
    dtype = torch.get_autocast_dtype("cuda")
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)):
        buffer, hx, cx, *others = rest
        weights = [w.to(dtype) for w in weight]
        cx = None if cx is None else cx.to(dtype)
        return aten._cudnn_rnn(x.to(dtype), weights, stride, buffer, hx.to(dtype), cx, *others)


def cudnn_rnn_shapes(args: tuple[Any, ...]) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes of (output, hy, cy, reserve, weight buffer) of aten::_cudnn_rnn.

    The reserve space is what cuDNN keeps for backward; its layout is not published. Taken: gates and cell state of every
    step, layer and direction, in the type of the input.
    """
    x, hx, mode, hidden, projection, layers, _batch_first, dropout, train, bidirectional, batch_sizes = (
        args[0], args[4], *args[6:15]
    )  # fmt: skip
    directions = 2 if bidirectional else 1
    width = (projection or hidden) * directions
    if batch_sizes:
        output = (x.shape[0], width)
        rows = x.shape[0]
    else:
        output = (*x.shape[:2], width)
        rows = x.shape[0] * x.shape[1]
    cell = (hx.shape[0], hx.shape[1], hidden) if mode == 2 else (0,)
    kept_per_unit = {0: 1, 1: 1, 2: 6, 3: 5}[mode]
    reserve = rows * hidden * directions * layers * kept_per_unit * x.element_size() if train else 0
    if train and dropout and layers > 1:
        reserve += rows * width * (layers - 1)
    return [
        (output, x.dtype), (tuple(hx.shape), x.dtype), (cell, x.dtype), ((reserve,), torch.uint8), ((0,), x.dtype),
    ]  # fmt: skip
