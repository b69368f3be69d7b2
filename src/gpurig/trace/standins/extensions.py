"""CUDA extensions that scripts compile at start: known ones by shape, all others refused where they are asked for.

There is no compiler here and no GPU to run them. A script that falls back to plain PyTorch when compilation fails does
so here too, and is followed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpurig.errors import NotTraceable
from gpurig.model.trace import OpClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session


class ExtensionNotBuilt(NotTraceable, RuntimeError):
    """A RuntimeError too, as PyTorch raises it when a build fails: scripts catch that."""


class Extensions:
    """Modules that stand for compiled extensions, by the name under which they are built."""

    def __init__(self, session: Session) -> None:
        self._session = session
        multi_tensor = SimpleNamespace(
            multi_tensor_adam=self._multi_tensor, multi_tensor_lamb=self._multi_tensor, multi_tensor_sgd=self._multi_tensor,
            multi_tensor_lion=self._multi_tensor, multi_tensor_scale=self._multi_tensor, lamb=self._multi_tensor,
        )  # fmt: skip
        self.known: dict[str, Any] = {
            "fused": SimpleNamespace(fused_bias_act=self._fused_bias_act),
            "upfirdn2d": SimpleNamespace(upfirdn2d=self._upfirdn2d),
            "fused_adam": multi_tensor,
            "fused_lamb": multi_tensor,
            "fused_lion": multi_tensor,
            "utils": SimpleNamespace(
                flatten=torch._utils._flatten_dense_tensors, unflatten=torch._utils._unflatten_dense_tensors
            ),
        }

    def load(self, name: str) -> Any:
        """The stand-in of an extension.

        Raises:
            ExtensionNotBuilt: there is none.
        """
        if name not in self.known:
            raise ExtensionNotBuilt(
                f"the script compiles the CUDA extension {name!r}, which gpurig has no stand-in for",
                hint="switch the extension off if the script has an option for it (its plain PyTorch path can be followed)",
            )
        self._session.recorder.note("stand-in", f"the compiled extension {name!r} was stood in for")
        return self.known[name]

    # --- StyleGAN's operators: bias + leaky ReLU + scale, and upsample + filter + downsample -----------------------------
    def _fused_bias_act(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = torch.empty_like(x)
        self._kernel("fused_bias_act", (x, *rest), out)
        return out

    def _upfirdn2d(self, x: torch.Tensor, kernel: torch.Tensor, *sizes: int) -> torch.Tensor:
        up_x, up_y, down_x, down_y, x0, x1, y0, y1 = sizes
        major, height, width, minor = x.shape
        out_height = (height * up_y + y0 + y1 - kernel.shape[0] + down_y) // down_y
        out_width = (width * up_x + x0 + x1 - kernel.shape[1] + down_x) // down_x
        out = x.new_empty((major, out_height, out_width, minor))
        self._kernel("upfirdn2d", (x, kernel), out)
        return out

    # --- multi-tensor optimizers ----------------------------------------------------------------------------------------
    def _multi_tensor(self, chunk: int, flag: torch.Tensor, lists: list[list[torch.Tensor]], *_: Any) -> None:
        """Reads all lists, writes all but the gradients (the first)."""
        del chunk, flag
        read = [t for tensors in lists for t in tensors]
        written = [t for tensors in lists[1:] or lists for t in tensors]
        self._session.recorder.kernel("multi_tensor_apply", OpClass.OPTIMIZER, read, written)

    def _kernel(self, name: str, read: tuple[Any, ...], out: torch.Tensor) -> None:
        tensors = [t for t in read if isinstance(t, FakeTensor)]
        self._session.recorder.kernel(name, OpClass.ELEMENTWISE, tensors, [out])


def install(patches: Patches, session: Session) -> None:
    """Answer torch.utils.cpp_extension."""
    from torch.utils import cpp_extension

    extensions = Extensions(session)

    def load(name: str, *_: Any, **__: Any) -> Any:
        return extensions.load(name)

    patches.set(cpp_extension, "load", load)
    patches.set(cpp_extension, "load_inline", _named(extensions.load))
    session.extensions = extensions.load


def _named(load: Callable[[str], Any]) -> Callable[..., Any]:
    def load_inline(name: str, *_: Any, **__: Any) -> Any:
        return load(name)

    return load_inline
