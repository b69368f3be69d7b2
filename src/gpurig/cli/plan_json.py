"""A plan as JSON: the same fields as the Python objects, and what other tools look for at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpurig.cli.render import Json, as_json
from gpurig.predict.memory import allocator_usage

if TYPE_CHECKING:
    from gpurig.model.trace import StepTrace
    from gpurig.plan.make import Planned


def plan_object(planned: Planned) -> dict[str, Json]:
    """Members of the JSON object that ``gpurig plan --json`` prints."""
    trace = planned.trace
    usage = allocator_usage(trace, trace.sm)
    return {
        "script": trace.label,
        "steps_traced": trace.steps_traced,
        "peak_memory_bytes": usage.peak_reserved,
        "peak_allocated_bytes": usage.peak_allocated,
        "trace": trace_summary(trace),
        "run": as_json(planned.plan.goal.run),
        "choices": [as_json(choice) for choice in planned.plan.choices],
        "frontier": list(planned.plan.frontier),
        "rejections": as_json(planned.plan.rejections),
        "considered": planned.plan.considered,
        "notes": [*planned.notes],
    }


def trace_summary(trace: StepTrace) -> Json:
    """A trace without its operator table."""
    kept = (
        "torch_version", "sm", "precision", "samples_per_step", "micro_batch", "accumulation", "num_parameters",
        "num_trainable", "world_size", "data_parallel", "compiled", "optimizers", "input", "assumptions", "host_syncs",
        "trace_time_s",
    )  # fmt: skip
    return {
        **{name: as_json(getattr(trace, name)) for name in kept},
        "num_calls": len(trace.calls),
        "flops": sum(trace.ops[c.op].flops for c in trace.calls),
    }
