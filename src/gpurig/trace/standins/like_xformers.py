"""xformers' attention, by PyTorch's own. Tensors are (batch, length, heads, head_dim) or (batch, length, head_dim)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class LowerTriangularMask:
    """The causal mask."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def memory_efficient_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: Any = None, p: float = 0.0,
    scale: float | None = None, *_: Any, **__: Any,
) -> torch.Tensor:  # fmt: skip
    flat = query.dim() == 3
    q, k, v = (t.unsqueeze(1) if flat else t.transpose(1, 2) for t in (query, key, value))
    mask = attn_bias if isinstance(attn_bias, torch.Tensor) else None
    causal = isinstance(attn_bias, LowerTriangularMask)
    out = F.scaled_dot_product_attention(q, k, v, mask, p, causal, scale=scale)
    return out.squeeze(1) if flat else out.transpose(1, 2)


_OPS: dict[str, object] = {
    "memory_efficient_attention": memory_efficient_attention,
    "LowerTriangularMask": LowerTriangularMask,
    "MemoryEfficientAttentionFlashAttentionOp": None,
    "MemoryEfficientAttentionCutlassOp": None,
}
MODULES: dict[str, dict[str, object]] = {
    "xformers": {"__version__": "0.0.30"},
    "xformers.ops": _OPS,
    "xformers.ops.fmha": _OPS,
    "xformers.ops.fmha.attn_bias": {"LowerTriangularMask": LowerTriangularMask},
}
