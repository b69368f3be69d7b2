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
_GUESS = "_gpurig_guess"
_CONSTANTS = frozenset(
    "zeros ones full arange scalar_tensor eye zeros_like ones_like full_like new_zeros new_ones new_full linspace "
    "randint randperm".split()
)
_DRAWN = ("randint", "randperm")  # random integers that are as good as those a GPU would draw: labels, tokens, orders
# what these say of data that we don't know: a healthy run has neither NaN nor infinity
HEALTHY = {"isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True}
_NOT_FINITE = (float("inf"), float("-inf"))
_KEEPS_UNIFORM = frozenset(
    "any all clone view reshape expand squeeze unsqueeze detach alias max min amax amin slice select t transpose permute "
    "_unsafe_view index_select cat stack split _to_copy".split()
)


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
        if tensor.layout is not torch.strided:
            return None
        if self._writes and self._writes.get(tensor.untyped_storage()._cdata, 0) != writes:
            return None
        return value

    def set(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Remember the true value of a planned tensor."""
        if tensor.layout is not torch.strided:
            return
        writes = self._writes.get(tensor.untyped_storage()._cdata, 0) if self._writes else 0
        tensor.__dict__[_ATTRIBUTE] = (value, writes)

    def set_healthy(self, name: str, out: torch.Tensor) -> None:
        """The answer of a healthy run to `name`, one of HEALTHY."""
        self.set(out, torch.tensor(HEALTHY[name]).expand(out.shape))

    def forget(self, tensor: torch.Tensor) -> None:
        """A write of unknown data: this tensor and all that share its storage are no longer known."""
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._watch:
            self._watch[key] = weakref.ref(storage, lambda _, key=key: self._drop(key))  # type: ignore[misc]
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
        if self._says_of_numbers(name, args, outs[0]):
            return
        if _none_known(args):
            _guess_count(name, args, outs[0])
            return
        real_args, known = self._real(args)
        real_kwargs, known_kwargs = self._real(kwargs)
        is_small = all(small(o.shape, o.dtype) for o in outs)
        if is_small and known and any(_is_expanded(v) for v in real_args):
            is_small = False  # stands for a large tensor, whose true elements were never made
        if not is_small:
            self._uniform(func, name, args, kwargs, outs)
            return
        if known and known_kwargs and _is_determined(func, name, args):
            self._compute(func, real_args, real_kwargs, outs)

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outs: list[FakeTensor]) -> None:
        """The true results of an operator on true arguments."""
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        try:
            with torch.no_grad():
                result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError, TypeError):
            return  # no CPU kernel for this dtype, say: then the value is simply not known
        results = result if isinstance(result, (tuple, list)) else (result,)
        for fake, real in zip(outs, results, strict=False):
            if isinstance(real, torch.Tensor) and real.shape == fake.shape:
                self.set(fake, real)

    def _says_of_numbers(self, name: str, args: tuple[Any, ...], out: FakeTensor) -> bool:
        """Whether an operator asks for NaN or infinity, whose answer in a healthy run is known."""
        if name in HEALTHY:
            self.set_healthy(name, out)
            return True
        if name not in ("eq", "ne"):
            return False
        if args[0] is args[1]:  # a NaN is what differs from itself
            self.set(out, torch.tensor(name == "eq").expand(out.shape))
            return True
        if args[0].is_floating_point() and isinstance(args[1], float) and args[1] in _NOT_FINITE:
            self.set(out, torch.tensor(name == "ne").expand(out.shape))
            return True
        return False

    def _uniform(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outs: list[FakeTensor]
    ) -> None:
        """Large tensors of one known value (torch.isnan(x)) stay known through reductions and elementwise operators."""
        given = [a for a in args if isinstance(a, torch.Tensor)]
        values = {id(t): self._one_value(t) for t in given}
        if not given or any(v is None for v in values.values()):
            return
        if name in _KEEPS_UNIFORM:
            value = values[id(given[0])]
        elif torch.Tag.pointwise in func.tags and not kwargs.get("out"):
            real = tuple(values[id(a)] if isinstance(a, torch.Tensor) else a for a in args)
            try:
                value = func(*real, **{k: v for k, v in kwargs.items() if k != "device"})
            except (RuntimeError, TypeError):
                return
        elif name in ("sum", "mean", "count_nonzero") and not values[id(given[0])].any():  # type: ignore[union-attr]
            value = torch.zeros((), dtype=outs[0].dtype)
        else:
            return
        if isinstance(value, torch.Tensor):
            self.set(outs[0], value.to(outs[0].dtype).expand(outs[0].shape))

    def _one_value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value that all elements have, as a scalar; None if there is none or it isn't known."""
        value = self.get(tensor) if isinstance(tensor, FakeTensor) else tensor if tensor.dim() == 0 else None
        if value is None or not value.numel() or any(s != 0 for s in value.stride()):
            return None
        return value.reshape(-1)[0]

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
        if known and known_kwargs and not random and name not in HEALTHY:
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


def _guess_count(name: str, args: tuple[Any, ...], out: FakeTensor) -> None:
    """How many are true is read as half of them: a count of hits is not zero in a run that learns."""
    if name == "sum" and args[0].dtype is torch.bool and out.dim() == 0:
        out.__dict__[_GUESS] = max(1, args[0].numel() // 2)


def _is_determined(func: Any, name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operator's result follows from its arguments alone."""
    if torch.Tag.nondeterministic_seeded in func.tags and name not in _DRAWN:
        return False
    return not name.startswith("empty") and (_has_tensor(args) or name in _CONSTANTS)


def _none_known(args: tuple[Any, ...]) -> bool:
    """Whether the first tensor among the arguments is planned and has no known value: then nothing follows from it."""
    for value in args:
        if isinstance(value, FakeTensor):
            return _ATTRIBUTE not in value.__dict__
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], FakeTensor):
            return _ATTRIBUTE not in value[0].__dict__
    return False


def _is_expanded(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor) and value.numel() > MAX_FLOAT_ELEMENTS and all(s == 0 for s in value.stride())
    )


def _has_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    return isinstance(value, (list, tuple)) and any(_has_tensor(v) for v in value)


def plausible(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor with harmless values in the place of data that does not exist: true, 0, or 1.0."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    if _GUESS in tensor.__dict__:
        return torch.tensor(tensor.__dict__[_GUESS], dtype=dtype)
    if dtype is torch.bool or ((dtype.is_floating_point or dtype.is_complex) and tensor.numel() <= 1 << 20):
        return torch.ones(shape, dtype=dtype)
    return torch.zeros(shape, dtype=dtype)
