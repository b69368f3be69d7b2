"""Stand-ins for what libraries compute outside PyTorch's dispatcher: one file a library."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session


def install(patches: Patches, session: Session) -> None:
    """Register every stand-in; a library that the script never imports costs nothing."""
