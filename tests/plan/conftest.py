"""A planner over made-up steps, so that plans are quick and always the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from plan_steps import step

from gpurig.trace.script import ScriptRequest, ScriptTrace

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Recorded:
    """A tracer that answers with made-up steps and remembers what it was asked."""

    weights_mib: int = 64
    activation_mib_per_sample: int = 24
    micro_batch: int = 16
    batch_knob: bool = True

    def __post_init__(self) -> None:
        self.asked: list[ScriptRequest] = []

    def __call__(self, request: ScriptRequest) -> ScriptTrace:
        self.asked.append(request)
        trace = step(
            round(self.micro_batch * request.batch_scale),
            request.precision or "bf16-amp",
            weights_mib=self.weights_mib,
            activation_mib_per_sample=self.activation_mib_per_sample,
        )
        return ScriptTrace(trace=trace, wall_time_s=1.0, batch_knob=self.batch_knob)


@pytest.fixture
def tracer() -> Callable[..., Recorded]:
    return Recorded
