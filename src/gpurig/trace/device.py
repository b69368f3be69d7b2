"""The planned device: a CUDA device that does not exist.

Host tensors stay real, so that data pipelines work as they are; what reaches the device becomes fake. A planned tensor
is a FakeTensor whose Python device is cuda:0 and whose dispatch keys are CUDA's, so that scripts, optimizers and
PyTorch's own Python code see a GPU. PyTorch's C++ code, which would look for a driver, is answered "meta" instead: a
device that has streams and guards of its own in every build. It follows that a request for a *meta* tensor made by C++
is a request for one on the planned device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from gpurig.trace.kernels import cudnn_rnn_shapes
from gpurig.trace.shapes import Remembered, ShapeMemory
from gpurig.trace.values import HEALTHY, KnownValues, plausible, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
_META = torch.device("meta")
_CPU = torch.device("cpu")
_INTERNAL = (str(Path(__file__).parent), str(Path(torch.__file__).parent))
_PRIM_DEVICE = torch.ops.prim.device.default
_COMPOSITE = "CompositeImplicitAutograd"


class OpObserver(Protocol):
    """Called after each operator on the planned device; `known` is the shape memory's entry of such calls, if any."""

    def __call__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, known: Remembered | None = None
    ) -> None: ...


_INITIALIZERS = frozenset(
    (
        aten.normal_.default, aten.uniform_.default, aten.erfinv_.default, aten.clamp_.default, aten.mul_.Tensor,
        aten.mul_.Scalar, aten.add_.Tensor, aten.add_.Scalar, aten.zero_.default, aten.fill_.Scalar, aten.div_.Tensor,
        aten.exponential_.default,
    )
)  # fmt: skip
LARGE_ELEMENTS = 1 << 20
_PATIENCE = 1000  # "true" so many times at one place is a loop that waits for "false" (rejection sampling, say)


def _is_weight(args: tuple[Any, ...]) -> bool:
    """Whether an in-place fill is of something as large as only weights are."""
    target = args[0]
    return target.is_floating_point() and target.numel() >= LARGE_ELEMENTS  # type: ignore[no-any-return]


def on_device(value: object) -> bool:
    """Whether `value` is a tensor on the planned device."""
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from tensors(value)


class _Shapes(FakeTensorMode):
    """Fake tensors whose device C++ takes for "meta", also inside PyTorch's decompositions."""

    def __init__(self, *, native: bool) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.native = native

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.native:
            return super().dispatch(func, types, args, kwargs or {})
        if func is _PRIM_DEVICE and not self.in_kernel_invocation and on_device(args[0]):
            return _META
        if kwargs:
            device = kwargs.get("device")
            if device is not None and device.type == "meta":
                kwargs = {**kwargs, "device": DEVICE}
        return super().dispatch(func, types, args, kwargs or {})


