"""What a script can read of the card that it is planned for. Does not import PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a script can read of the card that it is planned for. The default is an A100."""

    name: str = "NVIDIA A100-SXM4-80GB"
    memory_bytes: int = 80 << 30
    capability: tuple[int, int] = (8, 0)
    sm_count: int = 108
    num_gpus: int = 1

    @property
    def sm(self) -> int:
        """Compute capability as one number: 8.6 is 86."""
        return 10 * self.capability[0] + self.capability[1]


def card_of(gpu: Gpu, num_gpus: int = 1) -> CardFacts | None:
    """The facts of a part of the catalogue; None if its compute capability is not known (then it can't be emulated)."""
    if gpu.compute_capability is None:
        return None
    return CardFacts(
        name=f"NVIDIA {gpu.gpu_id}",
        memory_bytes=int(gpu.usable_memory_gib * (1 << 30)),
        capability=gpu.compute_capability,
        sm_count=gpu.sm_count or 108,
        num_gpus=num_gpus,
    )
