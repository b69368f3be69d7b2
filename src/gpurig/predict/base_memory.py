"""Memory that the allocator does not see (context, driver, libraries), and how far memory predictions lie off.

Device-level readings (nvidia-smi, NVML) lie 0.6 to 1.7 GiB above what the allocator reserves, by a constant for each
GPU and software stack. The constants are data: data/calibration/memory.json, written by scripts/fit/memory.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from gpurig.model.prediction import Band, Method
from gpurig.model.trace import OpClass, StepTrace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpurig.model.gpu import Gpu

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BaseMemory:
    """Bytes outside the allocator, and where the figure comes from."""

    num_bytes: int
    reason: str
    method: Method


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConstant:
    """Base memory of one kind of GPU under one range of software.

    Attributes:
        architecture: Such as "ampere"; "*": any other.
        torch_from: First (major, minor) of PyTorch that it holds for.
        context_mib: Context and libraries of a program that multiplies matrices.
        convolution_mib: What cuDNN adds in a convolution net.
        spread_mib: Half-width of the 90 % band.
        rows: Readings that it was fitted to; 0: a guess.
        source: Where they are from.
    """

    architecture: str
    torch_from: tuple[int, int]
    context_mib: float
    convolution_mib: float
    spread_mib: float
    rows: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A 90 % band of published over predicted, as factors."""

    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """Constants fitted to published readings.

    Attributes:
        bases: Base memory by architecture and version.
        stack: The base of a known software stack, which then goes before `bases`.
        allocated, reserved: Spread of the two figures of the allocator.
        measured: GPU id to MiB, of cards that their user has measured; goes before all others.
    """

    bases: tuple[BaseConstant, ...]
    allocated: Spread
    reserved: Spread
    stack: BaseConstant | None = None
    measured: Mapping[str, float] = field(default_factory=dict)

    def constant(self, gpu: Gpu, trace: StepTrace) -> BaseConstant:
        """The constant that fits best: this stack's, else the newest that is not newer, its architecture's if there is one.

        Raises:
            LookupError: none holds for the version.
        """
        if self.stack is not None:
            return self.stack
        version, architecture = torch_version(trace.torch_version), gpu.architecture.lower()
        known = [b for b in self.bases if b.architecture in (architecture, "*") and b.torch_from <= version]
        if not known:
            raise LookupError(f"the calibration has no base memory for PyTorch {trace.torch_version}")
        return max(known, key=lambda b: (b.torch_from, b.architecture == architecture))

    def with_measured(self, base_mib: dict[str, float]) -> MemoryCalibration:
        """The same with base memory measured on a user's own cards."""
        return replace(self, measured={**self.measured, **base_mib})

    def base(self, gpu: Gpu, trace: StepTrace) -> BaseMemory:
        """Context, driver and library memory of `gpu`."""
        own = self.measured.get(gpu.gpu_id)
        if own is not None:
            return BaseMemory(int(own * MIB), f"context and libraries {own:.0f} MiB (measured here)", Method.MEASURED)
        constant = self.constant(gpu, trace)
        mib = constant.context_mib
        if any(op.op_class is OpClass.CONV for op in trace.ops):
            mib += constant.convolution_mib
        method = Method.CALIBRATED if constant.rows else Method.GUESSED
        words = f"{constant.rows} readings of {constant.source}" if constant.rows else f"guess: {constant.source}"
        return BaseMemory(int(mib * MIB), f"context and libraries {mib:.0f} MiB ({words})", method)

    def device_band(self, gpu: Gpu, trace: StepTrace, reserved: int) -> Band:
        """Band of the device peak, of which `reserved` bytes are the allocator's."""
        base = self.base(gpu, trace)
        spread = self.constant(gpu, trace).spread_mib * MIB
        device = max(1, reserved + base.num_bytes)
        low = (self.reserved.low * reserved + max(0.0, base.num_bytes - spread)) / device
        high = (self.reserved.high * reserved + base.num_bytes + spread) / device
        reason = (
            f"reserved memory of {self.reserved.rows} published runs within "
            f"{_percent(self.reserved.low)} … {_percent(self.reserved.high)}, base memory ±{spread / MIB:.0f} MiB"
        )
        return Band(low=low, high=high, method=base.method, reason=reason)

    def allocator_band(self, spread: Spread) -> Band:
        """Band of a figure of the allocator: `allocated` or `reserved`."""
        return Band(low=spread.low, high=spread.high, method=Method.CALIBRATED, reason=f"{spread.rows} published runs")


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


def torch_version(text: str) -> tuple[int, int]:
    """(major, minor) of a version of PyTorch; one that cannot be read counts as a recent one."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found.group(1)), int(found.group(2))) if found else (2, 6)


@lru_cache(maxsize=1)
def load() -> MemoryCalibration:
    """The packaged constants."""
    text = resources.files("gpurig.data").joinpath("calibration/memory.json").read_text("utf-8")
    return from_json(text)


def from_json(text: str) -> MemoryCalibration:
    """A calibration from the text of its file."""
    values = json.loads(text)
    bases = tuple(BaseConstant(**{**base, "torch_from": tuple(base["torch_from"])}) for base in values["bases"])
    return MemoryCalibration(
        bases=bases, allocated=Spread(**values["allocated"]), reserved=Spread(**values["reserved"])
    )


def measured_bases(path: Path) -> dict[str, float]:
    """Base memory by GPU in a file of ``gpurig calibrate``; empty where it was not readable."""
    found = json.loads(path.read_text("utf-8")).get("base_mib", {})
    return {str(name): float(value) for name, value in found.items()}
