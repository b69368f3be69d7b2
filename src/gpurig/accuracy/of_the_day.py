"""What older versions of torch and transformers did otherwise, where it decides memory."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


@contextlib.contextmanager
def days_softmax(*, keeps_input: bool) -> Iterator[None]:
    """Inside, softmax holds its input until backward if `keeps_input`, as torch before 1.11 did.

    Source: _softmax_backward_data took the input until 1.10 and takes only its type since (derivatives.yaml).
    """
    if not keeps_input:
        yield
        return
    import torch
    from torch.nn import functional

    class KeepingSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
            out = torch.softmax(x, dim)
            ctx.save_for_backward(x, out)
            ctx.dim = dim
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            x, out = ctx.saved_tensors
            return torch.ops.aten._softmax_backward_data(gradient, out, ctx.dim, x.dtype), None

    def softmax(
        input: torch.Tensor,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        if dtype is None and torch.is_autocast_enabled("cuda"):
            dtype = torch.float32
        x = input if dtype is None else input.to(dtype)
        out: torch.Tensor = KeepingSoftmax.apply(x, -1 if dim is None else dim)
        return out

    original = functional.softmax
    functional.softmax = softmax
    try:
        yield
    finally:
        functional.softmax = original


def kept_cache(model: torch.nn.Module) -> dict[str, object]:
    """The argument that makes a decoder return the keys and values that attention used, without copies of them.

    So did transformers before its cache classes joined each new piece to what it held (early 2024).
    """
    from transformers import DynamicCache

    class KeptCache(DynamicCache):
        def __init__(self) -> None:
            super().__init__()
            self.held: list[tuple[torch.Tensor, torch.Tensor]] = []

        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
        ) -> tuple[torch.Tensor, torch.Tensor]:
            self.held.append((key_states, value_states))
            return key_states, value_states

        def get_seq_length(self, *_: object, **__: object) -> int:
            return 0

    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": KeptCache(), "use_cache": True}
