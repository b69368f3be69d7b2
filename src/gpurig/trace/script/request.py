"""What a caller asks of the script door, and what it gets. Imports no PyTorch: the parent process doesn't need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 msgspec reads the annotations of these classes when it decodes

from gpurig.model.trace import StepTrace  # noqa: TC001
from gpurig.trace.card import CardFacts

FORCED_PRECISIONS = ("fp32", "fp16-amp", "bf16-amp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """One training script to be traced, and how.

    Attributes:
        script: The script's path, or a module name if `module` is set (as for ``python -m``).
        argv: Its arguments.
        cwd: The folder that it is started in; None: the present one.
        python: The interpreter that it is started with: the user's own, with the user's packages.
        time_limit_s: Wall-clock limit of the whole trace; the process group is killed at it.
        memory_limit_bytes: Limit of the child's own memory; None: no limit.
        steps: Optimizer steps to trace. The last one is described; optimizer state exists from the first.
        card: The class of GPU that the script is shown.
        world_size: Ranks of the imagined job; the script runs as rank 0. None: as ``python script`` would start it.
        batch_size: Batch size to force on DataLoaders; None: the script's own.
        batch_scale: Factor on the batch size of DataLoaders.
        precision: One of FORCED_PRECISIONS, or None for the script's own.
        checkpointing: Switch on activation checkpointing where the library of the model offers it.
        network: Let the script reach the network (downloads of weights and data).
        environment: Environment variables besides the present ones.
        stand_ins: Packages that need a GPU to be installed and are stood in for ("flash_attn", "apex", "xformers").
    """

    script: str
    argv: tuple[str, ...] = ()
    module: bool = False
    cwd: Path | None = None
    python: str | None = None
    time_limit_s: float = 150.0
    memory_limit_bytes: int | None = None
    steps: int = 3
    card: CardFacts = field(default_factory=CardFacts)
    world_size: int | None = None
    batch_size: int | None = None
    batch_scale: float = 1.0
    precision: str | None = None
    checkpointing: bool = False
    network: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    stand_ins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.precision is not None and self.precision not in FORCED_PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is not one of {', '.join(FORCED_PRECISIONS)}")
        if self.steps < 2:
            raise ValueError("at least two steps are traced: optimizer state exists only after the first")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTrace:
    """A traced script.

    Attributes:
        trace: Its steady step.
        wall_time_s: Time that tracing took, start of Python included.
        stdout, stderr: The last lines that the script printed.
        notes: What was assumed, and which stand-ins were used, for people.
        batch_knob: Whether the batch size could be forced (the script feeds its steps by a DataLoader).
    """

    trace: StepTrace
    wall_time_s: float
    stdout: str = ""
    stderr: str = ""
    notes: tuple[str, ...] = ()
    batch_knob: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildReport:
    """What the child process writes for its parent.

    `outcome` is "traced", "script-failed", "not-traceable" or "missing-package". `cause` says why in one word where the
    parent may do something about it: "one-gpu" (it refuses to start on one GPU), "launcher" (it wants a launcher's
    environment), "stand-in:NAME" (it wants a package that needs a GPU).
    """

    outcome: str
    trace: StepTrace | None = None
    message: str = ""
    details: tuple[str, ...] = ()
    hint: str | None = None
    cause: str = ""
    notes: tuple[str, ...] = ()
    batch_knob: bool = False
    steps: int = 0
