"""Recorder: operators and storage lifetimes of a run on the planned device, turned into a StepTrace."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpurig.model.trace import Assumption, Call, Op, OpClass, Phase, Site, Storage, StorageKind
from gpurig.trace.cost import describe, dtype_name
from gpurig.trace.device import on_device, tensors
from gpurig.trace.temporaries import operand_copies

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from gpurig.trace.shapes import Remembered

_SITE_FROM_BYTES = 1 << 20  # smaller storages are not worth a look at the stack
_OURS = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_INTERNAL = (_OURS, _TORCH, "<frozen", "<string>", str(Path(weakref.__file__).parent / "contextlib.py"))


class _Birth:
    """One storage, until the trace is finished and its kind is known."""

    __slots__ = ("died_in", "kind", "num_bytes", "phase", "site", "transferred")

    def __init__(self, num_bytes: int, phase: Phase, site: int, *, transferred: bool) -> None:
        self.num_bytes = num_bytes
        self.phase = phase
        self.site = site
        self.kind: StorageKind | None = None
        self.died_in: Phase | None = None
        self.transferred = transferred


class Recorder:
    """Watches operators on the planned device.

    Storages are followed from the first operator, since the allocator's state depends on all of them; operators are
    kept for the step that is current when the trace ends.
    """

    def __init__(self) -> None:
        self.phase = Phase.SETUP
        self.recording = False
        self.steps = 0
        self.notes: dict[tuple[str, str], Assumption] = {}
        self.events: list[tuple[int, int, int]] = []
        self.steady_from = 0
        self.calls: list[tuple[int, Phase, int]] = []
        self._births: list[_Birth] = []
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._ops: dict[Op, int] = {}
        self._sites: dict[Site, int] = {}
        self.dtypes: dict[str, int] = {}
        self.watched: set[int] | None = None  # storages whose writes outside backward are counted in `writes`
        self.writes = 0
        self._allocated = self._peak = 0

    # --- what happens -------------------------------------------------------------------------------------------------
    def observe(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, known: Remembered | None = None
    ) -> None:
        """One operator has run."""
        if self.recording:
            self._record(_described(func, args, kwargs, out, known))
        if out is None:
            return
        if self.watched is not None and self.phase is not Phase.BACKWARD and func._schema.is_mutable:
            self.writes += sum(t.untyped_storage()._cdata in self.watched for t in tensors(args[:1]) if on_device(t))
        for tensor in tensors(out if isinstance(out, (tuple, list)) else (out,)):
            if on_device(tensor):
                self._track(tensor, args)
        for num_bytes in operand_copies(func._schema.name[6:], args):
            self._passing(num_bytes)

    def _passing(self, num_bytes: int) -> None:
        """A block that a kernel takes and gives back within its call."""
        index = len(self._births)
        birth = _Birth(num_bytes, self.phase, -1, transferred=False)
        birth.kind, birth.died_in = StorageKind.TEMPORARY, self.phase
        self._births.append(birth)
        position = len(self.calls) - 1 if self.recording else -1
        self.events += [(1, index, position), (-1, index, position)]

    def _record(self, op: Op) -> None:
        index = self._ops.setdefault(op, len(self._ops))
        self.calls.append((index, self.phase, -1))

    def kernel(self, name: str, op_class: OpClass, read: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """A kernel that PyTorch's dispatcher knows nothing of has run: costed by the bytes that it touches."""
        if self.recording:
            sizes = [sum(t.numel() * t.element_size() for t in group) for group in (read, written)]
            dtype = dtype_name(read[0].dtype) if read else ""
            self._record(Op(name, op_class, dtype, 0, sizes[0], sizes[1], 1))

    def _track(self, tensor: torch.Tensor, args: tuple[Any, ...]) -> None:
        if tensor.layout is not torch.strided:
            return  # a sparse tensor has no storage; its indices and values were made by operators of their own
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return
        num_bytes = int(storage.nbytes())
        if not num_bytes:
            return
        index = len(self._births)
        site = self.here() if num_bytes >= _SITE_FROM_BYTES else -1
        came = bool(args) and isinstance(args[0], torch.Tensor) and not on_device(args[0])
        self._births.append(_Birth(num_bytes, self.phase, site, transferred=came))
        self._allocated += num_bytes
        self._peak = max(self._peak, self._allocated)
        self._live[key] = (index, weakref.ref(storage, lambda _, key=key: self._free(key)))  # type: ignore[misc]
        self.events.append((1, index, len(self.calls) - 1 if self.recording else -1))

    def current(self, *_: Any) -> int:
        """Bytes allocated now."""
        return self._allocated

    def highest(self, *_: Any) -> int:
        """The most bytes allocated so far."""
        return self._peak

    def adopt(self, tensor: torch.Tensor, kind: StorageKind) -> None:
        """A planned tensor that no operator made (a moved parameter)."""
        self._track(tensor, ())
        self.mark((tensor,), kind)

    def _free(self, key: int) -> None:
        entry = self._live.pop(key, None)
        if entry is not None:
            birth = self._births[entry[0]]
            birth.died_in = self.phase
            self._allocated -= birth.num_bytes
            self.events.append((-1, entry[0], len(self.calls) - 1 if self.recording else -1))

    def mark(self, marked: Iterable[torch.Tensor], kind: StorageKind) -> None:
        """Say what the storages of these tensors are for."""
        for tensor in marked:
            if on_device(tensor) and tensor.layout is torch.strided:
                entry = self._live.get(tensor.untyped_storage()._cdata)
                if entry is not None:
                    self._births[entry[0]].kind = kind

    def start_step(self) -> None:
        """A step begins: what was recorded of the one before is dropped."""
        gc.collect()
        self.recording = True
        self.calls.clear()
        self.steady_from = len(self.events)
        # positions of earlier events referred to the calls just dropped
        self.events = [(sign, index, -1) for sign, index, _ in self.events]

    def note(self, code: str, text: str) -> None:
        """Something was assumed; said once, with the place where it happened."""
        key = (code, text)
        if key not in self.notes:
            self.notes[key] = Assumption(code, text, self.here())

    def here(self) -> int:
        """The line of the user's code (or of a library other than PyTorch) that is running, as an index."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if not name.startswith(_INTERNAL):
                site = Site(name, frame.f_lineno, frame.f_code.co_qualname)
                return self._sites.setdefault(site, len(self._sites))
            frame = frame.f_back
        return -1

    # --- the result ---------------------------------------------------------------------------------------------------
    def ops(self) -> tuple[tuple[Op, ...], tuple[Call, ...]]:
        """The distinct operators of the last step and its calls."""
        every = list(self._ops)
        used: dict[int, int] = {}
        calls = tuple(Call(used.setdefault(i, len(used)), phase, site) for i, phase, site in self.calls)
        return tuple(every[i] for i in used), calls

    def sites(self) -> tuple[Site, ...]:
        return tuple(self._sites)

    def storages(self) -> tuple[Storage, ...]:
        return tuple(Storage(b.num_bytes, _kind(b), b.site, b.phase) for b in self._births)


def _described(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, known: Remembered | None) -> Op:
    """The cost of a call: described once for all calls of the same shapes under the same TF32 switches."""
    if known is None:
        return describe(func, args, kwargs, out)
    flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    if known.op is None or known.flags != flags:
        known.op, known.flags = describe(func, args, kwargs, out), flags
    return known.op


def _kind(birth: _Birth) -> StorageKind:
    """What a storage was for, where nothing has said so."""
    if birth.kind is not None:
        return birth.kind
    if birth.transferred:
        return StorageKind.INPUT
    if birth.phase is Phase.OPTIMIZER:
        return StorageKind.OPTIMIZER if birth.died_in is None else StorageKind.TEMPORARY
    if birth.phase is Phase.BACKWARD:
        return StorageKind.TEMPORARY
    if birth.phase is Phase.SETUP:
        return StorageKind.PARAMETER if birth.died_in is None else StorageKind.TEMPORARY
    return StorageKind.TEMPORARY if birth.died_in is Phase.FORWARD else StorageKind.ACTIVATION
