"""DataLoaders during a trace: the pipeline runs for real for a few batches, is timed, and then repeats itself."""

from __future__ import annotations

import contextlib
import copy
import dis
import os
import statistics
import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as dataloader_module

from gpurig.model.trace import InputProfile
from gpurig.trace.device import tensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from gpurig.trace.patches import Patches
    from gpurig.trace.record import Recorder

_TIMED_BATCHES = 3
_TIMING_BUDGET_S = 2.0
_ENOUGH_WITHOUT_BACKWARD = 8  # batches in a row that no backward pass follows: an evaluation, which is cut short
_LIBRARY_LOOPS = ("accelerate", "lightning", "pytorch_lightning", "transformers", "ignite", "composer")


@dataclass
class LoaderFacts:
    """What has been seen of one DataLoader."""

    loader: weakref.ref[Any]
    asked_workers: int
    host_only: bool = True  # the pipeline has not touched the device so far
    fetch_times_s: list[float] = field(default_factory=list)
    batch_bytes: int = 0
    samples: int | None = None
    batches: int = 0
    in_a_row: int = 0  # batches since a backward pass or another loader's batch
    trains: bool = False  # a backward pass has followed one of its batches


class Feed:
    """All DataLoaders of a script.

    Args:
        recorder: Stops recording operators while an evaluation runs between two steps.
        batch_size: Forced batch size, or None.
        batch_scale: Factor on each batch size.
    """

    def __init__(self, recorder: Recorder, *, batch_size: int | None = None, batch_scale: float = 1.0) -> None:
        self._recorder = recorder
        self._batch_size = batch_size
        self._batch_scale = batch_scale
        self._loaders: dict[int, LoaderFacts] = {}
        self._resized: dict[int, int] = {}  # data set -> the batch size that was forced on its loader
        self._last: LoaderFacts | None = None
        self._stepped = False

    def install(self, patches: Patches) -> None:
        feed = self
        init = DataLoader.__init__

        def planned_init(loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any) -> None:
            batch_size = feed._sized(dataset, batch_size, kwargs)
            init(loader, dataset, batch_size, *args, **kwargs)

        patches.set(DataLoader, "__init__", planned_init)
        patches.set(DataLoader, "_get_iterator", lambda loader: _Repeating(loader, feed))

    # --- what happens -------------------------------------------------------------------------------------------------
    def facts(self, loader: Any) -> LoaderFacts:
        """The record of a loader."""
        known = self._loaders.get(id(loader))
        if known is None or known.loader() is not loader:
            known = LoaderFacts(weakref.ref(loader), int(getattr(loader, "num_workers", 0)))
            # a stream that fails for want of a device is at its end and can't be tried again
            known.host_only = not isinstance(getattr(loader, "dataset", None), IterableDataset)
            self._loaders[id(loader)] = known
        return known

    def yielded(self, facts: LoaderFacts) -> None:
        """A loader hands out a batch."""
        if self._last is not facts:
            facts.in_a_row = 0
        self._last = facts
        facts.in_a_row += 1
        facts.batches += 1
        if self._stepped:
            evaluation = not facts.trains and (not torch.is_grad_enabled() or facts.in_a_row > 1)
            self._recorder.recording = not evaluation

    def total(self) -> int:
        """Batches that all loaders have handed out."""
        return sum(facts.batches for facts in self._loaders.values())

    def backward_done(self) -> None:
        """A backward pass has ended."""
        for facts in self._loaders.values():
            facts.in_a_row = 0
        if self._last is not None:
            self._last.trains = True

    def step_ended(self) -> None:
        """A step has ended and another begins."""
        self._stepped = True

    def exhausted_by_evaluation(self, facts: LoaderFacts, caller: FrameType | None) -> bool:
        """Whether a loop over a loader that trains nothing has gone on for long enough, and may be ended."""
        return not facts.trains and facts.in_a_row >= _ENOUGH_WITHOUT_BACKWARD and _in_a_loop(caller)

    # --- the result ---------------------------------------------------------------------------------------------------
    def training(self) -> LoaderFacts | None:
        """The loader that feeds the steps, if one does."""
        feeding = [f for f in self._loaders.values() if f.trains]
        return max(feeding, key=lambda f: f.batches) if feeding else None

    def profile(self) -> InputProfile | None:
        """How the script feeds itself; None if no DataLoader does."""
        facts = self.training()
        if facts is None:
            return None
        loader = facts.loader()
        times = facts.fetch_times_s[1:] or facts.fetch_times_s  # the first one is cold
        return InputProfile(
            batch_time_s=statistics.median(times) if times else None,
            num_workers=facts.asked_workers,
            batch_bytes=facts.batch_bytes,
            batch_size=facts.samples,
            dataset_samples=_length(getattr(loader, "dataset", None)),
            batches_per_epoch=_length(loader),
            cpu_note=f"one thread of {os.cpu_count()} cores",
        )

    def _sized(self, dataset: Any, batch_size: Any, kwargs: dict[str, Any]) -> Any:
        sampler = kwargs.get("batch_sampler")
        own = getattr(sampler, "batch_size", None) if sampler is not None else batch_size
        if not isinstance(own, int) or (self._batch_size is None and self._batch_scale == 1.0):
            return batch_size
        if self._resized.get(id(dataset)) == own:
            return batch_size  # a library makes its own loader of one that has been resized
        forced = self._batch_size if self._batch_size is not None else max(1, round(own * self._batch_scale))
        self._resized[id(dataset)] = forced
        if sampler is None:
            return forced
        with contextlib.suppress(AttributeError):
            sampler.batch_size = forced
        return batch_size


