"""Recipe: how a training step is run."""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS = ("fp32", "tf32", "fp16-amp", "bf16-amp", "fp16", "bf16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a step is run. The global batch is `micro_batch × accumulation × num_gpus`."""

    precision: str  # one of PRECISIONS
    micro_batch: int | None
    accumulation: int = 1
    num_gpus: int = 1
    num_nodes: int = 1
    checkpointing: bool = False
    channels_last: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.num_gpus < 1 or self.num_nodes < 1 or self.accumulation < 1:
            raise ValueError("num_gpus, num_nodes and accumulation start at 1")
        if self.num_gpus % self.num_nodes:
            raise ValueError(f"{self.num_gpus} GPUs do not divide over {self.num_nodes} nodes")

    @property
    def gpus_per_node(self) -> int:
        return self.num_gpus // self.num_nodes
