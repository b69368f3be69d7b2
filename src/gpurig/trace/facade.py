"""What torch.cuda and torch.accelerator say about the planned device."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gpurig.trace.device import DEVICE, on_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.trace.card import CardFacts
    from gpurig.trace.patches import Patches


class FakeEvent:
    """torch.cuda.Event that measures nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_event = 0

    def record(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 1.0


class FakeStream:
    """torch.cuda.Stream: everything runs in order."""

    device = DEVICE
    device_index = 0
    cuda_stream = 0
    stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        return event or FakeEvent()

    def is_capturing(self) -> bool:
        return False


class FakeDevice:
    """torch.cuda.device: there is only one to choose."""

    def __init__(self, device: Any = None) -> None:
        self.idx = device.index or 0 if isinstance(device, torch.device) else device

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class FakeGraph:
    """torch.cuda.CUDAGraph: what is captured runs as it is captured."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def capture_begin(self, *_: Any, **__: Any) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...

    def reset(self) -> None: ...

    def pool(self) -> tuple[int, int]:
        return (0, 0)


class Usage(Protocol):
    """How much memory the script has allocated, as it would read it."""

    def current(self, *_: Any) -> int:
        """Bytes allocated now."""

    def highest(self, *_: Any) -> int:
        """The most bytes allocated so far."""


def _memory_answers(usage: Usage) -> dict[str, Any]:
    def stats(*_: Any, **__: Any) -> dict[str, int]:
        answers = {"allocated_bytes.all.current": usage.current(), "allocated_bytes.all.peak": usage.highest()}
        answers |= {"reserved_bytes.all.current": usage.highest(), "reserved_bytes.all.peak": usage.highest()}
        return defaultdict(int, answers)

    return {
        "memory_allocated": usage.current,
        "max_memory_allocated": usage.highest,
        "memory_reserved": usage.highest,
        "max_memory_reserved": usage.highest,
        "memory_stats": stats,
    }


def _constant(value: Any) -> Callable[..., Any]:
    def answer(*_: Any, **__: Any) -> Any:
        return value

    return answer


def _yes() -> Callable[..., bool]:
    return _constant(value=True)


def _no() -> Callable[..., bool]:
    return _constant(value=False)


def _nothing() -> Callable[..., None]:
    """A function of its own each time: PyTorch's table of traceable functions refuses one under two names."""
    return _constant(None)


def _no_context() -> Callable[..., Any]:
    @contextlib.contextmanager
    def enter(*_: Any, **__: Any) -> Any:
        yield

    return enter


def _counter(card: CardFacts, counted: Callable[[], None]) -> Callable[..., int]:
    def device_count() -> int:
        if "/torch/" not in sys._getframe(1).f_code.co_filename:
            counted()
        return card.num_gpus

    return device_count


def install(
    patches: Patches, card: CardFacts, synchronized: Callable[[], None], counted: Callable[[], None], usage: Usage
) -> None:
    """Answer questions about CUDA as a machine with `card` would.

    `synchronized` is called when the script waits for the device, `counted` when it asks how many GPUs there are;
    `usage` tells how much memory is allocated.
    """
    properties = _properties(card)
    stream = FakeStream()

    def synchronize(*_: Any, **__: Any) -> None:
        synchronized()

    answers: dict[str, Any] = {
        "is_available": _yes(),
        "is_initialized": _yes(),
        "_is_compiled": _yes(),
        "_lazy_init": _nothing(),
        "init": _nothing(),
        "device_count": _counter(card, counted),
        "current_device": _constant(0),
        "set_device": _nothing(),
        "get_device_name": _constant(card.name),
        "get_device_properties": _constant(properties),
        "get_device_capability": _constant(card.capability),
        "get_arch_list": _constant([f"sm_{card.capability[0]}{card.capability[1]}"]),
        "is_bf16_supported": _constant(card.capability >= (8, 0)),
        "synchronize": synchronize,
        "can_device_access_peer": _yes(),
        "current_stream": _constant(stream),
        "default_stream": _constant(stream),
        "stream": _no_context(),
        "set_stream": _nothing(),
        "device": FakeDevice,
        "device_of": FakeDevice,
        "Stream": FakeStream,
        "Event": FakeEvent,
        "is_current_stream_capturing": _no(),
        "manual_seed": _nothing(),
        "manual_seed_all": _nothing(),
        "seed": _nothing(),
        "seed_all": _nothing(),
        "initial_seed": _constant(0),
        "get_rng_state": _constant(torch.zeros(16, dtype=torch.uint8)),
        "get_rng_state_all": _constant([torch.zeros(16, dtype=torch.uint8)]),
        "set_rng_state": _nothing(),
        "set_rng_state_all": _nothing(),
        "utilization": _constant(0),
        "empty_cache": _nothing(),
        "ipc_collect": _nothing(),
        "reset_peak_memory_stats": _nothing(),
        "reset_max_memory_allocated": _nothing(),
        "reset_accumulated_memory_stats": _nothing(),
        "memory_cached": usage.current,
        "max_memory_cached": usage.highest,
        "memory_summary": _constant(""),
        "mem_get_info": lambda *_, **__: (max(0, card.memory_bytes - usage.current()), card.memory_bytes),
        "CUDAGraph": FakeGraph,
        "graph": _no_context(),
        "make_graphed_callables": lambda callables, *_, **__: callables,
        "graph_pool_handle": _constant((0, 0)),
        "set_per_process_memory_fraction": _nothing(),
        "cudart": _constant(SimpleNamespace(cudaProfilerStart=_nothing(), cudaProfilerStop=_nothing())),
    }
    for name, answer in {**answers, **_memory_answers(usage)}.items():
        patches.set_existing(torch.cuda, name, answer)
        patches.set_existing(torch.cuda.memory, name, answer)
    for name in ("_record_memory_history", "_dump_snapshot", "_snapshot"):
        patches.set_existing(torch.cuda.memory, name, _constant({}))
    _install_types(patches)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.set_existing(torch.cuda.nvtx, name, _constant(0))
    _install_accelerator(patches, card, stream, synchronize, counted, usage)
    patches.set(torch.version, "cuda", torch.version.cuda or "12.8")
    patches.set(
        torch._C, "_cuda_getCurrentRawStream", _constant(0)
    )  # missing in builds without CUDA; libraries take it
    patches.set_existing(torch._C, "_cuda_getDeviceCount", _constant(card.num_gpus))
    patches.set_existing(torch.cuda.amp.common, "amp_definitely_not_available", _no())
    # FakeTensorMode asks torch.cuda.is_available() whether it may touch the device; the answer above is for scripts
    patches.set(FakeTensorMode, "avoid_device_init", property(_yes()))
    _install_tensor_facts(patches)


def _properties(card: CardFacts) -> SimpleNamespace:
    return SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.memory_bytes,
        multi_processor_count=card.sm_count,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=166912,
        shared_memory_per_multiprocessor=167936,
        L2_cache_size=40 << 20,
        uuid="GPU-planned",
    )