class _Repeating(dataloader_module._SingleProcessDataLoaderIter):
    """The real pipeline in this process for some batches, then those again."""

    def __init__(self, loader: Any, feed: Feed) -> None:
        self._feed = feed
        self._facts = feed.facts(loader)
        self._seen: list[Any] = []
        self._given = 0
        with _plain(loader):
            super().__init__(loader)
        self._limit = _length(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._given = 0

    def __next__(self) -> Any:
        if self._feed.exhausted_by_evaluation(self._facts, sys._getframe(1)):
            self._feed._recorder.note("evaluation", "an evaluation outside the training step was cut short")
            self._facts.in_a_row = 0
            raise StopIteration
        if self._limit is not None and self._given >= self._limit:
            raise StopIteration
        enough = len(self._seen) >= _TIMED_BATCHES or sum(self._facts.fetch_times_s) > _TIMING_BUDGET_S
        if enough and self._seen:
            batch = self._seen[self._given % len(self._seen)]
        else:
            batch = self._fetch()
            self._seen.append(batch)
        self._given += 1
        self._feed.yielded(self._facts)
        return _copied(batch)

    next = __next__

    def _fetch(self) -> Any:
        facts = self._facts
        batch = self._timed()
        if not facts.batch_bytes:
            found = list(_tensors([batch]))
            facts.batch_bytes = sum(t.numel() * t.element_size() for t in found)
            facts.samples = _samples(self._facts.loader(), found)
        return batch

    def _timed(self) -> Any:
        """A batch, timed as it would be made in a worker; a pipeline that touches the device itself must see it instead."""
        facts = self._facts
        started = time.perf_counter()
        if facts.host_only:
            try:
                with _bare():
                    batch = super().__next__()
            except StopIteration:
                raise
            except Exception:
                facts.host_only = False
                started = time.perf_counter()
                batch = super().__next__()
        else:
            batch = super().__next__()
        facts.fetch_times_s.append(time.perf_counter() - started)
        return batch


@contextlib.contextmanager
def _bare() -> Iterator[None]:
    """Plain PyTorch on one thread, as in a worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
            yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _plain(loader: Any) -> Iterator[None]:
    """A loader without workers, pinned memory and time limits, for as long as its iterator is made."""
    asked = {"num_workers": 0, "pin_memory": False, "timeout": 0}
    before = {name: getattr(loader, name) for name in asked}
    for name, value in asked.items():
        setattr(loader, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(loader, name, value)


def _length(sized: Any) -> int | None:
    if sized is None or isinstance(getattr(sized, "dataset", sized), IterableDataset):
        return None
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def _samples(loader: Any, found: list[torch.Tensor]) -> int | None:
    """Samples of a batch: what the loader says, else the length that most tensors share."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    lengths = [t.shape[0] for t in found if t.dim()]
    if isinstance(size, int) and (size > 1 or not lengths):
        return min(size, max(lengths)) if lengths else size
    return max(set(lengths), key=lengths.count) if lengths else None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "data") and isinstance(value.data, dict):  # BatchEncoding, BatchFeature
            yield from _tensors(value.data.values())
        elif hasattr(value, "__dict__"):
            yield from tensors(vars(value))


def _copied(batch: Any) -> Any:
    """A batch whose containers are new, so that a script that takes items out of them finds them again."""
    if isinstance(batch, torch.Tensor):
        return batch
    if type(batch) in (list, tuple):
        return type(batch)(_copied(b) for b in batch)
    if type(batch) is dict:
        return {k: _copied(v) for k, v in batch.items()}
    try:
        return copy.copy(batch)
    except (TypeError, AttributeError, RuntimeError):
        return batch


def _in_a_loop(frame: FrameType | None) -> bool:
    """Whether the iterator is asked by a for loop, which may end early; next() might not expect that."""
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return False
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    if package in _LIBRARY_LOOPS:
        return True
    return dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith(("FOR_ITER", "GET_ITER", "LIST_EXTEND"))
