"""Values that are known although the tensor is fake.

Small integer and bool tensors that came from the host, or from constants, keep their true value through the operators
that follow, so that masks, lengths and flags read on the host are true. Everything else has a plausible value.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

MAX_INT_ELEMENTS = 1 << 21
MAX_FLOAT_ELEMENTS = 64
_ATTRIBUTE = "_gpurig_value"
_CONSTANTS = frozenset(
    ["zeros", "ones", "full", "arange", "scalar_tensor", "eye", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "linspace"]
)
# what these say of data that we don't know: a healthy run has neither NaN nor infinity
_HEALTHY = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True}
_KEEPS_UNIFORM = frozenset(["any", "all", "clone", "view", "reshape", "expand", "squeeze", "unsqueeze", "detach", "_to_copy", "alias", "max", "min"])


def small(shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a tensor of this shape is worth following by value."""
    limit = MAX_FLOAT_ELEMENTS if dtype.is_floating_point or dtype.is_complex else MAX_INT_ELEMENTS
    count = 1
    for n in shape:
        count *= n
    return count <= limit


class KnownValues:
    """True values of planned tensors, kept on the tensors themselves and dropped when a write makes them stale."""

    def __init__(self) -> None:
        self._writes: dict[int, int] = {}  # storage -> number of writes of unknown data
        self._watch: dict[int, weakref.ref[Any]] = {}

    def get(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true value on the host, or None if it is not known."""
        entry = tensor.__dict__.get(_ATTRIBUTE)
        if entry is None:
            return None
        value, writes = entry
        if self._writes and self._writes.get(tensor.untyped_storage()._cdata, 0) != writes:
            return None
        return value  # type: ignore[no-any-return]

    def set(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Remember the true value of a planned tensor."""
        writes = self._writes.get(tensor.untyped_storage()._cdata, 0) if self._writes else 0
        tensor.__dict__[_ATTRIBUTE] = (value, writes)

    def forget(self, tensor: torch.Tensor) -> None:
        """A write of unknown data: this tensor and all that share its storage are no longer known."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._watch:
            self._watch[key] = weakref.ref(storage, lambda _, key=key: self._drop(key))
        self._writes[key] = self._writes.get(key, 0) + 1

    def _drop(self, key: int) -> None:
        self._writes.pop(key, None)
        self._watch.pop(key, None)

    # --- through operators --------------------------------------------------------------------------------------------
    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Carry known values through one operator that has just run on fake tensors."""
        name = func._schema.name[6:]  # without "aten::"
        if func._schema.is_mutable:
            self._follow_write(func, name, args, kwargs)
            return
        outs = [o for o in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(o, FakeTensor)]
        if not outs:
            return
        if name in _HEALTHY:
            self.set(outs[0], torch.tensor(_HEALTHY[name]).expand(outs[0].shape))
            return
        if not all(small(o.shape, o.dtype) for o in outs):
            self._uniform(name, args, outs)
            return
        real_args, known = self._real(args)
        real_kwargs, known_kwargs = self._real(kwargs)
        if not (known and known_kwargs) or torch.Tag.nondeterministic_seeded in func.tags or name.startswith("empty"):
            return
        if not _has_tensor(args) and name not in _CONSTANTS:
            return
        if "device" in real_kwargs:
            real_kwargs["device"] = torch.device("cpu")
        try:
            with torch.no_grad():
                result = func(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            return  # no CPU kernel for this dtype, say: then the value is simply not known
        results = result if isinstance(result, (tuple, list)) else (result,)
        for fake, real in zip(outs, results, strict=False):
            if isinstance(real, torch.Tensor) and real.shape == fake.shape:
                self.set(fake, real)

    def _uniform(self, name: str, args: tuple[Any, ...], outs: list[FakeTensor]) -> None:
        """Large tensors of one known value (torch.isnan(x)) stay known through reductions."""
        if name in _KEEPS_UNIFORM and isinstance(args[0], FakeTensor):
            value = self.get(args[0])
            if value is not None and value.numel() and all(s == 0 for s in value.stride()):
                self.set(outs[0], value.reshape(-1)[0].expand(outs[0].shape))

    def _follow_write(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name == "_amp_foreach_non_finite_check_and_unscale_":
            return  # found_inf stays 0: gradients are taken to be finite
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        tensors = [t for w in written for t in (w if isinstance(w, (list, tuple)) else (w,))]
        touched = [t for t in tensors if isinstance(t, FakeTensor) and _ATTRIBUTE in t.__dict__]
        if not touched:
            for t in tensors:
                if isinstance(t, FakeTensor) and t._is_view():
                    self.forget(t)  # a view without a value of its own may write into one that has
            return
        real_args, known = self._real(args)
        real_kwargs, known_kwargs = self._real(kwargs)
        random = torch.Tag.nondeterministic_seeded in func.tags
        if known and known_kwargs and not random and name not in _HEALTHY:
            try:
                with torch.no_grad():
                    func(*real_args, **real_kwargs)
            except (RuntimeError, NotImplementedError, IndexError, TypeError):
                pass
            else:
                return
        for t in touched:
            self.forget(t)

    def _real(self, value: Any) -> tuple[Any, bool]:
        """`value` with planned tensors replaced by their true values, and whether all of them are known."""
        if isinstance(value, FakeTensor):
            real = self.get(value)
            return real, real is not None
        if isinstance(value, torch.device):
            return torch.device("cpu"), True
        if isinstance(value, (list, tuple)):
            pairs = [self._real(v) for v in value]
            return type(value)(p[0] for p in pairs), all(p[1] for p in pairs)
        if isinstance(value, dict):
            return_pairs = {k: self._real(v) for k, v in value.items()}
            return {k: p[0] for k, p in return_pairs.items()}, all(p[1] for p in return_pairs.values())
        return value, True


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (list, tuple)) and any(_has_tensor(v) for v in value)


def plausible(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor with harmless values in the place of data that does not exist: true, 0, or 1.0."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if dtype is torch.bool or ((dtype.is_floating_point or dtype.is_complex) and tensor.numel() <= 1 << 20):
        return torch.ones(shape, dtype=dtype)
    return torch.zeros(shape, dtype=dtype)
