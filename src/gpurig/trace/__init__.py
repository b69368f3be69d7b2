"""From a training script to a StepTrace, without a GPU.

Three doors: `script.trace_script` for an unmodified script, `step.trace_step` for a step function of one's own, and
models by name. The room itself is the second: ``gpurig.trace(step, setup=…)``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.model.trace import StepTrace


class _Room(ModuleType):
    def __call__(
        self, step: Callable[..., object], *, setup: Callable[[], object] | None = None, **options: object
    ) -> StepTrace:
        """Trace one optimizer step of `step`; `setup` makes what is handed to it. See `gpurig.trace.step.trace_step`."""
        from gpurig.trace.step import trace_step

        if setup is None:
            return trace_step(lambda: None, lambda _: step(), **options)  # type: ignore[arg-type]
        return trace_step(setup, step, **options)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Room
