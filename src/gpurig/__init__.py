"""gpurig: from an unmodified training script to the right cloud GPU.

The public functions are imported lazily, so that ``import gpurig`` costs nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
