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

from gpurig.accuracy.workload import framework_age
from gpurig.predict import base_memory
from gpurig.predict.base_memory import BaseConstant

if TYPE_CHECKING:
    from gpurig.accuracy.table import MeasuredRun
    from gpurig.predict.base_memory import MemoryCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The constant of one source from one version of PyTorch on."""

    source: str
    constant: BaseConstant


@cache
def stacks() -> tuple[Stack, ...]:
    """Fitted stacks."""
    text = (resources.files("gpurig") / "data" / "calibration" / "stacks.json").read_text(encoding="utf-8")
    return tuple(
        Stack(
            source=entry["source"],
            constant=BaseConstant(**{**entry["constant"], "torch_from": tuple(entry["constant"]["torch_from"])}),
        )
        for entry in json.loads(text)["stacks"]
    )


def memory_calibration(run: MeasuredRun) -> MemoryCalibration:
    """The packaged constants, with those of the run's own software stack where they are known."""
    age = framework_age(run)
    known = [s.constant for s in stacks() if s.source == run.source and s.constant.torch_from <= age]
    packaged = base_memory.load()
    return replace(packaged, stack=max(known, key=lambda c: c.torch_from)) if known else packaged
