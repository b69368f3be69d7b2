"""Which kernel CUDA would take where PyTorch's composite operators ask for the device in C++.

Registered on the AutogradCUDA key, which only planned tensors carry: dropout, attention, recurrent networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)


def install(library: torch.library.Library, sm: int) -> None:
    """Register CUDA's choices for a GPU of compute capability `sm` (70, 75, 80, 86, 89, 90 …)."""
    library.impl("dropout", _dropout, "AutogradCUDA")
    library.impl("scaled_dot_product_attention", attention(sm), "AutogradCUDA")


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    # ATen/native/Dropout.cpp: the fused kernel saves one byte a value; the composite saves a mask of x's own type
    if train and 0 < p < 1 and x.numel() > 0:
        return torch.native_dropout(x, p, train)[0]
    return aten.dropout.default.decompose(x, p, train)  # type: ignore[no-any-return]


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
            return aten.scaled_dot_product_attention.default.decompose(  # type: ignore[no-any-return]
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa and kind != "flash":
            key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
            value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
        if kind == "flash":
            return _flash(query, key, value, dropout_p, is_causal, scale)
        mask = _expanded_mask(attn_mask, query, key)
        return aten._scaled_dot_product_efficient_attention(  # type: ignore[no-any-return]
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


def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float, causal: bool, scale: float | None) -> Any:
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
