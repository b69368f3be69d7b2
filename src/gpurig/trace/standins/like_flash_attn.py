"""flash-attn's functions, by PyTorch's own flash attention. Tensors are (batch, length, heads, head_dim)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, *_: Any, return_attn_probs: bool = False, **__: Any,
) -> Any:  # fmt: skip
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(
        q, k, v, None, dropout_p, causal, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
    ).transpose(1, 2)
    return (out, None, None) if return_attn_probs else out


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *args, **kwargs)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *args, **kwargs)


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """Sequences of several lengths one after another (tokens, heads, head_dim): taken as sequences of the longest."""
    del cu_seqlens_q, cu_seqlens_k
    longest = max(1, min(int(max_seqlen_q), int(max_seqlen_k), q.shape[0]))
    count = max(1, q.shape[0] // longest)
    whole = count * longest
    out = flash_attn_func(*(t[:whole].reshape(count, longest, *t.shape[1:]) for t in (q, k, v)), *args, **kwargs)
    flat = out.reshape(whole, *out.shape[2:])
    return torch.cat((flat, q[whole:])) if whole < q.shape[0] else flat


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, longest: int, *args: Any, **kw: Any
) -> Any:
    return flash_attn_varlen_func(*qkv.unbind(1), cu_seqlens, cu_seqlens, longest, longest, *args, **kw)


# --- flash_attn.bert_padding: every position is taken to hold a token ------------------------------------------------------
def index_first_axis(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return x[indices]


def unpad_input(hidden: torch.Tensor, attention_mask: torch.Tensor, *_: Any) -> Any:
    batch, length = attention_mask.shape[:2]
    indices = torch.arange(batch * length, device=hidden.device)
    starts = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=hidden.device)
    flat = hidden.reshape(batch * length, *hidden.shape[2:])
    return flat, indices, starts, length, attention_mask.sum(1, dtype=torch.int32)


def pad_input(hidden: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    out = hidden.new_zeros(batch * seqlen, *hidden.shape[1:])
    out[indices] = hidden
    return out.view(batch, seqlen, *hidden.shape[1:])


_INTERFACE: dict[str, object] = {
    function.__name__: function
    for function in (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_qkvpacked_func,
    )
}
MODULES: dict[str, dict[str, object]] = {
    "flash_attn": {"__version__": "2.7.4", **_INTERFACE},
    "flash_attn.flash_attn_interface": _INTERFACE,
    "flash_attn.bert_padding": {
        "index_first_axis": index_first_axis,
        "unpad_input": unpad_input,
        "pad_input": pad_input,
    },
}
