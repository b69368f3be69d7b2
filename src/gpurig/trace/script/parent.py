"""The parent's side of the script door: start the child, hold it to its limits, read its report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import gpurig
from gpurig.errors import BadFile, GpurigError, MissingPackage, NotTraceable, ScriptFailed, ScriptNotFound
from gpurig.trace import store
from gpurig.trace.script.request import ChildReport, ScriptRequest, ScriptTrace

if TYPE_CHECKING:
    from collections.abc import Iterator

_GRACE_S = 5.0  # the child reports by itself at its limit; it is killed this much later
_MOST_GPUS = 64
_TAIL_CHARACTERS = 4000
# Logging services and hubs are told to stay off line; a script that insists meets the network guard of the child
_QUIET = {
    "WANDB_MODE": "disabled",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "DO_NOT_TRACK": "1",
    "MPLBACKEND": "Agg",
    "TOKENIZERS_PARALLELISM": "false",
    "HYDRA_FULL_ERROR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "GPURIG_PLANNING": "1",
}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def trace_script(request: ScriptRequest) -> ScriptTrace:
    """Trace a training script on a GPU that is not there.

    The script runs in a child process of its own group, in the user's Python. It is started again as a launcher would
    start it if it asks for that: with a launcher's environment, or as rank 0 of two if it refuses to run on one GPU.

    Raises:
        ScriptNotFound: there is no such file.
        ScriptFailed: the script failed by itself; the message shows its own error.
        NotTraceable: it could not be followed, made no optimizer step within the limit, or needs a download.
        MissingPackage: its Python has no PyTorch.
    """
    _check_exists(request)
    started = time.perf_counter()
    report, out, err = _attempt(request)
    extra: tuple[str, ...] = ()
    if report.cause == "launcher" and request.world_size is None:
        extra = ("it wants a launcher's environment: traced as the only rank of a torchrun job",)
        request = dataclasses.replace(request, world_size=1, time_limit_s=_left(request, started))
        report, out, err = _attempt(request)
    if report.cause == "one-gpu" and (request.world_size or 1) == 1 and request.card.num_gpus == 1:
        wanted = _gpus_named(report.message + "\n" + out + err)
        extra = (f"it refuses to start on one GPU: traced as rank 0 of a job on {wanted}",)
        card = dataclasses.replace(request.card, num_gpus=wanted)
        request = dataclasses.replace(request, world_size=wanted, card=card, time_limit_s=_left(request, started))
        report, out, err = _attempt(request)
    while report.cause.startswith("stand-in:"):
        name = report.cause.partition(":")[2]
        request = dataclasses.replace(
            request, stand_ins=(*request.stand_ins, name), time_limit_s=_left(request, started)
        )
        report, out, err = _attempt(request)
    if report.trace is None:
        raise _error(report, out, err)
    return ScriptTrace(
        trace=report.trace,
        wall_time_s=time.perf_counter() - started,
        stdout=out,
        stderr=err,
        notes=(*extra, *report.notes),
        batch_knob=report.batch_knob,
    )


def _gpus_named(text: str) -> int:
    """How many GPUs a refusal names, two if it doesn't say."""
    found = [
        int(n)
        for n in re.findall(r"\b(\d{1,2})\s+(?:gpus?|devices?|accelerators?|processes|ranks)\b", text, re.IGNORECASE)
    ]
    return max([n for n in found if 2 <= n <= _MOST_GPUS] or [2])


def _left(request: ScriptRequest, started: float) -> float:
    return max(10.0, request.time_limit_s - (time.perf_counter() - started))


def _check_exists(request: ScriptRequest) -> None:
    cwd = request.cwd or Path.cwd()
    if not cwd.is_dir():
        raise ScriptNotFound(f"no such folder: {cwd}")
    if not request.module and not (cwd / request.script).is_file():
        raise ScriptNotFound(
            f"no such script: {request.script}",
            details=(f"looked in {cwd}",),
            hint="give the path of a training script, or a module with -m",
        )
    python = request.python or sys.executable
    if shutil.which(python) is None:
        raise ScriptNotFound(f"no such interpreter: {python}", hint="give --python the interpreter of your environment")


