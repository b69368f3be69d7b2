"""How long the run is: from what the user says, what the script's arguments say, or a stated default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpurig.errors import InputError
from gpurig.model.plan import RunLength

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurig.model.trace import StepTrace

_ASSUMED_STEPS = 10_000
_EPOCH_FLAGS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs", "n_epochs", "total_epochs", "epoch")
_STEP_FLAGS = (
    "max_steps",
    "max_iters",
    "num_steps",
    "total_steps",
    "max_train_steps",
    "train_steps",
    "iterations",
    "iters",
)


def run_length(
    trace: StepTrace,
    argv: Sequence[str] = (),
    *,
    epochs: float | None = None,
    steps: float | None = None,
    samples: float | None = None,
) -> RunLength:
    """The run's length in samples.

    Args:
        trace: Tells the samples of a step and, where the script has a data set with a length, of an epoch.
        argv: The script's own arguments, read for ``--epochs N`` and the like if nothing else is given.
        epochs: Passes over the data set.
        steps: Optimizer steps of the script as it is.
        samples: Samples in all.

    Raises:
        InputError: more than one of the three, or epochs of a data set without a length.
    """
    given = [
        name for name, value in (("--epochs", epochs), ("--steps", steps), ("--samples", samples)) if value is not None
    ]
    if len(given) > 1:
        raise InputError(f"the run's length is given twice: {' and '.join(given)}", hint=f"leave out {given[1]}")
    per_step = (trace.samples_per_step or 1) * trace.world_size
    if samples is not None:
        return RunLength(samples=samples, text=f"{samples:,.0f} samples", assumed=False)
    if steps is not None:
        return RunLength(samples=steps * per_step, text=f"{steps:,.0f} steps", assumed=False)
    size = None if trace.input is None else trace.input.dataset_samples
    if epochs is not None:
        if size is None:
            raise InputError(
                "the length of an epoch is not known: the script's data has no length",
                hint="give --steps or --samples instead of --epochs",
            )
        return _epochs(epochs, size, "", assumed=False)
    return _from_arguments(argv, size, per_step)


def _from_arguments(argv: Sequence[str], size: int | None, per_step: int) -> RunLength:
    flags = _flags(argv)
    for flag in _STEP_FLAGS:
        if flag in flags:
            return RunLength(
                samples=flags[flag] * per_step, text=f"{flags[flag]:,.0f} steps, read from --{flag}", assumed=True
            )
    for flag in _EPOCH_FLAGS:
        if flag in flags and size is not None:
            return _epochs(flags[flag], size, f", read from --{flag}", assumed=True)
    if size is not None:
        return _epochs(1, size, ", assumed: say --epochs N", assumed=True)
    text = f"{_ASSUMED_STEPS:,} steps, assumed: say --steps N"
    return RunLength(samples=_ASSUMED_STEPS * per_step, text=text, assumed=True)


def _epochs(count: float, size: int, source: str, *, assumed: bool) -> RunLength:
    plural = "" if count == 1 else "s"
    return RunLength(samples=count * size, text=f"{count:g} epoch{plural} of {size:,} samples{source}", assumed=assumed)


def _flags(argv: Sequence[str]) -> dict[str, float]:
    """Numeric flags of the script, dashes as underscores: ``--max-steps 100``, ``--epochs=3``."""
    found: dict[str, float] = {}
    for index, word in enumerate(argv):
        if not word.startswith("-") and "=" not in word:
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = argv[index + 1] if index + 1 < len(argv) else ""
        try:
            number = float(value)
        except ValueError:
            continue
        if number > 0:
            found.setdefault(name.replace("-", "_").rpartition(".")[2], number)
    return found
