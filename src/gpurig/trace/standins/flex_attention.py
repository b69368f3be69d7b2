"""FlexAttention: a compiled kernel on the GPU, taken as attention without a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from gpurig.trace.device import on_device
from gpurig.trace.standins.imports import after_import

if TYPE_CHECKING:
    from types import ModuleType

    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session


def install(patches: Patches, session: Session) -> None:
    """Answer calls on the planned device once the module is imported."""

    def patch(module: ModuleType) -> None:
        original = module.flex_attention

        def flex_attention(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Any = None, block_mask: Any = None,
            scale: float | None = None, enable_gqa: bool = False, return_lse: bool = False, **options: Any,
        ) -> Any:  # fmt: skip
            if not on_device(query):
                return original(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, **options)
            session.recorder.note("flex", "FlexAttention was costed as attention over all positions")
            out = F.scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
            return (out, query.new_empty(query.shape[:-1], dtype=torch.float32)) if return_lse else out

        patches.set(module, "flex_attention", flex_attention)

    after_import("torch.nn.attention.flex_attention", patch)
