"""Moving modules and tensors to the planned device, with every parameter staying the object that it was.

Optimizers, tied weights and hooks hold parameters by identity, so a real parameter is turned into a planned one in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedTensorMixin
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from gpurig.model.trace import StorageKind
from gpurig.trace.device import DEVICE, PlannedDevice, on_device
from gpurig.trace.facade import TYPE_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.trace.patches import Patches
    from gpurig.trace.record import Recorder


def become(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Make `tensor` be `other` (type, data, attributes) without changing its identity.

    Like torch.utils.swap_tensors, but tensors that something watches by weak reference are swapped too. Returns False if
    C++ holds the tensor (a graph that is alive), when that is not possible.
    """
    kept = {
        k: v for k, v in tensor.__dict__.items() if not k.startswith(("_gpurig", "fake_", "constant", "real_tensor"))
    }
    try:
        torch._C._swap_tensor_impl(tensor, other)
    except RuntimeError:
        return False
    before = type(tensor)
    if before is not type(other):
        tensor.__class__, other.__class__ = type(other), before
    state = dict(other.__dict__)
    other.__dict__.clear()
    tensor.__dict__.clear()
    tensor.__dict__.update({**kept, **state})
    return True


_META = torch.device("meta")


class ModuleMover:
    """nn.Module._apply for a world in which some tensors are planned."""

    def __init__(self, device: PlannedDevice, recorder: Recorder) -> None:
        self._device = device
        self._recorder = recorder
        self.moved: list[tuple[torch.Tensor, torch.Tensor]] = []  # (planned, the real one it was)

    def give_back(self) -> None:
        """Make moved parameters real again, as they were before."""
        while self.moved:
            planned, real = self.moved.pop()
            become(planned, real)

    def install(self, patches: Patches) -> None:
        mover = self

        def _apply(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
            return mover.apply(module, fn, recurse=recurse)

        patches.set(nn.Module, "_apply", _apply)
        patches.set(torch.Tensor, "_make_subclass", staticmethod(_subclass_maker(torch.Tensor._make_subclass)))
        patches.set_existing(nn.RNNBase, "flatten_parameters", lambda _: None)

    def apply(self, module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], *, recurse: bool) -> nn.Module:
        """Apply `fn` to every parameter and buffer, in place."""
        done: set[int] = set()
        for part in module.modules() if recurse else (module,):
            self._apply_one(part, fn, done)
        return module

    def _apply_one(self, module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], done: set[int]) -> None:
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) in done:
                continue
            done.add(id(parameter))
            self._move(module, name, parameter, fn)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                with torch.no_grad():
                    module._buffers[name] = fn(buffer)
                self._recorder.mark((module._buffers[name],), StorageKind.PARAMETER)

    def _move(self, module: nn.Module, name: str, parameter: nn.Parameter, fn: Callable[[Any], Any]) -> None:
        if isinstance(parameter, UninitializedTensorMixin):
            self._move_when_known(module, name, parameter, fn)
            return
        with torch.no_grad():
            moved = fn(parameter)
        if moved is parameter:
            return
        if isinstance(moved, FakeTensor) and isinstance(parameter, FakeTensor) and on_device(moved):
            parameter.data = moved
        else:
            gradient = parameter.grad
            parameter.grad = None
            target = moved.detach().requires_grad_(parameter.requires_grad)
            target._is_param = True
            del moved
            if not become(parameter, target):
                module._parameters[name] = target if isinstance(target, FakeTensor) else nn.Parameter(target)
                self._recorder.note(
                    "identity", "a parameter in use was replaced when it moved: its optimizer may be stale"
                )
                parameter = module._parameters[name]
            elif isinstance(parameter, FakeTensor):
                self.moved.append((parameter, target))
            if gradient is not None:
                with torch.no_grad():
                    parameter.grad = fn(gradient)
        self._recorder.mark((parameter,), StorageKind.PARAMETER)

    def _move_when_known(self, module: nn.Module, name: str, lazy: Any, fn: Callable[[Any], Any]) -> None:
        """A lazy parameter is moved once its shape is known."""
        make = lazy.materialize

        def materialize(shape: Any, device: Any = None, dtype: Any = None) -> None:
            del device
            del lazy.materialize
            make(shape, "cpu", dtype)
            self._move(module, name, lazy, fn)

        lazy.materialize = materialize


