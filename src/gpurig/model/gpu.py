"""What a GPU is: hardware facts of one exact part."""

from __future__ import annotations

from dataclasses import dataclass

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

    def peak_tflops(self, dtype: str) -> float | None:
        """Dense peak of a dtype of `DTYPES`, or None where the chip has no unit for it."""
        return {
            "fp64": self.fp64_tflops,
            "fp32": self.fp32_tflops,
            "tf32": self.tf32_tflops,
            "fp16": self.fp16_tflops,
            "bf16": self.bf16_tflops,
            "fp8": self.fp8_tflops,
            "int8": self.int8_tops,
        }[dtype]

    @property
    def sm(self) -> int | None:
        """Compute capability as one number: 8.6 is 86."""
        return None if self.compute_capability is None else 10 * self.compute_capability[0] + self.compute_capability[1]

    def supports(self, dtype: str) -> bool | None:
        """Whether the chip computes in `dtype` with hardware of its own; None: not known."""
        if dtype in ("fp32", "fp64"):
            return True
        if self.peak_tflops(dtype) is not None:
            return True
        return None if self.sm is None and self.vendor == "NVIDIA" else False
