"""A traced script as the planner sees it: predictions under any recipe, from a few traces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gpurig.model.prediction import MemoryPrediction, Prediction
from gpurig.model.trace import StepTrace, StorageKind
from gpurig.predict.batch import at_micro_batch
from gpurig.predict.communication import Link, link_of
from gpurig.predict.memory import allocator_usage, fits, predict_memory, replay_key
from gpurig.predict.predict import predict_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpurig.model.gpu import Gpu
    from gpurig.model.recipe import Recipe
    from gpurig.plan.rank import Host
    from gpurig.plan.recipes import ScriptBatch
    from gpurig.predict.allocator import Usage
    from gpurig.predict.base_memory import MemoryCalibration
    from gpurig.predict.coefficients import Coefficients

_FLASH_FROM_SM = 80


class StepFamily:
    """One script in one precision and for one class of GPU, at any micro-batch.

    Args:
        low: The trace at the smaller micro-batch, or the only one.
        high: The same at a larger one; None: only `low`'s micro-batch is known.
    """

    def __init__(self, low: StepTrace, high: StepTrace | None = None) -> None:
        self._low = low
        self._high = high
        self._made: dict[int, StepTrace | None] = {}
        if low.micro_batch is not None:
            self._made[low.micro_batch] = low

    @property
    def traced(self) -> tuple[StepTrace, ...]:
        return (self._low,) if self._high is None else (self._low, self._high)

    @property
    def adjustable(self) -> bool:
        """Whether other micro-batches than the traced ones are known."""
        if self._high is None or self._low.micro_batch is None:
            return False
        return self.at(self._low.micro_batch + 1) is not None

    def at(self, micro_batch: int | None) -> StepTrace | None:
        """The step at a micro-batch; None where it is not known."""
        if micro_batch is None:
            return self._low
        if micro_batch not in self._made:
            self._made[micro_batch] = None if self._high is None else at_micro_batch(self._low, self._high, micro_batch)
        return self._made[micro_batch]


@dataclass(frozen=True, slots=True)
class FamilyKey:
    """Precision of a traced family, and whether its attention was chosen for GPUs from sm 80 on."""

    precision: str
    modern: bool


class TracedWorkload:
    """Predictions of a script: the planner's `Workload`.

    Args:
        families: Traced steps, the script's own precision first.
        script: The batch as the script runs it.
        memory: Constants of the memory prediction.
        coefficients: The calibration of the time model.
    """

    def __init__(
        self,
        families: Mapping[FamilyKey, StepFamily],
        script: ScriptBatch,
        memory: MemoryCalibration,
        coefficients: Coefficients,
    ) -> None:
        self._families = dict(families)
        self._script = script
        self._memory_constants = memory
        self._coefficients = coefficients
        self._memory: dict[tuple[FamilyKey, int | None, str, bool], MemoryPrediction] = {}
        self._usage: dict[tuple[FamilyKey, int | None, object], Usage] = {}
        self._fits: dict[tuple[FamilyKey, int | None, str, bool], bool | None] = {}

    @property
    def batch(self) -> ScriptBatch:
        return replace(self._script, adjustable=next(iter(self._families.values())).adjustable)

    @property
    def precisions(self) -> Sequence[str]:
        return tuple(dict.fromkeys(key.precision for key in self._families))

    @property
    def reference(self) -> StepTrace:
        """The script's own step."""
        family = next(iter(self._families.values()))
        return family.at(self._script.micro_batch) or family.traced[0]

    @cached_property
    def checkpoint_bytes(self) -> int:
        kept = (StorageKind.PARAMETER, StorageKind.OPTIMIZER)
        trace = self.reference
        live = {index for sign, index, _ in trace.events if sign > 0} - {i for sign, i, _ in trace.events if sign < 0}
        return sum(trace.storages[i].num_bytes for i in live if trace.storages[i].kind in kept)

    def supports(self, gpu: Gpu, precision: str) -> bool:
        base = precision.removesuffix("-amp")
        if base in ("fp32", "tf32"):
            return True
        # fp16 has run on every card since Pascal, at some speed; bf16 before sm 80 is emulated and never worth renting
        return base == "fp16" or bool(gpu.supports(base))

    def trace_for(self, recipe: Recipe, gpu: Gpu) -> tuple[FamilyKey, StepTrace] | None:
        """The step under a recipe on a GPU's class of kernels; None where it was not traced."""
        modern = (gpu.sm or 0) >= _FLASH_FROM_SM
        for key in (FamilyKey(recipe.precision, modern), FamilyKey(recipe.precision, not modern)):
            family = self._families.get(key)
            if family is not None:
                trace = family.at(recipe.micro_batch)
                return None if trace is None else (key, trace)
        return None

    def predict(self, recipe: Recipe, gpu: Gpu, host: Host) -> Prediction | None:
        found = self.trace_for(recipe, gpu)
        if found is None:
            return None
        key, trace = found
        memory, fitting = self._memory_of(key, trace, recipe, gpu)
        time = predict_time(
            trace,
            recipe,
            gpu,
            link=link_for(gpu, host) if recipe.num_gpus > 1 else None,
            vcpus=None if host.vcpus is None else int(host.vcpus),
            coefficients=self._coefficients,
        )
        usable = int(gpu.usable_memory_gib * (1 << 30))
        return Prediction(gpu_id=gpu.gpu_id, memory=memory, time=time, fits=fitting, usable_memory=usable)

    def _memory_of(
        self, family: FamilyKey, trace: StepTrace, recipe: Recipe, gpu: Gpu
    ) -> tuple[MemoryPrediction, bool | None]:
        key = (family, recipe.micro_batch, gpu.gpu_id, recipe.num_gpus > 1)
        if key not in self._memory:
            # of the GPU, the allocator's history depends on the libraries' workspaces only
            replayed = (family, recipe.micro_batch, replay_key(trace, gpu.sm))
            if replayed not in self._usage:
                self._usage[replayed] = allocator_usage(trace, gpu.sm)
            usage = self._usage[replayed]
            self._memory[key] = predict_memory(trace, recipe, gpu, self._memory_constants, usage=usage)
            self._fits[key] = fits(trace, self._memory[key], gpu)
        return self._memory[key], self._fits[key]


def link_for(gpu: Gpu, host: Host) -> Link:
    """What joins the GPUs of an instance: its own link where the catalogue knows it, else the card's."""
    if host.intra_node_link is not None:
        nvlink = host.nvlink_gb_per_s or None
        gpu = replace(gpu, nvlink_gb_per_s=nvlink)
    return link_of(gpu, network_gbit_per_s=host.network_gbps)
