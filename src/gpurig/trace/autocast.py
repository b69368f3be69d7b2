"""CUDA's autocast on the planned device.

PyTorch's own autocast kernels ask each tensor in C++ whether it lives on CUDA, and the planned device answers "meta" there
(see `device`). So the same rules are registered once more, in Python, on the AutocastCUDA key, which the planned tensors
carry and host tensors don't.

Source of the lists: ATen/autocast_mode.h of PyTorch 2.13 (names of operators only); a test compares them with the header
of the installed version.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch._ops import OpOverload

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
FP32_SET_OPT_DTYPE = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
FP32_APPEND_DTYPE = ("norm.Scalar", "norm.ScalarOpt_dim")
PROMOTE = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip

_KEY = torch._C.DispatchKey.AutocastCUDA


def overload(name: str) -> OpOverload | None:
    """The aten operator "name" or "name.overload"; None where this PyTorch has none."""
    base, _, variant = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, variant or "default", None) if packet is not None else None


class Autocast:
    """Casts as CUDA's autocast does, with its cache of cast weights.

    Args:
        on_device: Whether a tensor lives on the planned device.
    """

    def __init__(self, on_device: Callable[[torch.Tensor], bool]) -> None:
        self._on_device = on_device
        self._cache: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def install(self, library: torch.library.Library) -> None:
        """Register the rules in `library` (an IMPL library of aten)."""
        policies: tuple[tuple[Iterable[str], Callable[[OpOverload], Callable[..., Any]]], ...] = (
            (LOWER_PRECISION, self._lower),
            (FP32, self._fp32),
            (FP32_SET_OPT_DTYPE, self._set_opt_dtype),
            (FP32_APPEND_DTYPE, self._append_dtype),
            (PROMOTE, self._promote),
        )
        for names, policy in policies:
            for name in names:
                op = overload(name)
                if op is not None:
                    library.impl(op, policy(op), "AutocastCUDA")

    def clear_cache(self) -> None:
        """Forget the cast weights, as leaving the outermost autocast block does."""
        self._cache.clear()

    # --- casting ------------------------------------------------------------------------------------------------------
    def _eligible(self, value: object) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.dtype is not torch.float64
            and self._on_device(value)
        )

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._cast(v, dtype) for v in value)
        if not self._eligible(value) or value.dtype is dtype:
            return value
        cacheable = (
            dtype is torch.get_autocast_dtype("cuda")
            and value.dtype is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not cacheable:
            return value.to(dtype)
        known = self._cache.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        cast = value.to(dtype)
        self._cache[id(value)] = (weakref.ref(value), cast)
        return cast

    def _cast_all(self, args: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        # last argument first, the order in which the compiled C++ casts them: it decides the allocator's layout
        return tuple(self._cast(a, dtype) for a in reversed(args))[::-1]

    # --- policies -----------------------------------------------------------------------------------------------------
    def _lower(self, op: OpOverload) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with _below_autocast():
                dtype = torch.get_autocast_dtype("cuda")
                return op(*self._cast_all(args, dtype), **{k: self._cast(v, dtype) for k, v in kwargs.items()})

        return kernel

    def _fp32(self, op: OpOverload) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with _below_autocast():
                cast = {k: self._cast(v, torch.float32) for k, v in kwargs.items()}
                return op(*self._cast_all(args, torch.float32), **cast)

        return kernel

    def _set_opt_dtype(self, op: OpOverload) -> Callable[..., Any]:
        names = [a.name for a in op._schema.arguments]
        position = names.index("dtype")

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with _below_autocast():
                given = args[position] if position < len(args) else kwargs.get("dtype")
                if given is None and self._eligible(args[0]):
                    if position < len(args):
                        args = (*args[:position], torch.float32, *args[position + 1 :])
                    else:
                        kwargs = {**kwargs, "dtype": torch.float32}
                return op(*args, **kwargs)

        return kernel

    def _append_dtype(self, op: OpOverload) -> Callable[..., Any]:
        def kernel(self_: torch.Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
            with _below_autocast():
                if not self._eligible(self_):
                    return op(self_, p) if dim is None else op(self_, p, dim, keepdim)
                if dim is None:
                    return torch.ops.aten.norm.ScalarOpt_dtype(self_, p, dtype=torch.float32)
                return torch.ops.aten.norm.ScalarOpt_dim_dtype(self_, p, dim, keepdim, dtype=torch.float32)

        return kernel

    def _promote(self, op: OpOverload) -> Callable[..., Any]:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            with _below_autocast():
                tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else (a,))]
                widest = torch.get_autocast_dtype("cuda")
                if any(self._eligible(t) and t.dtype is torch.float32 for t in tensors):
                    widest = torch.float32
                return op(*self._cast_all(args, widest), **{k: self._cast(v, widest) for k, v in kwargs.items()})

        return kernel


def _below_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY))
