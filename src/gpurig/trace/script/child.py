"""The child process: the user's script as __main__, on a GPU that is not there, until it has made enough steps."""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
import time
import traceback
from pathlib import Path

from gpurig.trace import store
from gpurig.trace.card import CardFacts
from gpurig.trace.script.request import ChildReport, ScriptRequest

_TRACEBACK_DEPTH = 100


def main(request_file: Path, report_file: Path) -> None:
    """Run the request; the report is written before the process ends, however it ends."""
    request = _read(request_file)
    out = Reporter(report_file)
    if request.memory_limit_bytes is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (request.memory_limit_bytes,) * 2)
    sys.argv = [request.script, *request.argv]
    sys.path.insert(0, "" if request.module else str(Path(request.script).resolve().parent))
    _watch_the_clock(request, out)
    try:
        import torch
    except ImportError:
        out.leave(
            ChildReport(
                outcome="missing-package",
                message=f"PyTorch is not installed in {sys.executable}",
                hint="name the interpreter that runs your training with --python, or install it: pip install torch",
            )
        )
        return
    try:
        from gpurig.trace.standins import torchvision_ops

        torchvision_ops.declare()  # before anything imports torchvision
        from gpurig.trace.script.run import Run

        run = Run(request, out)
        run.install()
    except Exception as error:
        out.leave(
            ChildReport(
                outcome="not-traceable",
                message=f"gpurig cannot work with PyTorch {torch.__version__}: {type(error).__name__}: {error}",
                details=tuple(traceback.format_exc().splitlines()[-6:]),
                hint="use PyTorch 2.4 or later, or report this",
            )
        )
        return
    run.run(_script)


def _script(request: ScriptRequest) -> None:
    """The user's code, as ``python script`` or ``python -m module`` would run it."""
    if request.module:
        runpy.run_module(request.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(request.script, run_name="__main__")


def _read(path: Path) -> ScriptRequest:
    fields = json.loads(path.read_text())
    card = fields["card"]
    fields["card"] = CardFacts(**{**card, "capability": tuple(card["capability"])})
    fields["argv"] = tuple(fields["argv"])
    fields["stand_ins"] = tuple(fields["stand_ins"])
    return ScriptRequest(**fields)


class Reporter:
    """Writes the report, once, and ends the process: a script's own handlers must not run after it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.steps = 0
        self.progress = ""  # what the main thread did last, for the limit's message

    def leave(self, report: ChildReport) -> None:
        with self._lock:
            part = self._path.with_suffix(".part")
            part.write_bytes(store.encode(report))
            part.replace(self._path)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError, AttributeError):
                    continue
            os._exit(0)


def _watch_the_clock(request: ScriptRequest, out: Reporter) -> None:
    """At the limit, say where the script was; the parent would only know that it was slow."""
    main_thread = threading.main_thread().ident

    def watch() -> None:
        time.sleep(request.time_limit_s)
        frame = sys._current_frames().get(main_thread or 0)
        where = _users_line(request, frame)
        steps = f"only {out.steps} optimizer step" if out.steps else "no optimizer step"
        out.leave(
            ChildReport(
                outcome="not-traceable",
                message=f"{steps} within {request.time_limit_s:.0f} s",
                details=(f"it was at {where}",) if where else (),
                hint="raise the limit with --time-limit, or shorten what the script does before its first steps",
                steps=out.steps,
            )
        )

    threading.Thread(target=watch, name="gpurig-limit", daemon=True).start()


def _users_line(request: ScriptRequest, frame: object) -> str:
    """The innermost line that lies in the user's own folder."""
    root = str((request.cwd or Path.cwd()).resolve()) if request.module else str(Path(request.script).resolve().parent)
    stack = traceback.extract_stack(frame, limit=_TRACEBACK_DEPTH)  # type: ignore[arg-type]
    for entry in reversed(stack):
        if os.path.realpath(entry.filename).startswith(root) and "site-packages" not in entry.filename:
            return f"{os.path.relpath(entry.filename)}:{entry.lineno} ({entry.name}): {entry.line}"
    return ""
