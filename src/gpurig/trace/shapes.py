"""Shapes remembered: the same operator on arguments of the same shape gives results of the same shape.

A training step repeats a few hundred distinct calls thousands of times. PyTorch's own cache for fake tensors spends most
of a trace on its keys; this one keeps what matters on the planned device and nothing else.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

if TYPE_CHECKING:
    from gpurig.model.trace import Op

aten = torch.ops.aten
_META = torch.device("meta")
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_empty_strided = aten.empty_strided.default


class Kind(Enum):
    """What an operator's results are."""

    FRESH = "fresh"  # new storages
    SAME = "same"  # its first argument, written to
    NOTHING = "nothing"  # it writes to lists of tensors
    VIEW = "view"  # of its first argument's storage
    OTHER = "other"  # anything else: not remembered


class _Unknown(Exception):
    """An argument that a key cannot be made of."""


class Remembered:
    """The result of one kind of call: (shape, strides, dtype, offset) of each tensor; and its cost, once described."""

    __slots__ = ("flags", "is_list", "op", "results")

    def __init__(self, results: tuple[Any, ...], *, is_list: bool) -> None:
        self.results = results
        self.is_list = is_list
        self.op: Op | None = None
        self.flags: tuple[bool, bool] | None = None


class ShapeMemory:
    """Results of calls on the planned device by operator and argument shapes."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        self._mode = mode
        self._device = device
        self._kinds: dict[Any, Kind] = {}
        self._known: dict[Any, Remembered] = {}

    def key(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the result depends on; None if it is not worth remembering."""
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        if kind is Kind.OTHER or torch.is_inference_mode_enabled():
            return None  # views of tensors born in inference mode must be made by PyTorch itself
        parts: list[Any] = [func]
        try:
            _add(parts, args, offsets=kind is Kind.VIEW)
            if kwargs:
                for name, value in kwargs.items():
                    parts.append(name)
                    _add(parts, (value,), offsets=False)
        except _Unknown:
            return None
        if not any(isinstance(a, (torch.Tensor, list)) for a in args):
            parts.append(torch.get_default_dtype())
        return tuple(parts)

    def recall(self, key: Any) -> Remembered | None:
        """What was learnt of such a call."""
        return self._known.get(key)

    def make(self, known: Remembered, func: Any, args: tuple[Any, ...]) -> Any:
        """The result of a call that is known."""
        kind = self._kinds[func]
        if kind is Kind.SAME:
            return args[0]
        if kind is Kind.NOTHING:
            return None
        made = [self._tensor(r, args[0] if kind is Kind.VIEW else None) for r in known.results]
        if known.is_list:
            return made if _returns_list(func) else tuple(made)
        return made[0]

    def learn(self, key: Any, func: Any, args: tuple[Any, ...], out: Any) -> Remembered | None:
        """Remember a call that has just been made; None if its result is unusual."""
        kind = self._kinds[func]
        known: Remembered | None = None
        if kind is Kind.SAME:
            known = Remembered((), is_list=False) if out is args[0] else None
        elif kind is Kind.NOTHING:
            known = Remembered((), is_list=False) if out is None else None
        else:
            is_list = isinstance(out, (list, tuple))
            results = tuple(self._described(t, view=kind is Kind.VIEW) for t in (out if is_list else (out,)))
            if all(r is not None for r in results):
                known = Remembered(results, is_list=is_list)
        if known is None:
            self._kinds[func] = Kind.OTHER
        else:
            self._known[key] = known
        return known

    def _described(self, tensor: Any, *, view: bool) -> Any:
        if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or tensor.fake_device != self._device:
            return None
        shape, strides, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        if not view:
            plain = _empty_strided(shape, strides, dtype=tensor.dtype, device=_META)
            if offset or plain.untyped_storage().nbytes() != tensor.untyped_storage().nbytes():
                return None
        return (shape, strides, tensor.dtype, offset)

    def _tensor(self, described: Any, base: torch.Tensor | None) -> FakeTensor:
        shape, strides, dtype, offset = described
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if base is None:
                meta = _empty_strided(shape, strides, dtype=dtype, device=_META)
            else:
                meta = _empty_strided((0,), (1,), dtype=dtype, device=_META)
                meta.set_(base.untyped_storage(), offset, shape, strides)
        return FakeTensor(self._mode, meta, self._device)


def _add(parts: list[Any], values: Any, *, offsets: bool) -> None:
    for value in values:
        if isinstance(value, FakeTensor):
            if value.layout is not torch.strided or value.is_conj() or value.is_neg():
                raise _Unknown
            parts.append((tuple(value.shape), value.stride(), value.dtype, value.fake_device))
            if offsets:
                parts.append(value.storage_offset())
        elif isinstance(value, _PLAIN):
            parts.append(type(value))  # True is not 1 and 1 is not 1.0
            parts.append(value)
        elif isinstance(value, (list, tuple)):
            parts.append(len(value))
            _add(parts, value, offsets=offsets)
        elif isinstance(value, torch.Tensor) and value.dim() == 0:
            parts.append(value.dtype)
        else:
            raise _Unknown


def _returns_list(func: Any) -> bool:
    returns = func._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def _kind(func: Any) -> Kind:
    schema = func._schema
    if func.namespace != "aten" or torch.Tag.inplace_view in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return Kind.OTHER
    aliases = [r.alias_info for r in schema.returns]
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    if not schema.returns:
        return Kind.NOTHING if written and schema.name.endswith("_") else Kind.OTHER
    if all(alias is None for alias in aliases):
        return Kind.FRESH
    first = schema.arguments[0].alias_info if schema.arguments else None
    if len(aliases) != 1 or first is None or (aliases[0].before_set != first.before_set and not _returns_list(func)):
        return Kind.OTHER
    if first.is_write:
        return Kind.SAME
    return Kind.OTHER if written else Kind.VIEW
