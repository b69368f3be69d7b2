"""gpurig: from an unmodified training script to the right cloud GPU.

``gpurig.trace``, ``gpurig.predict`` and ``gpurig.plan`` are rooms of the library and, called, its main functions. They are
imported when they are first used, so that ``import gpurig`` costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # known to type checkers; importing typing would be the most of the cost
if TYPE_CHECKING:
    from gpurig import plan, predict, trace

__version__ = "0.1.0"

__all__ = ["__version__", "plan", "predict", "trace"]


def __getattr__(name: str) -> object:
    if name in ("plan", "predict", "trace"):
        from importlib import import_module

        return import_module(f"gpurig.{name}")
    raise AttributeError(f"module 'gpurig' has no attribute {name!r}")