class PlannedDevice(TorchDispatchMode):
    """Sends operators to fake tensors where they touch the planned device, and leaves all others alone.

    Args:
        observe: Called after each operator on the planned device with (op, args, kwargs, result).
        note: Called with (code, text) when something had to be assumed.
        native: True where C++ really knows a CUDA device (the oracle of the tests): then it is told the truth.
    """

    def __init__(self, observe: OpObserver, note: Callable[[str, str], None], *, native: bool = False) -> None:
        super().__init__()
        self.fake_mode = _Shapes(native=native)
        self.values = KnownValues()
        self._memory = ShapeMemory(self.fake_mode, DEVICE)
        self.host_syncs = 0
        self.user_wants_meta = 0
        self._asked = 0
        self.invented: set[CodeType] = set()  # functions that have read values that were made up
        self.current = ""  # the operator on the planned device that ran last: named when something fails
        self._observe = observe
        self._note = note
        self._native = native
        self._composite: dict[Any, bool] = {}
        self._special: dict[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._item,
            aten._to_copy.default: self._to_copy,
            aten.copy_.default: self._copy_into,
            aten.equal.default: self._equal,
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten.index.Tensor: self._index,
            aten._unique2.default: self._unknown_length,
            aten.unique_dim.default: self._unknown_length,
            aten.unique_consecutive.default: self._unknown_length,
            aten.bincount.default: self._unknown_length,
            aten.repeat_interleave.Tensor: self._repeat_interleave,
            aten.silu_backward.default: self._one_kernel,
            aten.mish_backward.default: self._one_kernel,
            aten._cudnn_rnn.default: self._rnn,
            aten._pack_padded_sequence.default: self._pack_padded,
            aten._ctc_loss.default: self._ctc_loss,
            aten._ctc_loss.Tensor: self._ctc_loss,
            aten._ctc_loss_backward.default: self._ctc_loss_backward,
            aten._ctc_loss_backward.Tensor: self._ctc_loss_backward,
            aten._cudnn_rnn_backward.default: self._rnn_backward,
        }

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled during a trace; the wrapper against it costs more than most operators

    # --- the boundary -------------------------------------------------------------------------------------------------
    def fake(self, host: torch.Tensor) -> FakeTensor:
        """A planned tensor with the shape, strides and type of a host tensor; remembers small values."""
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            meta = torch.empty_strided(host.shape, host.stride(), dtype=host.dtype, device="meta")
            planned = FakeTensor(self.fake_mode, meta, DEVICE)
            if small(host.shape, host.dtype):
                self.values.set(planned, host.detach().clone())
        return planned

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _PRIM_DEVICE and not self._native:
            tensor = args[0]
            return _META if on_device(tensor) else tensor.fake_device
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        wanted = kwargs.get("device")
        if wanted is not None and self._means_planned(wanted):
            kwargs = {**kwargs, "device": DEVICE}
        elif not any(isinstance(t, FakeTensor) for t in tensors(args)) and not any(
            isinstance(t, FakeTensor) for t in tensors(kwargs)
        ):
            if func in _INITIALIZERS and _is_weight(args):
                return args[0]  # the values of weights never matter: a model of 8 G parameters is built in no time
            return func(*args, **kwargs)  # the host's own business
        self.current = func._schema.name
        if func.namespace == "c10d":
            return self._collective(func, args, kwargs)
        if kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": None}
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        return self.run(func, args, kwargs)

    def _means_planned(self, device: torch.device) -> bool:
        if device.type == "meta":
            return not self.user_wants_meta and not self._native
        return device.type == "cuda"  # type: ignore[no-any-return]

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator on planned tensors: shapes, then values where known, then the observer."""
        if self._is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                name = func._schema.name[6:]
                if name in HEALTHY and isinstance(out, FakeTensor):
                    self.values.set_healthy(name, out)
                return out
        args = self._adopt(args)
        # the oracle checks what is remembered against what PyTorch derives each time
        key = None if self._native else self._memory.key(func, args, kwargs)
        known = None if key is None else self._memory.recall(key)
        if known is not None:
            out = self._memory.make(known, func, args)
        else:
            try:
                out = self.fake_mode.dispatch(func, (), args, kwargs)
            except DynamicOutputShapeException:
                return self._unknown_length(func, args, kwargs)
            except (UnsupportedOperatorException, NotImplementedError) as error:
                out = self._on_host(func, args, kwargs, error)
            if key is not None:
                known = self._memory.learn(key, func, args, out)
        self.values.follow(func, args, kwargs, out)
        self._observe(func, args, kwargs, out, known)
        return out

    def _finish(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.values.follow(func, args, kwargs, out)
        self._observe(func, args, kwargs, out)

    def _on_host(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        """An operator that PyTorch cannot follow by shape: computed once on the host, on harmless values."""

        def real(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(real(v) for v in value)
            if isinstance(value, torch.device):
                return _CPU
            if not isinstance(value, FakeTensor):
                return value
            known = self.values.get(value)
            return plausible(value).to(value.dtype) if known is None else known

        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            try:
                out = func(*real(args), **{k: real(v) for k, v in kwargs.items()})
            except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
                raise error from None
        self._note("fallback", f"the shape of {func._schema.name}'s result was found by computing it once on the CPU")
        mutated = func._schema.is_mutable and out is not None and not isinstance(out, (tuple, list))
        if mutated:
            return args[0]
        if isinstance(out, (tuple, list)):
            return type(out)(self._like(o) for o in out)
        return self._like(out)

    def _like(self, value: Any) -> Any:
        return self._new(tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else value

    def _is_composite(self, func: Any) -> bool:
        known = self._composite.get(func)
        if known is None:
            name = func.name()
            known = torch._C._dispatch_has_kernel_for_dispatch_key(name, _COMPOSITE)
            self._composite[func] = known
        return known

    def _adopt(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Host tensors of one dimension or more among the arguments: taken as if they had been moved."""
        return tuple(self._adopt_one(a) for a in args)

    def _adopt_one(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._adopt_one(v) for v in value)
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and value.dim() > 0:
            return self.fake(value)
        return value

    def _invents(self) -> None:
        """A value that only a GPU could tell goes to the host: remember to whom."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_INTERNAL):
            frame = frame.f_back
        if frame is not None:
            self.invented.add(frame.f_code)

    # --- operators that cross the boundary or depend on data ----------------------------------------------------------
    def _item(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.host_syncs += 1
        self._observe(func, args, kwargs, None)
        known = self.values.get(args[0])
        if known is None:
            self._invents()
        if known is None and args[0].dtype is torch.bool:
            self._asked += 1
            return self._asked % _PATIENCE != 0
        return (plausible(args[0]) if known is None else known).reshape(-1)[0].item()

    def _to_copy(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source, wanted = args[0], kwargs.get("device")
        if not isinstance(source, FakeTensor):  # host to device
            with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
                host = func(source, **{**kwargs, "device": None, "non_blocking": False})
            planned = self.fake(host)
            self._observe(func, (source,), kwargs, planned)
            return planned
        if wanted is None or wanted.type != "cpu" or not on_device(source):
            return self.run(func, args, kwargs)
        self.host_syncs += 1
        self._observe(func, args, kwargs, None)
        known = self.values.get(source)
        if known is None:
            self._invents()
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            host = plausible(source) if known is None else known
            return host.to(kwargs.get("dtype") or host.dtype, copy=True)

    def _copy_into(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target, source = args[0], args[1]
        if isinstance(target, FakeTensor):
            if isinstance(source, FakeTensor):
                return self.run(func, args, kwargs)
            planned = self.fake(source)
            self.values.follow(func, (target, planned), kwargs, target)
            self._observe(func, (target, source), kwargs, target)
            return target
        self.host_syncs += 1
        self._observe(func, args, kwargs, None)
        known = self.values.get(source)
        with torch.utils._python_dispatch._disable_current_modes(), torch.no_grad():
            return target.copy_(plausible(source) if known is None else known)

    def _equal(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        self.host_syncs += 1
        known = [self.values.get(t) if isinstance(t, FakeTensor) else t for t in args[:2]]
        if known[0] is None or known[1] is None:
            return args[0].shape == args[1].shape  # type: ignore[no-any-return]
        return bool(torch.equal(known[0], known[1]))

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A collective of a process group that answers by itself: the tensors are what they were, and the work is done."""
        empty = torch.empty(0)

        def small(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return type(value)(small(v) for v in value)
            return empty if isinstance(value, FakeTensor) else value

        with torch.utils._python_dispatch._disable_current_modes():
            answer = func(*small(args), **{k: small(v) for k, v in kwargs.items()})
        if not isinstance(answer, tuple):
            return answer
        if func._schema.name not in ("c10d::allreduce_", "c10d::broadcast_"):
            for tensor in tensors(args[:1]):
                if isinstance(tensor, FakeTensor):
                    self.values.forget(tensor)
        return (args[0], *answer[1:])

    def _nonzero(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.host_syncs += 1
        source = args[0]
        known = self.values.get(source)
        if known is not None:
            with torch.utils._python_dispatch._disable_current_modes():
                out = self.fake(torch.nonzero(known))
        else:
            self._note("data-dependent", "a selection by mask is taken to keep every element")
            out = self._new((source.numel(), source.dim()), torch.int64)
        self._observe(func, args, kwargs, out)
        return out

    def _masked_select(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.host_syncs += 1
        known = self.values.get(args[1]) if isinstance(args[1], FakeTensor) else args[1]
        if known is None:
            self._note("data-dependent", "a selection by mask is taken to keep every element")
            count = args[0].numel()
        else:
            count = int(known.expand(torch.broadcast_shapes(args[0].shape, known.shape)).sum())
        out = self._new((count,), args[0].dtype)
        self._observe(func, args, kwargs, out)
        return out

    def _index(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Indexing by a mask is indexing by its nonzero positions, as CUDA does it."""
        indices: list[Any] = []
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                mask = index if isinstance(index, FakeTensor) else self.fake(index)
                positions = self._nonzero(aten.nonzero.default, (mask,), {})
                with self:
                    indices += positions.unbind(1)
            else:
                indices.append(index)
        return self.run(func, (args[0], indices, *args[2:]), kwargs)

    def _repeat_interleave(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        size = kwargs.get("output_size")
        known = self.values.get(args[0])
        if size is None and known is not None:
            size = int(known.sum())
        if size is None:
            self._note("data-dependent", "repeat_interleave is taken to repeat each element once")
            size = args[0].numel()
        out = self._new((size,), torch.int64)
        self._finish(func, args, kwargs, out)
        return out

    def _unknown_length(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Operators whose result is as long as the data says: true where the data is known, else the longest."""
        self.host_syncs += 1
        real_args, known = self.values._real(args)
        if known:
            with torch.utils._python_dispatch._disable_current_modes():
                real = func(*real_args, **kwargs)
            out = tuple(self.fake(r) for r in real) if isinstance(real, (tuple, list)) else self.fake(real)
        else:
            name = func._schema.name[6:]
            self._note("data-dependent", f"the result of {name} is taken to be as long as its input")
            source = args[0]
            results = len(func._schema.returns)
            shape = tuple(source.shape) if name == "unique_dim" else (source.numel(),)
            if name == "bincount":  # as many bins as the script expects, if it says so
                shape = ((args[2] if len(args) > 2 else kwargs.get("minlength", 0)) or source.numel(),)
            first = self._new(shape, source.dtype)
            rest = tuple(self._new((source.numel(),), torch.int64) for _ in range(results - 1))
            out = first if results == 1 else (first, *rest)
        self._observe(func, args, kwargs, out)
        return out

    def _one_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """(gradient, input) -> gradient of the input: composite on other devices, one kernel on CUDA."""
        source = args[1]
        with torch.utils._python_dispatch._disable_current_modes():
            pattern = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
            out = FakeTensor(self.fake_mode, torch.empty_like(pattern), DEVICE)
        self._finish(func, args, kwargs, out)
        return out

    def _rnn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = tuple(self._new(shape, dtype) for shape, dtype in cudnn_rnn_shapes(args))
        self._observe(func, args, kwargs, out)
        return out

    def _rnn_backward(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, weights, hx, cx, mask = args[0], args[1], args[4], args[5], args[21]
        out = (
            self._new(tuple(x.shape), x.dtype),
            self._new(tuple(hx.shape), hx.dtype),
            self._new(tuple(cx.shape), cx.dtype) if cx is not None else self._new((0,), x.dtype),
            [self._new(tuple(w.shape), w.dtype) for w in weights] if mask[3] else [],
        )
        self._observe(func, args, kwargs, (*out[:3], *out[3]))
        return out

    def _pack_padded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Packing reads the lengths on the host, and gives the batch sizes there."""
        x, lengths, batch_first = args
        real = self.values.get(lengths) if isinstance(lengths, FakeTensor) else lengths
        if real is None:
            real = torch.full(tuple(lengths.shape), x.shape[1 if batch_first else 0])
        longest = int(real.max())
        sizes = (real[None, :] > torch.arange(longest)[:, None]).sum(1)
        out = self._new((int(real.sum()), *x.shape[2:]), x.dtype)
        self._observe(func, (x,), kwargs, out)
        return out, sizes

    def _ctc_loss(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        log_probs, targets, target_lengths = args[0], args[1], args[3]
        if targets.dim() == 2:
            longest = targets.shape[1]
        else:
            known = self.values._real(target_lengths)[0]
            longest = int(torch.as_tensor(known).max()) if known is not None else targets.shape[0]
        steps, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
        out = (
            self._new((batch,), log_probs.dtype),
            self._new((batch, steps, 2 * longest + 1), log_probs.dtype),
        )
        self._observe(func, args, kwargs, out)
        return out

    def _ctc_loss_backward(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = self._new(tuple(args[1].shape), args[1].dtype)
        self._observe(func, args, kwargs, out)
        return out

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype) -> FakeTensor:
        with torch.utils._python_dispatch._disable_current_modes():
            return FakeTensor(self.fake_mode, torch.empty(shape, dtype=dtype, device="meta"), DEVICE)
