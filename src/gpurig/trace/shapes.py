"""Results of operators that have been seen before with the same shapes: made directly instead of being derived again.

A model repeats its layers and a trace repeats its steps, so most calls are repetitions. PyTorch's own cache of fake results
spends most of its time on a key for every case there is; here a call is cached only if its result is new dense tensors, views
of its first argument, or an argument itself, and everything that the result depends on is in a short key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_empty_strided = torch.ops.aten.empty_strided.default
_META = torch.device("meta")
_PLAIN = (int, float, bool, complex)


class _Uncacheable(Exception):
    """The call depends on something that is not in the key, or its result is of another kind."""


class SeenResults:
    """Results by operator and shapes of arguments.

    Args:
        fake_mode: Derives results that have not been seen.
        device: Device of new tensors.
    """

    def __init__(self, fake_mode: FakeTensorMode, device: torch.device) -> None:
        self._fake_mode = fake_mode
        self._device = device
        self._recipes: dict[Any, Any] = {}
        self._never: set[Any] = set()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call on planned tensors, as `fake_mode` would give it."""
        if func in self._never or torch.is_inference_mode_enabled():
            return self._fake_mode.dispatch(func, (), args, kwargs)
        try:
            key = (func, _signature(args), _signature(tuple(kwargs.items())) if kwargs else None)
        except _Uncacheable:
            return self._fake_mode.dispatch(func, (), args, kwargs)
        recipe = self._recipes.get(key)
        if recipe is not None:
            return self._make(recipe, args)
        out = self._fake_mode.dispatch(func, (), args, kwargs)
        if not args or torch.Tag.inplace_view in func.tags:
            self._never.add(func)
            return out
        try:
            self._recipes[key] = ("plan", self._recipe(out, args))
        except _Uncacheable:
            self._never.add(func)
        return out

    # --- from a result to a recipe --------------------------------------------------------------------------------------
    def _recipe(self, out: Any, args: tuple[Any, ...]) -> Any:
        if out is None:
            return None
        if isinstance(out, (tuple, list)):
            return list if isinstance(out, list) else tuple, [self._recipe(o, args) for o in out]
        if not isinstance(out, FakeTensor) or out.fake_device != self._device or out.dtype.is_complex:
            raise _Uncacheable
        for index, value in enumerate(args):
            if out is value:
                return index
        storage = out.untyped_storage()
        shape, stride, offset = tuple(out.shape), out.stride(), out.storage_offset()
        first = args[0]
        if isinstance(first, FakeTensor) and first.untyped_storage()._cdata == storage._cdata:
            return "view", shape, stride, offset, out.dtype
        if any(t.untyped_storage()._cdata == storage._cdata for t in _tensors(args)):
            raise _Uncacheable
        wanted = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
        if offset or storage.nbytes() != wanted * out.dtype.itemsize:
            raise _Uncacheable
        return "new", shape, stride, out.dtype

    # --- from a recipe to a result --------------------------------------------------------------------------------------
    def _make(self, recipe: Any, args: tuple[Any, ...]) -> Any:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return self._build(recipe[1], args)

    def _build(self, recipe: Any, args: tuple[Any, ...]) -> Any:
        if recipe is None:
            return None
        if isinstance(recipe, int):
            return args[recipe]
        kind = recipe[0]
        if kind == "new":
            _, shape, stride, dtype = recipe
            return FakeTensor(self._fake_mode, _empty_strided(shape, stride, dtype=dtype, device=_META), self._device)
        if kind == "view":
            _, shape, stride, offset, dtype = recipe
            meta = torch.empty(0, dtype=dtype, device=_META)
            meta.set_(args[0].untyped_storage(), offset, shape, stride)
            return FakeTensor(self._fake_mode, meta, self._device)
        container, parts = recipe
        return container(self._build(p, args) for p in parts)


def _signature(value: Any) -> Any:
    """All of an argument that a result can depend on, hashable."""
    if isinstance(value, FakeTensor):
        if value.dtype.is_complex:
            raise _Uncacheable
        return value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device
    if value is None or isinstance(value, (str, torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return value
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (tuple, list)):
        return tuple(_signature(v) for v in value)
    if isinstance(value, torch.Tensor) and not value.dim():
        return "host", value.dtype
    raise _Uncacheable


def _tensors(values: Any) -> Any:
    for value in values:
        if isinstance(value, FakeTensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)