def _subclass_maker(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Tensor subclasses of libraries over a planned tensor: the object is both."""
    combined: dict[type, type] = {}

    def make_subclass(cls: type, data: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(data, FakeTensor) or issubclass(FakeTensor, cls):
            return make(cls, data, *args, **kwargs)
        both = combined.get(cls)
        if both is None:
            both = combined[cls] = type(cls)(cls.__name__, (cls, FakeTensor), {"__module__": cls.__module__})
        made = data.detach()
        made.requires_grad_(bool(args[0]) if args else kwargs.get("require_grad", False))
        made.__class__ = both
        if issubclass(cls, nn.Parameter):
            made._is_param = True
        return made

    return make_subclass


class Normalize(TorchFunctionMode):
    """Names the planned device in full ("cuda" becomes cuda:0), since C++ would ask a driver for the current one."""

    def __init__(self, device: PlannedDevice) -> None:
        super().__init__()
        self._device = device
        self.default_device: torch.device | None = None

    def install(self, patches: Patches) -> None:
        """torch.set_default_device and its kind, and generators of random numbers."""
        set_device, get_device, set_type = (
            torch.set_default_device,
            torch.get_default_device,
            torch.set_default_tensor_type,
        )

        def set_default_device(device: Any) -> None:
            planned = device is not None and _is_cuda(device)
            self.default_device = DEVICE if planned else None
            set_device(None if planned else device)

        def set_default_tensor_type(kind: Any) -> None:
            name = kind if isinstance(kind, str) else getattr(kind, "gpurig_type", "")
            if name.startswith("torch.cuda."):
                self.default_device = DEVICE
                torch.set_default_dtype(TYPE_DTYPES[name.rpartition(".")[2]])
            else:
                self.default_device = None
                set_type(kind)

        patches.set(torch, "set_default_device", set_default_device)
        patches.set(torch, "get_default_device", lambda: self.default_device or get_device())
        patches.set(torch, "set_default_tensor_type", set_default_tensor_type)
        patches.set(torch, "Generator", PlannedGenerator)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        handler = _HANDLERS.get(name)
        if handler is not None and args and isinstance(args[0], torch.Tensor):
            return handler(func, args, kwargs)
        naming = _NAMING.get(name)
        if naming is not None:
            return naming(func, args, kwargs)
        device = kwargs.get("device")
        if device is None and self.default_device is not None and func in _device_constructors():
            device = self.default_device
            kwargs = {**kwargs, "device": device}
        if device is None:
            return func(*args, **kwargs)
        if _is_meta(device):
            self._device.user_wants_meta += 1
            try:
                return func(*args, **kwargs)
            finally:
                self._device.user_wants_meta -= 1
        if _is_cuda(device):
            if name in _FROM_DATA:
                return _from_data(func, args, kwargs)
            kwargs = {**kwargs, "device": DEVICE}
            kwargs.pop("pin_memory", None)
            if on_device_generator(kwargs.get("generator")):
                kwargs["generator"] = None
        return func(*args, **kwargs)


def _device(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.device(0): an index alone names the accelerator of the machine."""
    if func is torch.device and args and isinstance(args[0], int):
        return torch.device("cuda", *args)
    return func(*args, **kwargs)


def _parse_to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """nn.Module.to(0)."""
    named = tuple(DEVICE if _is_index(a) else a for a in args)
    if _is_index(kwargs.get("device")):
        kwargs = {**kwargs, "device": DEVICE}
    return func(*named, **kwargs)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_NAMING = {"device": _device, "_parse_to": _parse_to}


class _Generators(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class PlannedGenerator(torch.Generator, metaclass=_Generators):
    """torch.Generator, also for the planned device: there it draws nothing."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if not _is_cuda(device):
            return torch._C.Generator(device)
        made = torch._C.Generator.__new__(cls, "cpu")
        made.planned = True
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:
        return DEVICE


_FROM_DATA = frozenset(("tensor", "as_tensor", "asarray"))


def _from_data(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch.tensor(data, device="cuda"): C++ would copy behind the dispatcher's back, so the copy is made here."""
    wants_grad = kwargs.get("requires_grad", False)
    host = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad", "pin_memory")}
    source = args[0] if args else None
    if isinstance(source, FakeTensor):
        made = source.to(host["dtype"]) if host.get("dtype") else source
    else:
        made = func(*args, **host, device="cpu").to(DEVICE)
    return made.requires_grad_() if wants_grad else made


def _new_tensor(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not on_device(args[0]):
        return func(*args, **kwargs)
    kwargs = {"dtype": args[0].dtype, **kwargs, "device": DEVICE}
    return _from_data(torch.tensor, args[1:], kwargs)


def on_device_generator(generator: Any) -> bool:
    """Whether a random generator was made for the planned device."""
    return generator is not None


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"  # type: ignore[no-any-return]
    return (isinstance(device, str) and device.partition(":")[0] == "cuda") or (isinstance(device, int) and device >= 0)


def _is_meta(device: Any) -> bool:
    return device == "meta" or (isinstance(device, torch.device) and device.type == "meta")


def _to(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = _name_for(args[0])
    positional = tuple(target if _names_cuda(a) else a for a in args[1:])
    if _is_cuda(kwargs.get("device")):
        kwargs = {**kwargs, "device": target}
    return func(args[0], *positional, **kwargs)


def _name_for(tensor: torch.Tensor) -> torch.device:
    """C++ takes a planned tensor's device for meta: named so, it sees that there is nothing to move."""
    return _META if on_device(tensor) and not tensor.fake_mode.native else DEVICE


def _names_cuda(value: Any) -> bool:
    return not isinstance(value, bool) and _is_cuda(value)


def _cuda(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].to(_name_for(args[0]), memory_format=kwargs.get("memory_format", torch.preserve_format))


def _type(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wanted = args[1] if len(args) > 1 else kwargs.get("dtype")
    name = wanted if isinstance(wanted, str) else getattr(wanted, "gpurig_type", None)
    if not isinstance(name, str) or not name.startswith("torch.cuda."):
        return func(*args, **kwargs)
    return args[0].to(DEVICE, TYPE_DTYPES[name.rpartition(".")[2]])


def _itself(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0]


_HANDLERS: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    "to": _to,
    "cuda": _cuda,
    "type": _type,
    "pin_memory": _itself,
    "new_tensor": _new_tensor,
}
