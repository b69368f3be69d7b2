"""apex's optimizers, norms and mixed precision, by PyTorch's own fused ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator


class FusedAdam(torch.optim.AdamW):
    """One kernel for all tensors."""

    def __init__(self, params: Any, lr: float = 1e-3, bias_correction: bool = True, **options: Any) -> None:
        del bias_correction
        kept = {k: v for k, v in options.items() if k in ("betas", "eps", "weight_decay", "amsgrad")}
        super().__init__(params, lr=lr, fused=True, **kept)


class FusedSGD(torch.optim.SGD):
    """One kernel for all tensors."""

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.0, **options: Any) -> None:
        kept = {k: v for k, v in options.items() if k in ("dampening", "weight_decay", "nesterov")}
        super().__init__(params, lr=lr, momentum=momentum, fused=True, **kept)


def initialize(models: Any, optimizers: Any = None, opt_level: str = "O1", **_: Any) -> Any:
    """O1 runs forward passes under autocast; O2 and O3 cast the model."""
    for model in models if isinstance(models, (list, tuple)) else [models]:
        if opt_level == "O1":
            _autocast(model)
        elif opt_level in ("O2", "O3"):
            model.half()
            model.register_forward_pre_hook(_halve)
    return models if optimizers is None else (models, optimizers)


def _autocast(model: nn.Module) -> None:
    forward = model.forward

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.float16):
            return forward(*args, **kwargs)

    model.forward = cast


def _halve(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    del module
    return tuple(a.half() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)


@contextlib.contextmanager
def scale_loss(loss: torch.Tensor, *_: Any, **__: Any) -> Iterator[torch.Tensor]:
    yield loss * 1.0


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


_NORMS: dict[str, object] = {
    "FusedLayerNorm": nn.LayerNorm,
    "MixedFusedLayerNorm": nn.LayerNorm,
    "FusedRMSNorm": nn.RMSNorm,
    "MixedFusedRMSNorm": nn.RMSNorm,
}
MODULES: dict[str, dict[str, object]] = {
    "apex": {},
    "apex.amp": {
        "initialize": initialize,
        "scale_loss": scale_loss,
        "master_params": master_params,
        "state_dict": dict,
        "load_state_dict": lambda _: None,
    },
    "apex.optimizers": {
        "FusedAdam": FusedAdam,
        "FusedLAMB": FusedAdam,
        "FusedNovoGrad": FusedAdam,
        "FusedSGD": FusedSGD,
    },
    "apex.normalization": _NORMS,
    "apex.normalization.fused_layer_norm": _NORMS,
    "apex.parallel": {
        "DistributedDataParallel": nn.parallel.DistributedDataParallel,
        "convert_syncbn_model": nn.SyncBatchNorm.convert_sync_batchnorm,
        "SyncBatchNorm": nn.SyncBatchNorm,
    },
}
