"""Optimizers of the runs that are rebuilt: torch's own by name, and the loops of older scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gpurig.errors import InputError

if TYPE_CHECKING:
    import torch

Step = Callable[[], None]


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter], *, foreach: bool) -> torch.optim.Optimizer:
    """A named optimizer over the parameters that need gradients.

    `foreach` is what the framework version would choose by itself: multi-tensor kernels from torch 2.0 on, a loop over
    parameters before.

    Raises:
        InputError: the name is not known.
    """
    import torch

    trainable = [p for p in parameters if p.requires_grad]
    optim = torch.optim
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: optim.SGD(trainable, lr=0.01, foreach=foreach),
        "sgd-momentum": lambda: optim.SGD(trainable, lr=0.01, momentum=0.9, weight_decay=1e-4, foreach=foreach),
        "rmsprop": lambda: optim.RMSprop(trainable, lr=0.01, momentum=0.9, weight_decay=1e-5, foreach=foreach),
        "adam": lambda: optim.Adam(trainable, lr=1e-3, foreach=foreach),
        "adamw": lambda: optim.AdamW(trainable, lr=1e-3, foreach=foreach),
        "adamw-loop": lambda: optim.AdamW(trainable, lr=1e-3, foreach=False),
        "adam-fused": lambda: optim.Adam(trainable, lr=1e-3, fused=True),
        "adamw-fused": lambda: optim.AdamW(trainable, lr=1e-3, fused=True),
        "lamb": lambda: _lamb(trainable),
        "bert-adam": lambda: _bert_adam(trainable),
    }
    if name not in makers:
        raise InputError(f"unknown optimizer {name!r}", details=(", ".join(sorted(makers)),))
    return makers[name]()


def _lamb(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """LAMB with multi-tensor kernels, the work of apex's FusedLAMB: Adam's moments, then one trust ratio per tensor."""
    import torch

    class Lamb(torch.optim.Optimizer):
        def step(self, closure: Callable[[], float] | None = None) -> None:
            del closure
            with torch.no_grad():
                self._update()

        def _update(self) -> None:
            params = [p for p in self.param_groups[0]["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
                    self.state[p]["exp_avg_sq"] = torch.zeros_like(p)
            first = [self.state[p]["exp_avg"] for p in params]
            second = [self.state[p]["exp_avg_sq"] for p in params]
            torch._foreach_norm(grads)
            torch._foreach_lerp_(first, grads, 0.1)
            torch._foreach_mul_(second, 0.999)
            torch._foreach_addcmul_(second, grads, grads, 0.001)
            torch._foreach_addcdiv_(grads, first, second)
            torch._foreach_norm(params)
            torch._foreach_norm(grads)
            torch._foreach_add_(params, grads, alpha=-1e-3)

    return Lamb(parameters, {})


def _bert_adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Adam as the BERT scripts of 2018 to 2022 wrote it: a Python loop over tensors, each gradient clipped by itself."""
    import torch

    class BertAdam(torch.optim.Optimizer):
        def step(self, closure: Callable[[], float] | None = None) -> None:
            del closure
            with torch.no_grad():
                self._update()

        def _update(self) -> None:
            for p in self.param_groups[0]["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["next_m"] = torch.zeros_like(p)
                    state["next_v"] = torch.zeros_like(p)
                coefficient = torch.clamp(1.0 / (torch.linalg.vector_norm(p.grad) + 1e-6), max=1.0)
                p.grad.mul_(coefficient)
                state["next_m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["next_v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                update = state["next_m"] / (state["next_v"].sqrt() + 1e-6)
                update += 0.01 * p
                p.add_(-(1e-5 * update))

    return BertAdam(parameters, {})