def _install_accelerator(
    patches: Patches, card: CardFacts, stream: FakeStream, synchronize: Any, counted: Callable[[], None], usage: Usage
) -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # before torch 2.6
        return
    answers: dict[str, Any] = {
        "is_available": _yes(),
        "device_count": _counter(card, counted),
        "current_accelerator": _constant(torch.device("cuda")),
        "current_device_index": _constant(0),
        "current_device_idx": _constant(0),
        "set_device_index": _nothing(),
        "set_device_idx": _nothing(),
        "current_stream": _constant(stream),
        "set_stream": _nothing(),
        "synchronize": synchronize,
        "empty_cache": _nothing(),
        "reset_peak_memory_stats": _nothing(),
    }
    for name, answer in {**answers, **_memory_answers(usage)}.items():
        patches.set_existing(accelerator, name, answer)


class _CudaType(type):
    """torch.cuda.FloatTensor and its kind: makers of tensors, and names of types."""

    dtype: torch.dtype
    is_cuda = True

    def __call__(cls, *args: Any, **_: Any) -> Any:
        if not args:
            return torch.empty(0, dtype=cls.dtype, device=DEVICE)
        if isinstance(args[0], int):
            return torch.empty(args, dtype=cls.dtype, device=DEVICE)
        if isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=cls.dtype, device=DEVICE)
        return torch.as_tensor(args[0], dtype=cls.dtype).to(DEVICE)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and on_device(value) and value.dtype is cls.dtype


def _install_types(patches: Patches) -> None:
    for name, dtype in TYPE_DTYPES.items():
        made = _CudaType(name, (), {"dtype": dtype, "gpurig_type": f"torch.cuda.{name}", "__module__": "torch.cuda"})
        patches.set(torch.cuda, name, made)


def _install_tensor_facts(patches: Patches) -> None:
    """What a planned tensor says of itself where PyTorch would ask C++."""

    def tolist(self: FakeTensor) -> Any:
        return self.detach().cpu().tolist()

    def format_(self: FakeTensor, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 and spec else repr(self)

    def type_(self: FakeTensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return torch.Tensor.type(self, *args, **kwargs)
        return f"torch.cuda.{_TYPE_NAMES.get(self.dtype, 'FloatTensor')}"

    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        if force or not on_device(self):
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"
            " first."
        )

    patches.set(FakeTensor, "numpy", numpy)
    patches.set(FakeTensor, "is_cuda", property(on_device))
    patches.set(FakeTensor, "is_meta", property(_no()))
    patches.set(FakeTensor, "is_cpu", property(lambda self: not on_device(self)))
    patches.set(FakeTensor, "get_device", lambda self: 0 if on_device(self) else -1)
    patches.set(FakeTensor, "tolist", tolist)
    patches.set(FakeTensor, "__format__", format_)
    patches.set(FakeTensor, "type", type_)
    patches.set(FakeTensor, "record_stream", _nothing())
    patches.set(FakeTensor, "is_pinned", _no())
    patches.set(FakeTensor, "is_shared", _no())


_TYPE_NAMES = {
    torch.float32: "FloatTensor",
    torch.float64: "DoubleTensor",
    torch.float16: "HalfTensor",
    torch.bfloat16: "BFloat16Tensor",
    torch.int64: "LongTensor",
    torch.int32: "IntTensor",
    torch.int16: "ShortTensor",
    torch.int8: "CharTensor",
    torch.uint8: "ByteTensor",
    torch.bool: "BoolTensor",
}
TYPE_DTYPES = {name: dtype for dtype, name in _TYPE_NAMES.items()}
