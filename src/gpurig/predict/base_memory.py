"""Memory that the allocator does not see: context, driver, libraries; and workspaces that cannot be traced.

Device-level readings (nvidia-smi, NVML) lie 0.4 to 2.4 GiB above what the allocator reserves, by a constant for each GPU
and software stack. The constants are data: data/calibration/memory.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.model.prediction import Band, Method
from gpurig.model.trace import OpClass, StepTrace

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu


@dataclass(frozen=True, slots=True)
class BaseMemory:
    """Bytes outside the allocator, and where the figure comes from."""

    num_bytes: int
    reason: str
    method: Method


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """Constants fitted to published device-memory readings; see `load` and scripts/fit.

    `base_mib` is keyed by architecture ("ampere") or exact GPU; `conv_share` is the share of the largest convolution's
    operands that cuDNN takes as workspace.
    """

    base_mib: dict[str, float]
    default_base_mib: float
    conv_share: float
    conv_cap_mib: float
    band_low: float
    band_high: float
    band_reason: str

    def with_measured(self, base_mib: dict[str, float]) -> MemoryCalibration:
        """The same with base memory measured on a user's own cards."""
        return replace(self, base_mib={**self.base_mib, **base_mib})

    def base(self, gpu: Gpu, trace: StepTrace) -> BaseMemory:
        """Context, driver and library memory of `gpu`; a convolution net loads cuDNN on top."""
        conv = any(op.op_class is OpClass.CONV for op in trace.ops)
        extra = self.base_mib.get("cudnn", 0.0) if conv else 0.0
        for key in (gpu.gpu_id, gpu.architecture.lower()):
            if key in self.base_mib:
                mib = self.base_mib[key] + extra
                return BaseMemory(
                    int(mib * (1 << 20)), f"context and libraries {mib:.0f} MiB ({key})", Method.CALIBRATED
                )
        mib = self.default_base_mib + extra
        return BaseMemory(
            int(mib * (1 << 20)), f"context and libraries ~{mib:.0f} MiB (GPU not calibrated)", Method.GUESSED
        )

    def convolution_workspace(self, trace: StepTrace) -> int:
        """What cuDNN's convolutions add to the reserved peak: not traceable, so a fitted share of the largest one."""
        largest = max((o.read_bytes + o.write_bytes for o in trace.ops if o.op_class is OpClass.CONV), default=0)
        return int(min(self.conv_share * largest, self.conv_cap_mib * (1 << 20)))

    def band(self, gpu: Gpu, trace: StepTrace) -> Band:
        """Error band of the device peak."""
        known = gpu.gpu_id in self.base_mib or gpu.architecture.lower() in self.base_mib
        method = Method.CALIBRATED if known else Method.DERIVED
        widen = 1.0 if known else 1.5
        return Band(
            low=1 - widen * (1 - self.band_low),
            high=1 + widen * (self.band_high - 1),
            method=method,
            reason=self.band_reason,
        )


@lru_cache(maxsize=1)
def load() -> MemoryCalibration:
    """The packaged constants."""
    text = resources.files("gpurig.data").joinpath("calibration/memory.json").read_text("utf-8")
    values = json.loads(text)
    values.pop("source", None)
    return MemoryCalibration(**values)


def measured_bases(path: Path) -> dict[str, float]:
    """Base memory by GPU in a file of ``gpurig calibrate``; empty where it was not readable."""
    found = json.loads(path.read_text("utf-8")).get("base_mib", {})
    return {str(name): float(value) for name, value in found.items()}
