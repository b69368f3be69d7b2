"""Stand-ins for what libraries compute outside PyTorch's dispatcher: one file a library.

Each has `install(patches, session)`. What belongs to a library that is not imported yet is put in place right after the
script imports it, so that a library that the script never uses costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session

_LIBRARIES = ("extensions", "triton_kernels", "deepspeed_ops", "flex_attention", "pretrained")


def install(patches: Patches, session: Session) -> None:
    """Register every stand-in."""
    for name in _LIBRARIES:
        importlib.import_module(f"{__name__}.{name}").install(patches, session)
