"""StepTrace × Recipe × Gpu → Prediction: memory, step time, communication, input pipeline. Pure.

The room itself is the function: ``gpurig.predict(trace, recipe, gpu)`` is `gpurig.predict.both.predict`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.model.prediction import Prediction


class _Room(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> Prediction:
        """See `gpurig.predict.both.predict`."""
        from gpurig.predict.both import predict

        return predict(*args, **kwargs)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Room
