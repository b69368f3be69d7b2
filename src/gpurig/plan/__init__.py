"""Search over offers and recipes, and the call that traces, predicts and ranks.

The room itself is the function: ``gpurig.plan(request)`` is `gpurig.plan.make.make_plan`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.plan.make import Planned


class _Room(ModuleType):
    def __call__(self, *args: object, **kwargs: object) -> Planned:
        """See `gpurig.plan.make.make_plan`."""
        from gpurig.plan.make import make_plan

        return make_plan(*args, **kwargs)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Room
