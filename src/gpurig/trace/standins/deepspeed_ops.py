"""DeepSpeed compiles its optimizers at start; the engine around them is followed as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpurig.trace.standins.imports import after_import

if TYPE_CHECKING:
    from types import ModuleType

    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session


def install(patches: Patches, session: Session) -> None:
    """Answer the builders of DeepSpeed's operators."""

    def patch(module: ModuleType) -> None:
        def load(builder: Any, verbose: bool = False) -> Any:
            del verbose
            return session.extensions(builder.name)

        patches.set(module.OpBuilder, "load", load)
        patches.set(module.OpBuilder, "jit_load", load)

    after_import("deepspeed.ops.op_builder.builder", patch)
