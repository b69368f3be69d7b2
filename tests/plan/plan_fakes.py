"""Made-up GPUs, offers and predictions for the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpurig.model.gpu import Gpu
from gpurig.model.offer import Currency, Offer
from gpurig.model.prediction import Band, MemoryPrediction, Method, Prediction, TimePrediction
from gpurig.plan.recipes import ScriptBatch

if TYPE_CHECKING:
    from gpurig.model.recipe import Recipe
    from gpurig.plan.rank import Host

GIB = 1 << 30
_BAND = Band(low=0.9, high=1.1, method=Method.CALIBRATED, reason="made up")


@dataclass
class MadeUpWorkload:
    """Memory of `gib` on one GPU at micro-batch 16, time by the peak of the GPU."""

    gib: float = 8.0
    tflop_per_sample: float = 0.1
    micro_batch: int = 16

    @property
    def batch(self) -> ScriptBatch:
        return ScriptBatch(micro_batch=self.micro_batch)

    @property
    def precisions(self) -> tuple[str, ...]:
        return ("fp16-amp",)

    @property
    def checkpoint_bytes(self) -> int:
        return 10**9

    def supports(self, gpu: Gpu, precision: str) -> bool:
        return True

    def predict(self, recipe: Recipe, gpu: Gpu, host: Host) -> Prediction:
        size = int(self.gib * GIB)
        memory = MemoryPrediction(
            parameters=0, gradients=0, optimizer=0, activations=size, temporaries=0, inputs=0, workspace=0,
            peak_allocated=size, peak_reserved=size, base=0, communication=0, band=_BAND, base_reason="none",
        )  # fmt: skip
        samples = recipe.micro_batch * recipe.accumulation
        seconds = samples * self.tflop_per_sample / gpu.fp16_tflops
        time = TimePrediction(
            step_time_s=seconds, forward_s=seconds / 3, backward_s=2 * seconds / 3, optimizer_s=0, host_issue_s=0,
            device_busy_s=seconds, exposed_communication_s=0, input_s=None, bottleneck="compute", by_class=(), mfu=None,
            band=_BAND,
        )  # fmt: skip
        usable = int(gpu.usable_memory_gib * GIB)
        return Prediction(gpu_id=gpu.gpu_id, memory=memory, time=time, fits=size <= usable, usable_memory=usable)


def gpu(gpu_id: str = "A100-SXM4-40GB", memory: float = 40.0, **changes: object) -> Gpu:
    facts: dict[str, object] = {
        "gpu_id": gpu_id, "family": gpu_id, "vendor": "NVIDIA", "architecture": "Ampere", "chip": "GA100",
        "compute_capability": (8, 0), "cuda_cores": 6912, "sm_count": 108, "tensor_cores": 432, "memory_gb": memory,
        "usable_memory_gib": memory - 0.5, "memory_type": "HBM2", "memory_bandwidth_gb_per_s": 1555.0, "l2_mb": 40.0,
        "boost_mhz": 1410.0, "fp64_tflops": 9.7, "fp32_tflops": 19.5, "tf32_tflops": 156.0, "fp16_tflops": 312.0,
        "bf16_tflops": 312.0, "fp8_tflops": None, "int8_tops": 624.0, "pcie_gen": 4.0, "pcie_lanes": 16,
        "nvlink_gb_per_s": 600.0, "tdp_w": 400.0, "mig_max_instances": 7, "source": "made up",
    }  # fmt: skip
    return Gpu(**{**facts, **changes})  # type: ignore[arg-type]


def offer(price: float = 2.0, **changes: object) -> Offer:
    facts: dict[str, object] = {
        "provider": "cloud", "instance_type": "one", "region": "here", "gpu_id": "A100-SXM4-40GB", "gpu_family": "A100-40GB",
        "gpu_count": 1.0, "gpu_memory_gb_each": 40.0, "vgpu": False, "vcpus": 12.0, "memory_gb": 85.0, "price_per_h": price,
        "spot_price_per_h": None, "currency": Currency.USD, "price_basis": "instance", "source": "made up",
        "snapshot_date": None,
    }  # fmt: skip
    return Offer(**{**facts, **changes})  # type: ignore[arg-type]
