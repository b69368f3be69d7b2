"""Base memory of the software stacks that measured runs used: context, driver and libraries above the allocator.

Device-level readings include them, and they are a constant per GPU and software stack; the constants of sources with
such readings are data, fitted by scripts/fit/memory.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from gpurig.accuracy.cards import card_of
from gpurig.predict import base_memory

if TYPE_CHECKING:
    from gpurig.accuracy.table import MeasuredRun
    from gpurig.predict.base_memory import MemoryCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Constants of one source."""

    source: str
    base_mib: float
    cudnn_mib: float
    conv_share: float
    rows: int


@cache
def stacks() -> dict[str, Stack]:
    """Fitted stacks by source."""
    text = (resources.files("gpurig") / "data" / "calibration" / "stacks.json").read_text(encoding="utf-8")
    return {entry["source"]: Stack(**entry) for entry in json.loads(text)["stacks"]}


def memory_calibration(run: MeasuredRun) -> MemoryCalibration:
    """The packaged constants, with those of the run's own software stack where they are known."""
    packaged = base_memory.load()
    stack = stacks().get(run.source)
    gpu = card_of(run)
    if stack is None or gpu is None:
        return packaged
    return replace(
        packaged,
        base_mib={**packaged.base_mib, gpu.gpu_id: stack.base_mib, "cudnn": stack.cudnn_mib},
        conv_share=stack.conv_share,
    )
