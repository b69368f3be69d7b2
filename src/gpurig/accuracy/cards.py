"""Which card a measured run means, where its name leaves the form or the memory open."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.names import resolve
from gpurig.errors import GpurigError

if TYPE_CHECKING:
    from gpurig.accuracy.table import MeasuredRun
    from gpurig.model.gpu import Gpu

# Sources that name no GPU but say enough: the card that fits what they say.
_CARD_OF_SOURCE = {"itu-rad/GPUMemNet": "A100-SXM4-40GB"}  # largest value 40,363 MiB


def card_of(run: MeasuredRun) -> Gpu | None:
    """The card of a run; of several that a name may mean, the SXM form and the larger memory. None: not known."""
    return card_named(run.gpu or _CARD_OF_SOURCE.get(run.source, ""))


@cache
def card_named(name: str) -> Gpu | None:
    """The card that a name means; None for a blank or unknown name."""
    if not name:
        return None
    try:
        found = resolve(name, load_gpus())
    except GpurigError:
        return None
    return max(found, key=lambda gpu: ("SXM" in gpu.gpu_id, gpu.memory_gb))
