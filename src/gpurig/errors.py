"""Every exception that gpurig raises on purpose.

GpurigError
├── InputError            exit 2: the call or a file given by the user is wrong
│   ├── UnknownName       a GPU, provider, region … that is not in the catalogue (suggests)
│   ├── ScriptNotFound
│   ├── ScriptFailed      the user's script crashed by itself: shown as the user's error
│   ├── NotTraceable      the script was followed, and something in it could not be
│   └── BadFile           a configuration, catalogue or table with faults: all of them at once
├── AnswerIsNo            exit 1: nothing fits, a check failed
│   └── NoOfferFits
└── OutsideError          exit 3: something outside gpurig failed
    ├── MissingPackage    an optional package is not installed (says how to)
    └── DownloadFailed
"""

from __future__ import annotations

from typing import ClassVar


class GpurigError(Exception):
    """Base of all errors that gpurig raises on purpose.

    Attributes:
        code: Stable identifier, for scripts that read ``--json``.
        details: Further facts, one line each: what was needed, what there was.
        hint: One imperative sentence that names the next command, or None.
        exit_code: Exit status of the command line.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, *, details: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.hint = hint


class InputError(GpurigError):
    """The call, or a file that it names, is wrong."""

    code = "bad-input"
    exit_code = 2


class UnknownName(InputError):
    """A name that the catalogue does not know."""

    code = "unknown-name"

    def __init__(self, kind: str, name: str, suggestions: tuple[str, ...] = (), *, hint: str | None = None) -> None:
        did_you_mean = f"did you mean {', '.join(suggestions)}?" if suggestions else None
        super().__init__(f"unknown {kind} {name!r}", details=(did_you_mean,) if did_you_mean else (), hint=hint)
        self.kind = kind
        self.name = name
        self.suggestions = suggestions


class ScriptNotFound(InputError):
    """The training script is not there."""

    code = "script-not-found"


class ScriptFailed(InputError):
    """The user's script failed by itself, before or between steps, for a reason of its own."""

    code = "script-failed"


class NotTraceable(InputError):
    """Something in the script could not be followed; the message names it (file, line, operation)."""

    code = "not-traceable"


class BadFile(InputError):
    """A file with faults. ``details`` lists all of them, not only the first."""

    code = "bad-file"


class AnswerIsNo(GpurigError):
    """The question was answered, and the answer is no."""

    code = "no"
    exit_code = 1


class NoOfferFits(AnswerIsNo):
    """No offer satisfies memory and constraints; ``details`` counts the rejections by reason."""

    code = "no-offer-fits"


class OutsideError(GpurigError):
    """Something outside gpurig failed: a network, a cloud, a missing optional package."""

    code = "outside"
    exit_code = 3


class MissingPackage(OutsideError):
    """An optional package is needed and not installed."""

    code = "missing-package"


class DownloadFailed(OutsideError):
    """A refresh could not be completed; what was there before is kept."""

    code = "download-failed"
