"""What a GPU is: hardware facts of one exact part."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 (decoders read the annotations at run time)

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Hardware facts of one exact part (A100-SXM4-80GB is not A100-PCIE-40GB).

    Peaks are dense, never sparse, in TFLOP/s (10^12), with fp32 accumulation. None means not known, or
    for a peak that the chip has no unit for that type.
    """

    gpu_id: str
    family: str  # name without the form factor: A100-80GB
    vendor: str
    architecture: str
    chip: str | None
    compute_capability: tuple[int, int] | None
    cuda_cores: int | None
    sm_count: int | None
    tensor_cores: int | None
    memory_gb: float  # as labelled, 10^9 or 2^30 by vendor habit
    usable_memory_gib: float  # what a program can allocate before the context of its own
    memory_type: str | None
    memory_bandwidth_gb_per_s: float | None
    l2_mb: float | None
    boost_mhz: float | None
    fp64_tflops: float | None
    fp32_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    pcie_gen: float | None
    pcie_lanes: int | None
    nvlink_gb_per_s: float | None  # both directions, all links; None: no NVLink
    tdp_w: float | None
    mig_max_instances: int
    source: str
    notes: str = ""
    fp64_tensor_tflops: float | None = None
    isa: str | None = None  # "sm_80", "gfx942"
    usable_memory_origin: str = "derived"  # "measured: …" or "derived: …" with source and date
    crosscheck: str = ""  # which independent table agrees or differs, field by field
    compiled_on: date | None = None  # day on which the row was written; the figures were not re-opened since
    rentable: bool = True  # False: known only to describe published measurements

    def peak_tflops(self, dtype: str) -> float | None:
        """Dense peak of a dtype of `DTYPES`; None where the chip has no unit for it, or for another dtype."""
        peaks = {
            "fp64": self.fp64_tflops,
            "fp32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "fp16": self.fp16_tflops,
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "int8": self.int8_tops,
        }
        return peaks.get(dtype)

    @property
    def sm(self) -> int | None:
        """Compute capability as one number: 8.6 is 86."""
        return None if self.compute_capability is None else 10 * self.compute_capability[0] + self.compute_capability[1]

    def supports(self, dtype: str) -> bool | None:
        """Whether the chip computes in `dtype` with hardware of its own, at more than a token rate; None: not known.

        NVIDIA: by compute capability (CUDA C++ programming guide, "Arithmetic Instructions"): fp16 from 7.0 and on 5.3,
        6.0, 6.2 (6.1 runs it at 1/64); tf32 and bf16 from 8.0; fp8 from 8.9; int8 from 6.1. Others: by published peak.
        """
        if dtype in ("fp32", "fp64"):
            return True
        if self.sm is None:
            return True if self.peak_tflops(dtype) is not None else (None if self.vendor == "NVIDIA" else False)
        if dtype == "fp16":
            return self.sm >= 70 or self.sm in (53, 60, 62)
        return self.sm >= {"tf32": 80, "bf16": 80, "fp8": 89, "int8": 61}[dtype]

    @property
    def has_nvlink(self) -> bool:
        """Whether the part has NVLink (or AMD's Infinity Fabric link) at all; an instance may still not wire it."""
        return self.nvlink_gb_per_s is not None

    @property
    def pcie_gb_per_s(self) -> float | None:
        """Raw PCIe bandwidth in one direction, 10^9 bytes/s; None: generation or lanes not known."""
        if self.pcie_gen is None or self.pcie_lanes is None:
            return None
        per_lane = {1.0: 0.25, 2.0: 0.5, 3.0: 0.985, 4.0: 1.969, 5.0: 3.938, 6.0: 7.563}.get(self.pcie_gen)
        return None if per_lane is None else per_lane * self.pcie_lanes
