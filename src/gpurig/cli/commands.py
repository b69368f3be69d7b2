"""The table of all commands. A new command is one line here and one module."""

from __future__ import annotations

# name, module with the click command in `command`, help line
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("plan", "gpurig.cli.plan", "Which GPU, how long and how much, for a training script as it is"),
    ("gpus", "gpurig.cli.gpus", "GPUs that can be rented: memory, speed, links, MIG"),
    ("offers", "gpurig.cli.offers", "What can be rented where, at which price of which day"),
    ("calibrate", "gpurig.cli.calibrate", "Measure the GPU of this machine, so that plans use its own figures"),
    ("accuracy", "gpurig.cli.accuracy", "How far predictions lie from a table of measured runs"),
)
