"""Ways to run a script's batch on a number of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpurig.model.plan import BatchPolicy
from gpurig.model.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_ACCUMULATION = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptBatch:
    """The batch as the script runs it."""

    micro_batch: int | None  # on one rank; None: not known, then it is taken as it is
    accumulation: int = 1
    world_size: int = 1
    adjustable: bool = False  # whether the step at other micro-batches is known

    @property
    def global_batch(self) -> int | None:
        return None if self.micro_batch is None else self.micro_batch * self.accumulation * self.world_size


def recipes(batch: ScriptBatch, num_gpus: int, num_nodes: int, precision: str, policy: BatchPolicy) -> Iterator[Recipe]:
    """Recipes for `num_gpus`, the one with the largest micro-batch first.

    With `BatchPolicy.KEEP` the global batch is that of the script; more accumulation follows for when memory is short.
    Yields nothing if the batch cannot be divided so.
    """
    base = {"precision": precision, "num_gpus": num_gpus, "num_nodes": num_nodes}
    if batch.micro_batch is None or (policy is BatchPolicy.SCALE and not batch.adjustable):
        yield _recipe(base, batch.micro_batch, batch.accumulation)
        return
    total = batch.global_batch
    per_gpu = batch.micro_batch * batch.accumulation
    if policy is BatchPolicy.KEEP and num_gpus != batch.world_size:
        if total is None or total % num_gpus:
            return
        per_gpu = total // num_gpus
    if not batch.adjustable:
        # only the script's own micro-batch was traced: accumulation has to make up the rest
        if per_gpu % batch.micro_batch == 0:
            yield _recipe(base, batch.micro_batch, per_gpu // batch.micro_batch)
        return
    first = max(1, -(-per_gpu // batch.micro_batch))
    for accumulation in range(first, min(per_gpu, _MAX_ACCUMULATION) + 1):
        if per_gpu % accumulation == 0:
            yield _recipe(base, per_gpu // accumulation, accumulation)


def _recipe(base: dict[str, object], micro_batch: int | None, accumulation: int) -> Recipe:
    return Recipe(micro_batch=micro_batch, accumulation=accumulation, **base)  # type: ignore[arg-type]
