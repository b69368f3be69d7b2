"""Traces of workloads: in a child process that may be slow, crash or run out of memory, and kept in a cache folder."""

from __future__ import annotations

import contextlib
import multiprocessing
import warnings
import zlib
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gpurig.accuracy.workload import Unanswerable, Workload
from gpurig.model.trace import SCHEMA_VERSION, StepTrace

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

DEFAULT_TIMEOUT_S = 180.0
_ROWS_PER_CHILD = 150  # a fresh process now and then: caches of torch and transformers grow
STEPS_FOR_TIME = 2  # optimizer state exists after the first
STEPS_FOR_MEMORY = 3  # the allocator's fragments settle after the second


def default_cache() -> Path:
    """The folder for traces: gpurig/traces in the user's cache folder (XDG_CACHE_HOME, else ~/.cache)."""
    import os

    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "gpurig" / "traces"


@dataclass(frozen=True, slots=True)
class Traced:
    """What a workload is traced as: the kernel choice of attention depends on the class of GPU, nothing else does."""

    workload: Workload
    sm: int
    steps: int = STEPS_FOR_MEMORY

    @property
    def key(self) -> str:
        short = "" if self.steps == STEPS_FOR_MEMORY else f"-{self.steps}"
        return f"{self.workload.key}-{self.sm}{short}"


def sm_class(sm: int | None, workload: Workload) -> int:
    """The class of GPU to trace for: 70, 75, 80 or 90. One class where the choice of kernels does not depend on it."""
    if workload.attention != "sdpa" or workload.model.startswith("torchvision:"):
        return 80
    known = sm or 80
    return max(c for c in (70, 75, 80, 90) if c <= max(70, known))


def trace_workload(traced: Traced) -> StepTrace:
    """Trace one workload in this process.

    Raises:
        GpurigError: the model cannot be built or followed.
    """
    from gpurig.accuracy.build import make_step, traced_accumulation
    from gpurig.trace.card import CardFacts
    from gpurig.trace.step import trace_step

    workload = traced.workload
    accumulation = traced_accumulation(workload)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = trace_step(
            lambda: make_step(workload),
            lambda step: step(),
            steps=traced.steps,
            label=workload.model,
            card=CardFacts(capability=divmod(traced.sm, 10)),
            samples_per_step=workload.batch * accumulation,
            micro_batch=workload.batch,
            accumulation=accumulation,
        )
    return replace(trace, torch_version=str(trace.torch_version))


class Tracer:
    """Traces workloads in a child process, one after another, each at most once.

    A workload that takes too long or kills the child gives a reason instead of a trace; the next one gets a new child.
    Use it as a context manager: the child ends with it.
    """

    def __init__(self, cache: Path | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._cache = cache
        self._timeout_s = timeout_s
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._served = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_child()

    def trace(self, traced: Traced) -> StepTrace | Unanswerable:
        """The trace of a workload, or why there is none."""
        kept = self.kept(traced)
        if kept is not None:
            return kept
        answer = self._ask(traced)
        if isinstance(answer, StepTrace):
            self._keep(traced, answer)
        return answer

    def _ask(self, traced: Traced) -> StepTrace | Unanswerable:
        if self._served >= _ROWS_PER_CHILD:
            self._end_child()
        connection = self._connection or self._start_child()
        try:
            connection.send(traced)
            if not connection.poll(self._timeout_s):
                self._end_child()
                return Unanswerable(f"tracing took longer than {self._timeout_s:.0f} s")
            answer: StepTrace | Unanswerable = connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._end_child()
            return Unanswerable("tracing ended the process (out of host memory?)")
        self._served += 1
        return answer

    def _start_child(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._process, self._connection, self._served = process, ours, 0
        return ours

    def _end_child(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    # cache

    def _file(self, traced: Traced) -> Path | None:
        if self._cache is None:
            return None
        return self._cache / f"torch-{metadata.version('torch').split('+')[0]}" / f"{traced.key}.msgpack.z"

    def kept(self, traced: Traced) -> StepTrace | None:
        """The trace of a workload if it is in the cache, with as many steps or more."""
        found = self._read(traced)
        if found is None and traced.steps != STEPS_FOR_MEMORY:
            found = self._read(replace(traced, steps=STEPS_FOR_MEMORY))
        return found

    def _read(self, traced: Traced) -> StepTrace | None:
        import msgspec

        file = self._file(traced)
        if file is None or not file.is_file():
            return None
        with contextlib.suppress(msgspec.DecodeError, zlib.error, OSError):
            trace = msgspec.msgpack.decode(zlib.decompress(file.read_bytes()), type=StepTrace)
            if trace.schema_version == SCHEMA_VERSION:
                return trace
        return None

    def _keep(self, traced: Traced, trace: StepTrace) -> None:
        import msgspec

        file = self._file(traced)
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".part")
        unfinished.write_bytes(zlib.compress(msgspec.msgpack.encode(trace), 1))
        unfinished.replace(file)


def _serve(connection: Connection) -> None:
    """The child: answer workloads until the parent goes away."""
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    while True:
        try:
            traced: Traced = connection.recv()
        except (EOFError, OSError):
            return
        connection.send(_answer(traced))


def _answer(traced: Traced) -> StepTrace | Unanswerable:
    from gpurig.errors import GpurigError

    try:
        return trace_workload(traced)
    except GpurigError as error:
        return Unanswerable(error.message)
    except Exception as error:
        return Unanswerable(f"the model failed to trace: {type(error).__name__}")
