"""Prediction: memory and time of a step on a GPU, each with its error band and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Method(StrEnum):
    """Where a number comes from, the most trustworthy last."""

    GUESSED = "guessed"
    DERIVED = "derived"  # physics and data-sheet figures; this GPU or model class was not calibrated
    CALIBRATED = "calibrated"  # coefficients fitted to published measurements of this GPU and class
    MEASURED = "measured"  # the user's own `gpurig calibrate` of this card


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A 90 % band around a predicted value, as factors: the truth lies in value×low … value×high."""

    low: float
    high: float
    method: Method
    reason: str

    @property
    def percent(self) -> float:
        """The wider half-width in percent, for ± in a table."""
        return 100 * max(1 - self.low, self.high - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Device memory of one rank during one optimizer step, in bytes.

    The breakdown (`parameters` … `workspace`) is of the moment of the allocated peak and sums to `peak_allocated`.
    `peak_reserved` is what the caching allocator holds; `peak_device` adds context, libraries and communication
    buffers: the figure that has to fit.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    temporaries: int
    inputs: int
    workspace: int
    peak_allocated: int
    peak_reserved: int
    base: int  # context, driver, libraries: a constant per GPU and software
    communication: int  # NCCL buffers and gradient buckets
    band: Band  # of `peak_device`
    base_reason: str
    allocated_band: Band | None = None
    reserved_band: Band | None = None

    @property
    def peak_device(self) -> int:
        return self.peak_reserved + self.base + self.communication


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """Share of one kind of operator in the step."""

    op_class: str
    time_s: float
    flops: int
    num_bytes: int
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePrediction:
    """Wall time of one optimizer step on one rank.

    `step_time_s` is the longest of the device, the host that issues the work and the input pipeline, with communication
    that backward cannot hide. `bottleneck` names which.
    """

    step_time_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    host_issue_s: float  # time the host needs to issue the step
    device_busy_s: float  # time the device needs without waiting
    exposed_communication_s: float
    input_s: float | None  # time between batches that the pipeline can deliver; None: not known
    bottleneck: str  # "compute", "memory bandwidth", "launch", "input", "communication"
    by_class: tuple[ClassTime, ...]
    mfu: float | None
    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Memory and time of a StepTrace under a Recipe on a Gpu."""

    gpu_id: str
    memory: MemoryPrediction
    time: TimePrediction
    fits: bool | None  # None: inside the error band of the limit
    usable_memory: int
