"""One trace: the planned device, CUDA's rules on it, and the hooks that tell forward, backward and optimizer apart."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import optim
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import init
from torch.optim import optimizer as optim_module
from torch.utils import _foreach_utils as foreach_utils

from gpurig.errors import NotTraceable
from gpurig.model.trace import Phase, StorageKind
from gpurig.trace import facade, kernels
from gpurig.trace.autocast import Autocast
from gpurig.trace.device import DEVICE, LARGE_ELEMENTS, PlannedDevice, on_device
from gpurig.trace.modules import ModuleMover, Normalize
from gpurig.trace.patches import Patches
from gpurig.trace.record import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpurig.trace.card import CardFacts


class Session:
    """A running trace.

    Attributes:
        recorder: What has been recorded so far.
        device: The planned device.
        after_step: Called after each optimizer step that changed planned parameters, with its optimizer.
        after_host_step: Called after each optimizer step whose parameters are all on the host.
        after_backward: Called after each backward pass.
        extensions: Gives the stand-in of a compiled extension by its name.
    """

    def __init__(self, card: CardFacts, *, native: bool = False) -> None:
        self.card = card
        self.sm = 10 * card.capability[0] + card.capability[1]
        self.recorder = Recorder()
        self.device = PlannedDevice(self.recorder.observe, self.recorder.note, native=native)
        self.after_step: Callable[[optim.Optimizer], None] = lambda _: None
        self.after_host_step: Callable[[optim.Optimizer], None] = lambda _: None
        self.after_backward: Callable[[], None] = lambda: None
        self.extensions: Callable[[str], Any] = _no_extensions
        self.stepped_with_gradients = False  # whether the optimizer that steps had a gradient to go by
        self._native = native
        self._names = Normalize(self.device)
        self._mover = ModuleMover(self.device, self.recorder)
        self.asked_how_many = False  # the script has asked how many GPUs there are
        self.optimizers: dict[int, optim.Optimizer] = {}

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Session]:
        """Everything inside runs on the planned device where it asks for CUDA."""
        patches = Patches()
        library = torch.library.Library("aten", "IMPL")
        hooks: list[Any] = []
        collecting = gc.isenabled()
        try:
            # reference cycles are collected at the start of each step: when a tensor in one dies must not depend on chance
            gc.collect()
            gc.freeze()
            gc.disable()
            self._install(patches, library, hooks)
            with self._names, self.device:
                yield self
        finally:
            for hook in hooks:
                hook.remove()
            library._destroy()
            patches.restore()
            gc.unfreeze()
            if collecting:
                gc.enable()

    def moved_parameters(self) -> list[torch.Tensor]:
        """Parameters that were moved to the planned device, in the order of moving."""
        return [moved for moved, _ in self._mover.moved]

    def give_back(self) -> None:
        """Turn moved parameters into the real ones that they were. Call it when the trace is finished."""
        self._mover.give_back()

    def _install(self, patches: Patches, library: torch.library.Library, hooks: list[Any]) -> None:
        facade.install(patches, self.card, self._synchronized, self._counted, self.recorder)
        self._mover.install(patches)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns that its kernels are overridden: that is the purpose
            kernels.install(library, self.sm)
            if not self._native:
                self._install_autocast(patches, library)
        self._names.install(patches)
        self._install_threads(patches)
        self._install_initializers(patches)
        self._install_optimizers(patches)
        self._install_backward(patches)
        hooks.append(optim_module.register_optimizer_step_pre_hook(self._before_step))
        hooks.append(optim_module.register_optimizer_step_post_hook(self._after_step))

    def _install_autocast(self, patches: Patches, library: torch.library.Library) -> None:
        autocast = Autocast(on_device)
        autocast.install(library)
        clear = torch.clear_autocast_cache

        def clear_autocast_cache() -> None:
            autocast.clear_cache()
            clear()

        patches.set(torch, "clear_autocast_cache", clear_autocast_cache)

    def _install_threads(self, patches: Patches) -> None:
        """Modes belong to a thread: one that the script starts gets them too."""
        start = threading.Thread.start

        def planned_start(thread: threading.Thread) -> None:
            run = thread.run

            def planned_run() -> None:
                with Normalize(self.device), self.device:
                    run()

            thread.run = planned_run  # type: ignore[method-assign]
            start(thread)

        patches.set(threading.Thread, "start", planned_start)

    def _install_initializers(self, patches: Patches) -> None:
        """Initialisers that loop until the values please them, or decompose large matrices on the host."""
        trunc_normal = getattr(init, "_no_grad_trunc_normal_", None)
        orthogonal = init.orthogonal_

        def planned_trunc_normal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not on_device(tensor) and tensor.numel() < LARGE_ELEMENTS:
                return trunc_normal(tensor, *args, **kwargs)  # type: ignore[misc]
            with torch.no_grad():
                return tensor.normal_()

        def planned_orthogonal(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if not on_device(tensor) and tensor.numel() >= LARGE_ELEMENTS:
                return tensor
            return orthogonal(tensor, *args, **kwargs)

        patches.set_existing(init, "_no_grad_trunc_normal_", planned_trunc_normal)
        patches.set(init, "orthogonal_", planned_orthogonal)

    def _install_optimizers(self, patches: Patches) -> None:
        # foreach is chosen for the exact types Tensor and Parameter only; a planned parameter stands for one
        for module in (optim_module, foreach_utils):
            patches.set(module, "_foreach_supported_types", [*module._foreach_supported_types, FakeTensor])
        if not self._native:
            group = torch._C._group_tensors_by_device_and_dtype

            def grouped(lists: Any, with_indices: bool = False) -> Any:
                """The groups that C++ makes, under the device that Python knows."""
                groups = group(lists, with_indices)
                return {(DEVICE if d.type == "meta" else d, t): tensors for (d, t), tensors in groups.items()}

            patches.set(torch._C, "_group_tensors_by_device_and_dtype", grouped)
        patches.set_existing(optim.Optimizer, "_cuda_graph_capture_health_check", lambda _: None)
        patches.set_existing(optim.Optimizer, "_accelerator_graph_capture_health_check", lambda _: None)

    def _install_backward(self, patches: Patches) -> None:
        def in_backward(run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                before, self.recorder.phase = self.recorder.phase, Phase.BACKWARD
                try:
                    return run(*args, **kwargs)
                finally:
                    self.recorder.phase = before
                    if before is not Phase.BACKWARD:
                        self.after_backward()

            return call

        patches.set(torch.autograd, "backward", in_backward(torch.autograd.backward))
        patches.set(torch.autograd, "grad", in_backward(torch.autograd.grad))

    def _synchronized(self) -> None:
        self.device.host_syncs += 1

    def _counted(self) -> None:
        self.asked_how_many = True

    def _before_step(self, optimizer: optim.Optimizer, *_: Any) -> None:
        self.optimizers.setdefault(id(optimizer), optimizer)
        self.stepped_with_gradients = _has_gradients(optimizer)
        for group in optimizer.param_groups:
            self.recorder.mark(group["params"], StorageKind.PARAMETER)
            self.recorder.mark((p.grad for p in group["params"] if p.grad is not None), StorageKind.GRADIENT)
        self.recorder.phase = Phase.OPTIMIZER

    def _after_step(self, optimizer: optim.Optimizer, *_: Any) -> None:
        self.recorder.phase = Phase.FORWARD
        self.stepped_with_gradients = self.stepped_with_gradients or _has_gradients(optimizer)  # LBFGS: in its closure
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                self.recorder.mark((v for v in state.values() if isinstance(v, torch.Tensor)), StorageKind.OPTIMIZER)
        if any(on_device(p) for group in optimizer.param_groups for p in group["params"]):
            self.after_step(optimizer)
        else:
            self.after_host_step(optimizer)


def _no_extensions(name: str) -> Any:
    raise NotTraceable(f"the CUDA extension {name!r} has no stand-in")


def _has_gradients(optimizer: optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
