"""The outermost module calls: whose batch it is, forced precision and checkpointing, evaluations before the first step."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gpurig.trace.device import on_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.trace.patches import Patches
    from gpurig.trace.script.request import ScriptRequest
    from gpurig.trace.session import Session

_CAST = {"fp16-amp": torch.float16, "bf16-amp": torch.bfloat16}
_REAL_EVALUATIONS = 3  # forward passes of an evaluation before the first step that are really followed


class ModelWatch:
    """Stands around each call of a module that no other module has made."""

    def __init__(self, session: Session, request: ScriptRequest) -> None:
        self._session = session
        self._cast = _CAST.get(request.precision or "")
        self._checkpointing = request.checkpointing
        self._forced_fp32 = request.precision == "fp32"
        self._inside = False
        self._trained = False
        self._leading: dict[int, int] = {}  # leading length of the input -> elements of the largest one seen
        self._seen: dict[Any, tuple[int, Any]] = {}
        self._prepared: set[int] = set()

    def install(self, patches: Patches) -> None:
        call = nn.Module.__call__
        watch = self

        def planned_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if watch._inside:
                return call(module, *args, **kwargs)
            watch._inside = True
            try:
                return watch._outermost(call, module, args, kwargs)
            finally:
                watch._inside = False

        patches.set(nn.Module, "__call__", planned_call)
        if self._forced_fp32:
            self._switch_autocast_off(patches)

    # --- what happens -------------------------------------------------------------------------------------------------
    def backward_done(self) -> None:
        """A backward pass has ended: from now on every forward pass counts."""
        self._trained = True
        self._seen.clear()

    def step_ended(self) -> None:
        """A step has ended and another begins."""
        self._leading.clear()

    def leading_length(self) -> int | None:
        """The leading length of what the step's models were called with: the batch, where no DataLoader says it."""
        return max(self._leading, key=lambda n: self._leading[n]) if self._leading else None

    def _outermost(
        self, call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        training = torch.is_grad_enabled()
        if training:
            self._note_lengths((*args, *kwargs.values()))
        elif not self._trained:
            return self._evaluated(call, module, args, kwargs)
        if self._checkpointing and training and id(module) not in self._prepared:
            self._prepared.add(id(module))
            self._switch_checkpointing_on(module)
        if self._cast is None:
            return call(module, *args, **kwargs)
        with torch.autocast("cuda", dtype=self._cast):
            return call(module, *args, **kwargs)

    def _note_lengths(self, values: tuple[Any, ...]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.dim() and on_device(value):
                length = int(value.shape[0])
                self._leading[length] = max(self._leading.get(length, 0), value.numel())

    def _evaluated(
        self, call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A forward pass before any training: after some of one shape, the rest give the same without being followed."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if not any(on_device(leaf) for leaf in leaves):
            return call(module, *args, **kwargs)
        key = (id(module), module.training, str(spec), tuple(_shape(leaf) for leaf in leaves))
        count, kept = self._seen.get(key, (0, None))
        if count >= _REAL_EVALUATIONS and kept is not None:
            self._session.recorder.note("evaluation", "an evaluation before the first step was cut short")
            return pytree.tree_map_only(FakeTensor, lambda t: t.detach(), kept)
        result = call(module, *args, **kwargs)
        whole = all(
            leaf is None or isinstance(leaf, (FakeTensor, int, float, str)) for leaf in pytree.tree_leaves(result)
        )
        self._seen[key] = (count + 1, result if whole else None)
        return result

    # --- forced ways to run -------------------------------------------------------------------------------------------
    def _switch_checkpointing_on(self, module: nn.Module) -> None:
        for part in module.modules():
            for name in ("gradient_checkpointing_enable", "set_grad_checkpointing"):
                switch = getattr(part, name, None)
                if callable(switch):
                    with contextlib.suppress(ValueError, NotImplementedError, AttributeError):
                        switch()
                        return
        self._session.recorder.note("checkpointing", "this model offers no switch for activation checkpointing")

    def _switch_autocast_off(self, patches: Patches) -> None:
        enter = torch.autocast.__init__

        def disabled(context: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            enter(context, device_type, *args, **kwargs)
            if device_type == "cuda":
                context._enabled = False

        patches.set(torch.autocast, "__init__", disabled)
        init = torch.amp.GradScaler.__init__

        def no_scaling(scaler: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
            init(scaler, device, *args, **kwargs)
            scaler._enabled = False

        patches.set(torch.amp.GradScaler, "__init__", no_scaling)


def _shape(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.dtype)
    return leaf if isinstance(leaf, (int, float, str, bool, type(None))) else type(leaf)
