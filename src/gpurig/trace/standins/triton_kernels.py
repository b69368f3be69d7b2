"""Triton kernels: launched as usual, computed by nobody. Their outputs are allocated by the script itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpurig.model.trace import OpClass
from gpurig.trace.device import on_device, tensors
from gpurig.trace.standins.imports import after_import

if TYPE_CHECKING:
    from types import ModuleType

    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session


def install(patches: Patches, session: Session) -> None:
    """Answer kernel launches once triton is imported."""

    def launched(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        touched = [t for t in (*tensors(args), *tensors(kwargs)) if on_device(t)]
        for tensor in touched:
            session.device.values.forget(tensor)
        name = getattr(getattr(kernel, "fn", kernel), "__name__", "kernel")
        session.recorder.note("triton", f"the Triton kernel {name} was costed by the bytes of its arguments")
        # which arguments are written is not known: half of the traffic is taken to be writing
        session.recorder.kernel(f"triton_{name}", OpClass.ELEMENTWISE, touched, touched[-1:])

    def patch_jit(module: ModuleType) -> None:
        def run(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
            del grid, warmup
            launched(kernel, args, kwargs)

        patches.set(module.JITFunction, "run", run)

    def patch_autotuner(module: ModuleType) -> None:
        def run(tuner: Any, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("grid", None)
            launched(tuner.fn, args, kwargs)

        for name in ("Autotuner", "Heuristics"):
            patches.set(getattr(module, name), "run", run)

    def patch_driver(module: ModuleType) -> None:
        patches.set_existing(module.driver, "_active", _Driver(session.card.capability))

    after_import("triton.runtime.jit", patch_jit)
    after_import("triton.runtime.autotuner", patch_autotuner)
    after_import("triton.runtime.driver", patch_driver)


class _Driver:
    """What kernels ask the active driver."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found]

        return GPUTarget("cuda", 10 * self._capability[0] + self._capability[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_properties(self, _: int = 0) -> dict[str, int]:
        return {"max_shared_mem": 166912, "multiprocessor_count": 108, "warpSize": 32, "max_num_regs": 65536}

    @property
    def utils(self) -> _Driver:
        return self