# --- one child -----------------------------------------------------------------------------------------------------------
def _attempt(request: ScriptRequest) -> tuple[ChildReport, str, str]:
    """Run the child once: its report, and the tails of what it printed."""
    with tempfile.TemporaryDirectory(prefix="gpurig-") as folder, _terminal() as terminal:
        scratch = Path(folder)
        sent = dataclasses.replace(request, cwd=None)  # the child is started there
        (scratch / "request.json").write_bytes(store.encode(sent))
        (scratch / "tmp").mkdir()
        code = _run(request, scratch, terminal)
        out, err = (_tail(scratch / name) for name in ("out", "err"))
        try:
            report = _read(scratch / "report.json")
        except FileNotFoundError:
            report = _no_report(request, code, err)
    return report, out, err


def _run(request: ScriptRequest, scratch: Path, terminal: int) -> int | None:
    """Exit code of the child; None if it was killed at its limit."""
    command = [
        request.python or sys.executable,
        str(Path(__file__).with_name("bootstrap.py")),
        str(Path(gpurig.__file__).parent),
        str(scratch / "request.json"),
        str(scratch / "report.json"),
    ]
    with (scratch / "out").open("wb") as out, (scratch / "err").open("wb") as err:
        child = subprocess.Popen(
            command,
            cwd=request.cwd,
            env=_environment(request, scratch),
            stdin=terminal,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            return child.wait(request.time_limit_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the whole group: workers and ranks that the script started
            child.wait()


def _environment(request: ScriptRequest, scratch: Path) -> dict[str, str]:
    environment = {**os.environ, **_QUIET}
    if not request.network:
        environment.update(_OFFLINE)
    temporary = str(scratch / "tmp")
    environment.update(TMPDIR=temporary, WANDB_DIR=temporary, CUDA_VISIBLE_DEVICES="")
    if request.world_size is not None:
        environment.update(
            RANK="0", LOCAL_RANK="0", GROUP_RANK="0", ROLE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
            WORLD_SIZE=str(request.world_size), LOCAL_WORLD_SIZE=str(min(request.world_size, request.card.num_gpus)),
            TORCHELASTIC_RUN_ID="gpurig", TORCHELASTIC_RESTART_COUNT="0",
        )  # fmt: skip
    environment.update(request.environment)
    return environment


@contextlib.contextmanager
def _terminal() -> Iterator[int]:
    """A terminal for the child's stdin: some scripts ask for its size. Reading from it meets the end at once."""
    import fcntl
    import termios

    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        os.write(master, b"\x04")  # end of input
        yield slave
    finally:
        os.close(master)
        os.close(slave)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_CHARACTERS))
        return file.read().decode(errors="replace")


def _read(path: Path) -> ChildReport:
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes(), type=ChildReport)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadFile("the traced script's report cannot be read", details=(str(error),)) from error


def _no_report(request: ScriptRequest, code: int | None, err: str) -> ChildReport:
    """The child ended without a word."""
    if code is None:
        return ChildReport(
            outcome="not-traceable",
            message=f"no optimizer step within {request.time_limit_s:.0f} s, and the script did not react",
            hint="raise the limit with --time-limit, or shorten what the script does before its first step",
        )
    if code < 0:
        name = signal.Signals(-code).name
        why = "it ran out of memory or was killed" if -code == signal.SIGKILL else "its native code crashed"
        return ChildReport(
            outcome="not-traceable", message=f"the traced script died of {name}: {why}", details=_last(err)
        )
    return ChildReport(
        outcome="script-failed",
        message=f"the script left with exit code {code} before two optimizer steps",
        details=_last(err),
    )


def _last(text: str, lines: int = 6) -> tuple[str, ...]:
    return tuple(line for line in text.splitlines() if line.strip())[-lines:]


def _error(report: ChildReport, out: str, err: str) -> GpurigError:
    kinds: dict[str, type[GpurigError]] = {
        "script-failed": ScriptFailed,
        "not-traceable": NotTraceable,
        "missing-package": MissingPackage,
    }
    details = report.details or _last(err) or _last(out)
    return kinds[report.outcome](report.message, details=details, hint=report.hint)
