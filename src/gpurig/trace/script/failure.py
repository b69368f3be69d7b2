"""Why a script was not traced: its own fault, a download, or something that could not be followed.

What the user sees is the user's error: file, line, message and the tail of the traceback without frames of ours.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.errors import GpurigError
from gpurig.trace.script.request import ChildReport, ScriptRequest
from gpurig.trace.standins.absent import KNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpurig.trace.script.launch import Launch
    from gpurig.trace.script.steps import StepWatch
    from gpurig.trace.session import Session

_OURS = str(Path(__file__).parents[1])
_HIDDEN = (_OURS, "<frozen", "/runpy.py", "/torch/overrides.py", "/torch/_ops.py", "/torch/utils/_device.py")
_FRAMES = 6
_FAKE_ERRORS = re.compile(
    r"DynamicOutputShape|DataDependentOutput|UnsupportedOperator|UnsupportedFakeTensor|FakeTensor|[Mm]eta tensor"
    r"|'Meta' backend|meta device|device \"?meta|data pointer of Tensor|no storage|has no data"
)
_CUDA_ERRORS = re.compile(
    r"not compiled with CUDA|not linked with support for cuda|No CUDA GPUs|NVIDIA driver|CUDA_HOME|nvcc|ATen_cuda"
    r"|Cannot access accelerator|active drivers|libcuda|invalid device ordinal|CUDA error|ProcessGroupNCCL"
)
_DOWNLOADS = re.compile(
    r"LocalEntryNotFound|OfflineMode|outgoing traffic has been disabled|[Cc]ouldn't (reach|connect)|couldn't find it in the"
    r"|Cannot find the requested files in the (local|disk) cache|HF_HUB_OFFLINE|offline mode|keeps scripts off the network"
    r"|NameResolution|Name or service not known|name resolution|Max retries exceeded|URLError"
    r"|download=True to download|is not cached locally|ConnectionError"
)
_LAUNCHER = re.compile(r"\b(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\b")
_MORE_GPUS = re.compile(
    r"(at least|sufficient|requires?|need|more than|multiple|minimum).{0,40}\b(gpus?|devices?|accelerators?|processes|ranks)\b"
    r"|world.?size.{0,30}(at least|greater|must|>)", re.IGNORECASE
)  # fmt: skip


class Failure:
    """Explains how a script ended without enough steps."""

    def __init__(self, request: ScriptRequest, session: Session, steps: StepWatch, launch: Launch) -> None:
        self._request = request
        self._session = session
        self._steps = steps
        self._launch = launch

    def report(self, error: BaseException | None) -> ChildReport:
        """The report for a script that ended with `error`, or by itself."""
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return self._ended()
        if self._steps.on_host_only():
            return self.on_host(error)
        chain = list(_chain(error))
        text = "\n".join(f"{type(e).__name__}: {e}" for e in chain)
        ours = next((e for e in chain if isinstance(e, GpurigError)), None)
        if ours is not None:
            return ChildReport(
                outcome="not-traceable",
                message=ours.message,
                details=(*ours.details, *self._where(error)),
                hint=ours.hint,
            )
        if isinstance(error, SystemExit):
            return self._left(error)
        cause = self._another_start(error, text)
        if cause:
            return self._own_fault(error, cause=cause)
        if _DOWNLOADS.search(text):
            return self._download(error, chain)
        if isinstance(error, ModuleNotFoundError):
            return self._own_fault(error, hint=f"install {error.name} for {sys.executable}, then plan again")
        if _CUDA_ERRORS.search(text):
            return self._not_followed(error, "it needs a real GPU or CUDA compiler here")
        if _FAKE_ERRORS.search(text) or self._inside_ours(error):
            return self._not_followed(error, "an operation could not be followed without data")
        if self._judged_invented_values(error):
            return self._not_followed(error, "a check of values that only a GPU could tell failed")
        return self._own_fault(error)

    def on_host(self, error: BaseException | None = None) -> ChildReport:
        """The report for a script that never uses the GPU. Weights on the host have no values, so it may fail by them."""
        return ChildReport(
            outcome="not-traceable",
            message="the script trains on the CPU: its optimizer changes no parameter on the GPU",
            details=self._where(error) if error is not None else (),
            hint="give it the option that chooses the GPU (often --device cuda)",
            cause="host",
        )

    # --- kinds --------------------------------------------------------------------------------------------------------
    def _ended(self) -> ChildReport:
        rounds = self._steps.rounds
        count = f"{rounds} optimizer step{'' if rounds == 1 else 's'}" if rounds else "an optimizer step"
        few = rounds > 0
        return ChildReport(
            outcome="not-traceable",
            message=f"the script ended by itself after {count}"
            if few
            else f"the script ended without {count} on the GPU",
            hint="give it arguments with which it trains for three steps or more (data, epochs, batch size)",
            cause="one-gpu" if not few and self._session.asked_how_many else "",
            steps=rounds,
        )

    def _left(self, error: SystemExit) -> ChildReport:
        text = error.code if isinstance(error.code, str) else ""
        if error.code == 2 and not text:  # argparse and click leave so, after their message on stderr
            message = "the script refused its arguments"
            return ChildReport(outcome="script-failed", message=message, hint="check what stands after --")
        return ChildReport(
            outcome="script-failed",
            message=f"the script left with {text or f'exit code {error.code}'} before its second optimizer step",
            details=self._where(error),
            cause="one-gpu" if _MORE_GPUS.search(text) or (not text and self._session.asked_how_many) else "",
        )

    def _own_fault(self, error: BaseException, *, cause: str = "", hint: str | None = None) -> ChildReport:
        if hint is None and not cause:
            hint = "run the script by itself; this happens without planning too"
        return ChildReport(
            outcome="script-failed",
            message=f"the script failed by itself: {_one_line(error)}",
            details=self._where(error),
            hint=hint,
            cause=cause,
            steps=self._steps.rounds,
        )

    def _not_followed(self, error: BaseException, why: str) -> ChildReport:
        op = self._session.device.current
        during = f" in {op}" if op else ""
        return ChildReport(
            outcome="not-traceable",
            message=f"{why}{during}: {_one_line(error)}",
            details=self._where(error),
            hint="plan with a configuration that avoids this line, or trace the step with gpurig.trace(step_fn, ...)",
            steps=self._steps.rounds,
        )

    def _download(self, error: BaseException, chain: list[BaseException]) -> ChildReport:
        target = next((e.target for e in chain if hasattr(e, "target")), None)
        return ChildReport(
            outcome="not-traceable",
            message=f"it needs a download of {target}" if target else f"it needs a download: {_one_line(error)}",
            details=self._where(error),
            hint="download it first (run the script once for a moment), or allow the network with --network",
        )

    def _another_start(self, error: BaseException, text: str) -> str:
        """In which other way the script may want to be started (see ChildReport.cause); empty if in none."""
        if isinstance(error, KeyError | ValueError | TypeError | AssertionError) and self._wants_launcher(error, text):
            return "launcher"
        if _MORE_GPUS.search(str(error)) and isinstance(error, (RuntimeError, ValueError, AssertionError)):
            return "one-gpu"
        absent = self._absent(error, text)
        return f"stand-in:{absent}" if absent else ""

    # --- where --------------------------------------------------------------------------------------------------------
    def _wants_launcher(self, error: BaseException, text: str) -> bool:
        if self._request.world_size is not None or "RANK" in os.environ:
            return False
        if isinstance(error, KeyError):
            return bool(error.args) and _LAUNCHER.fullmatch(str(error.args[0])) is not None
        if _LAUNCHER.search(text) and "environment" in text:
            return True
        line = next(iter(self._where(error)), "")
        return isinstance(error, TypeError) and _LAUNCHER.search(line) is not None

    def _judged_invented_values(self, error: BaseException) -> bool:
        """Whether the function that raised has read values that were made up."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        return trace is not None and trace.tb_frame.f_code in self._session.device.invented

    def _absent(self, error: BaseException, text: str) -> str:
        """The package that needs a GPU and is asked for, if one is."""
        if not isinstance(error, ImportError):
            return ""
        for name in KNOWN:
            if name in text and name not in self._request.stand_ins:
                return name
        return ""

    def _inside_ours(self, error: BaseException) -> bool:
        frames = traceback.extract_tb(error.__traceback__)
        return bool(frames) and frames[-1].filename.startswith(_OURS)

    def _where(self, error: BaseException) -> tuple[str, ...]:
        """The tail of the traceback, innermost last, starting with the user's own line."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(h in f.filename for h in _HIDDEN)]
        own = [i for i, f in enumerate(frames) if "site-packages" not in f.filename and "/lib/python" not in f.filename]
        start = max(0, min(own[-1] if own else len(frames), len(frames) - _FRAMES)) if frames else 0
        shown = frames[start:][-_FRAMES:]
        if own and frames[own[-1]] not in shown:
            shown = [frames[own[-1]], *shown[1:]]
        return tuple(f"{_short(f.filename)}:{f.lineno} in {f.name}: {f.line}" for f in shown)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    if relative.startswith(".."):
        return path.rpartition("site-packages/")[2]
    return relative
