"""The same step at another micro-batch: between (or beyond) two traces of it.

Every size in a step is affine in the micro-batch as long as the program takes the same path. Two traces that made the same
requests in the same order give each size as a + b·micro_batch; a third checks that it is so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.model.trace import Call, Op, StepTrace, Storage


class Affine:
    """A number at any micro-batch, from its values at two."""

    __slots__ = ("_low", "_slope", "_start")

    def __init__(self, low: int, high: int, at_low: float, at_high: float) -> None:
        self._low = at_low
        self._slope = (at_high - at_low) / (high - low)
        self._start = low

    def at(self, micro_batch: int) -> int:
        """The value, rounded to a whole number and never negative."""
        return max(0, round(self._low + self._slope * (micro_batch - self._start)))


def same_path(low: StepTrace, high: StepTrace) -> bool:
    """Whether two traces made the same calls and the same requests in the same order."""
    if len(low.calls) != len(high.calls) or len(low.storages) != len(high.storages):
        return False
    if [(s, i) for s, i, _ in low.events] != [(s, i) for s, i, _ in high.events]:
        return False
    pairs = {(a.op, b.op) for a, b in zip(low.calls, high.calls, strict=True)}
    return all(low.ops[a].name == high.ops[b].name and len(low.ops[a].dims) == len(high.ops[b].dims) for a, b in pairs)


def at_micro_batch(low: StepTrace, high: StepTrace, micro_batch: int) -> StepTrace | None:
    """The step at `micro_batch`, or None where the two traces took different paths.

    Args:
        low: Trace at its own `micro_batch`.
        high: Trace of the same step at a larger one.
        micro_batch: The one wanted.

    Raises:
        ValueError: the traces do not know their micro-batch, or it is the same.
    """
    if low.micro_batch is None or high.micro_batch is None or low.micro_batch >= high.micro_batch:
        raise ValueError("two traces of known, different micro-batch are needed, the smaller first")
    if micro_batch == low.micro_batch:
        return low
    if micro_batch == high.micro_batch:
        return high
    if not same_path(low, high):
        return None
    between = (low.micro_batch, high.micro_batch)
    ops: dict[tuple[int, int], int] = {}
    made: list[Op] = []
    calls: list[Call] = []
    for a, b in zip(low.calls, high.calls, strict=True):
        key = (a.op, b.op)
        if key not in ops:
            ops[key] = len(made)
            made.append(_op_between(low.ops[a.op], high.ops[b.op], between, micro_batch))
        calls.append(replace(a, op=ops[key]))
    storages = tuple(
        replace(s, num_bytes=max(1, Affine(*between, s.num_bytes, t.num_bytes).at(micro_batch)))
        for s, t in zip(low.storages, high.storages, strict=True)
    )
    samples = None if low.samples_per_step is None else low.samples_per_step * micro_batch // low.micro_batch
    return replace(
        low, ops=tuple(made), calls=tuple(calls), storages=storages, micro_batch=micro_batch, samples_per_step=samples
    )


def _op_between(low: Op, high: Op, between: tuple[int, int], micro_batch: int) -> Op:
    if low == high:
        return low
    return replace(
        low,
        flops=Affine(*between, low.flops, high.flops).at(micro_batch),
        read_bytes=Affine(*between, low.read_bytes, high.read_bytes).at(micro_batch),
        write_bytes=Affine(*between, low.write_bytes, high.write_bytes).at(micro_batch),
        num_kernels=max(low.num_kernels, Affine(*between, low.num_kernels, high.num_kernels).at(micro_batch)),
        dims=tuple(Affine(*between, a, b).at(micro_batch) for a, b in zip(low.dims, high.dims, strict=True)),
    )


def storages_agree(predicted: StepTrace, traced: StepTrace) -> float:
    """Largest relative difference of the total bytes requested: 0 where the step is affine in the micro-batch."""
    a, b = _total(predicted.storages), _total(traced.storages)
    return abs(a - b) / max(a, b, 1)


def _total(storages: tuple[Storage, ...]) -> int:
    return sum(s.num_bytes for s in storages)
