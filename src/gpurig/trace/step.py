"""The library door: trace a step function of one's own, in a notebook or in CI."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from gpurig.errors import NotTraceable
from gpurig.model.trace import Phase, StepTrace
from gpurig.trace.card import CardFacts
from gpurig.trace.finish import RunFacts, finish
from gpurig.trace.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

T = TypeVar("T")


def trace_step(
    setup: Callable[[], T],
    step: Callable[[T], object],
    *,
    steps: int = 2,
    label: str = "step",
    card: CardFacts | None = None,
    samples_per_step: int | None = None,
    micro_batch: int | None = None,
    accumulation: int = 1,
    needs_optimizer: bool = False,
    native: bool = False,
) -> StepTrace:
    """Trace one training step on a GPU that is not there.

    `setup` and `step` are ordinary code that uses ``cuda``; nothing is computed on the device. Modules that existed
    before are given back as they were.

    Args:
        setup: Builds model, optimizer and batch; its result is handed to each call of `step`.
        step: One optimizer step: forward, backward, update.
        steps: How many to run; the last is the one described. Optimizer state exists from the end of the first.
        label: Name of the workload, for people.
        card: The class of GPU whose choice of kernels is emulated; A100 by default.
        samples_per_step: Samples of one step on one rank, if the caller knows.
        micro_batch: Samples of one forward pass.
        accumulation: Forward passes in one step.
        needs_optimizer: Raise if no optimizer has changed a planned parameter.
        native: Only for tests: PyTorch itself has been given a CUDA device that does nothing.

    Raises:
        NotTraceable: no optimizer stepped over planned parameters although `needs_optimizer` asks for it.
    """
    started = time.perf_counter()
    session = Session(card or CardFacts(), native=native)
    stepped = [0]

    def count(_: torch.optim.Optimizer) -> None:
        stepped[0] += 1

    session.after_step = count
    with session():
        state = setup()
        session.recorder.phase = Phase.FORWARD
        for _ in range(steps):
            session.recorder.start_step()
            step(state)
        facts = RunFacts(
            label=label,
            steps_traced=steps,
            samples_per_step=samples_per_step,
            micro_batch=micro_batch,
            accumulation=accumulation,
            trace_time_s=time.perf_counter() - started,
        )
        trace = finish(session, facts)
    session.give_back()
    if needs_optimizer and not stepped[0]:
        raise NotTraceable(
            "no optimizer changed a parameter on the planned device",
            hint="move the model with .cuda() or .to('cuda') inside setup, before the optimizer steps",
        )
    return trace
