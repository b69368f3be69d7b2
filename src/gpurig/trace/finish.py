"""From a finished session to a StepTrace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from gpurig.model.trace import Call, InputProfile, Op, OpClass, StepTrace

if TYPE_CHECKING:
    from gpurig.trace.session import Session

_MATRIX = (OpClass.GEMM, OpClass.CONV, OpClass.ATTENTION, OpClass.RNN)
_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp32"}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the caller of a trace knows about the run besides its operators."""

    label: str
    steps_traced: int
    samples_per_step: int | None = None
    micro_batch: int | None = None
    accumulation: int = 1
    world_size: int = 1
    data_parallel: str = "none"
    compiled: bool = False
    input: InputProfile | None = None
    trace_time_s: float = 0.0
    extra_parameters: tuple[torch.Tensor, ...] = field(default=())


def finish(session: Session, facts: RunFacts) -> StepTrace:
    """The trace of the last step of `session`."""
    recorder = session.recorder
    ops, calls = recorder.ops()
    parameters = _parameters(session, facts.extra_parameters)
    trainable = [p for p in parameters if p.requires_grad]
    return StepTrace(
        label=facts.label,
        torch_version=str(torch.__version__),
        sm=session.sm,
        precision=_precision(ops, calls, trainable or parameters),
        steps_traced=facts.steps_traced,
        samples_per_step=facts.samples_per_step,
        micro_batch=facts.micro_batch,
        accumulation=facts.accumulation,
        num_parameters=sum(p.numel() for p in parameters),
        num_trainable=sum(p.numel() for p in trainable),
        ops=ops,
        calls=calls,
        sites=recorder.sites(),
        storages=recorder.storages(),
        events=tuple(recorder.events),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        steady_from=recorder.steady_from,
        # gradients become ready from the last layer to the first
        gradient_bytes=tuple(p.numel() * p.element_size() for p in reversed(trainable)),
        world_size=facts.world_size,
        data_parallel=facts.data_parallel,
        compiled=facts.compiled,
        optimizers=tuple(sorted({type(o).__name__ for o in session.optimizers.values()})),
        input=facts.input,
        assumptions=tuple(recorder.notes.values()),
        host_syncs=sum(1 for c in calls if ops[c.op].op_class is OpClass.SYNC),
        trace_time_s=facts.trace_time_s,
    )


def _parameters(session: Session, extra: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Distinct parameters, in the order in which optimizers and modules name them."""
    found: dict[int, torch.Tensor] = {}
    for optimizer in session.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found.setdefault(id(parameter), parameter)
    for parameter in (*session.moved_parameters(), *extra):
        found.setdefault(id(parameter), parameter)
    return list(found.values())


def _precision(ops: tuple[Op, ...], calls: tuple[Call, ...], parameters: list[torch.Tensor]) -> str:
    """The precision that most of the arithmetic runs in; "-amp" where the weights are kept in fp32."""
    work: Counter[str] = Counter()
    for call in calls:
        op = ops[call.op]
        if op.op_class in _MATRIX:
            work[op.dtype] += op.flops
    weights: Counter[str] = Counter()
    for parameter in parameters:
        weights[_NAMES.get(parameter.dtype, "fp32")] += parameter.numel()
    main = work.most_common(1)[0][0] if work else "fp32"
    if main not in ("fp16", "bf16"):
        return "fp32"
    kept = weights.most_common(1)[0][0] if weights else main
    return main if kept == main else f"{main}-amp"
