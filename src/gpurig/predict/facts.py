"""Facts that a data sheet leaves open, assumed from the card's relatives and named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu

# typical sustained boost of an architecture in MHz, for laptop parts whose clock the maker of the laptop sets
_TYPICAL_MHZ = {"Pascal": 1500.0, "Turing": 1200.0, "Ampere": 1450.0, "Ada": 2000.0, "Blackwell": 2100.0}
# dense FP16 with FP32 accumulation over FP32, by architecture: GeForce, then professional cards
_HALF_OVER_FP32 = {"Volta": 8.0, "Turing": 4.0, "Ampere": 2.0, "Ada": 2.0, "Hopper": 15.0, "Blackwell": 2.0}
_CORES_PER_SM = {"Turing": 64, "Volta": 64, "Pascal": 128, "Ampere": 128, "Ada": 128, "Hopper": 128, "Blackwell": 128}
_BANDWIDTH_GB_PER_S = {"GDDR5": 240.0, "GDDR5X": 480.0, "GDDR6": 400.0, "GDDR6X": 760.0, "GDDR7": 900.0}


def with_assumed_facts(gpu: Gpu) -> tuple[Gpu, tuple[str, ...]]:
    """The card with every fact that the time predictor needs, and the names of those that were assumed.

    Raises:
        ValueError: too little is known to assume the rest.
    """
    assumed: list[str] = []
    architecture = gpu.architecture.split()[0]
    if gpu.sm_count is None and gpu.cuda_cores and architecture in _CORES_PER_SM:
        gpu = replace(gpu, sm_count=gpu.cuda_cores // _CORES_PER_SM[architecture])
        assumed.append("multiprocessors")
    if gpu.fp32_tflops is None:
        cores = gpu.cuda_cores or (gpu.sm_count or 0) * _CORES_PER_SM.get(architecture, 0)
        clock = gpu.boost_mhz or _TYPICAL_MHZ.get(architecture)
        if not cores or not clock:
            raise ValueError(f"the FP32 peak of {gpu.gpu_id} is not known, nor what it follows from")
        gpu = replace(gpu, fp32_tflops=2 * cores * clock * 1e-6)
        assumed.append("FP32 peak")
    if gpu.fp16_tflops is None and gpu.tensor_cores and architecture in _HALF_OVER_FP32:
        half = (gpu.fp32_tflops or 0.0) * _HALF_OVER_FP32[architecture]
        ampere_on = architecture not in ("Volta", "Turing")
        gpu = replace(
            gpu,
            fp16_tflops=half,
            bf16_tflops=gpu.bf16_tflops or (half if ampere_on else None),
            tf32_tflops=gpu.tf32_tflops or (half / 2 if ampere_on else None),
        )
        assumed.append("FP16 peak")
    if gpu.memory_bandwidth_gb_per_s is None:
        bandwidth = _BANDWIDTH_GB_PER_S.get(gpu.memory_type or "")
        if bandwidth is None:
            raise ValueError(f"the memory bandwidth of {gpu.gpu_id} is not known")
        gpu = replace(gpu, memory_bandwidth_gb_per_s=bandwidth)
        assumed.append("memory bandwidth")
    if gpu.sm_count is None:
        gpu = replace(gpu, sm_count=max(1, round((gpu.fp32_tflops or 10.0) / 0.25)))
        assumed.append("multiprocessors")
    return gpu, tuple(assumed)
