"""Memory and time together: the prediction of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpurig.model.prediction import Prediction
from gpurig.predict import base_memory
from gpurig.predict.memory import fits, predict_memory
from gpurig.predict.predict import predict_time

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu
    from gpurig.model.recipe import Recipe
    from gpurig.model.trace import StepTrace
    from gpurig.predict.base_memory import MemoryCalibration
    from gpurig.predict.coefficients import Coefficients
    from gpurig.predict.communication import Link


def predict(
    trace: StepTrace,
    recipe: Recipe,
    gpu: Gpu,
    *,
    link: Link | None = None,
    vcpus: int | None = None,
    coefficients: Coefficients | None = None,
    memory: MemoryCalibration | None = None,
) -> Prediction:
    """Memory and time of one optimizer step on one rank.

    Args:
        trace: The step at the recipe's micro-batch.
        recipe: Precision, GPUs, accumulation.
        gpu: The card.
        link: What joins several GPUs; None: what the card's data sheet suggests.
        vcpus: Virtual cores of the instance, for the input pipeline.
        coefficients: Calibration of the time model; None: the packaged one.
        memory: Calibration of the memory outside the allocator; None: the packaged one.

    Raises:
        ValueError: the trace has another precision than the recipe, or facts of the card are missing.
    """
    needed = predict_memory(trace, recipe, gpu, memory or base_memory.load())
    return Prediction(
        gpu_id=gpu.gpu_id,
        memory=needed,
        time=predict_time(trace, recipe, gpu, link=link, vcpus=vcpus, coefficients=coefficients),
        fits=fits(trace, needed, gpu),
        usable_memory=int(gpu.usable_memory_gib * (1 << 30)),
    )
