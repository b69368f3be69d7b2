"""Several processes and GPUs: a process group that answers by itself, launchers, wrappers that are recorded and not run."""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gpurig.trace.device import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.trace.patches import Patches
    from gpurig.trace.script.request import ScriptRequest
    from gpurig.trace.session import Session


class Launch:
    """What a script does to run on more than one GPU.

    Attributes:
        world_size: Ranks of the process group that the script made.
        data_parallel: "none", "ddp", "dp" or "fsdp".
        compiled: Whether torch.compile was asked for.
    """

    def __init__(self, session: Session, request: ScriptRequest) -> None:
        self._session = session
        self._request = request
        self.world_size = request.world_size or 1
        self.data_parallel = "none"
        self.compiled = False

    def install(self, patches: Patches) -> None:
        self._install_compile(patches)
        self._install_spawn(patches)
        self._install_data_parallel(patches)
        if dist.is_available():
            self._install_group(patches)
            self._install_ddp(patches)
            self._install_fsdp(patches)
            self._install_fully_shard(patches)

    # --- torch.compile: the same operators, fused by the compiler on the GPU; noted for the prediction -----------------------
    def _install_compile(self, patches: Patches) -> None:
        def compile_(model: Any = None, **_: Any) -> Any:
            if model is None:
                return compile_
            # libraries decorate functions of their own when they are imported: that says nothing of the script
            self.compiled = self.compiled or isinstance(model, nn.Module) or self._is_users(model)
            return model

        def compile_module(module: nn.Module, *_: Any, **__: Any) -> None:
            del module
            self.compiled = True

        patches.set(torch, "compile", compile_)
        patches.set_existing(nn.Module, "compile", compile_module)

    # --- processes -----------------------------------------------------------------------------------------------------
    def _install_spawn(self, patches: Patches) -> None:
        import torch.multiprocessing as mp

        def spawn(fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
            """Rank 0, here."""
            if nprocs > 1:
                self._session.recorder.note(
                    "spawn", f"of {nprocs} processes that the script starts, rank 0 was followed"
                )
            fn(0, *args)

        patches.set(mp, "spawn", spawn)
        patches.set(mp, "start_processes", spawn)
        patches.set(sys.modules["torch.multiprocessing.spawn"], "spawn", spawn)
        patches.set(BaseProcess, "start", self._start_here(BaseProcess.start))
        patches.set(torch.Tensor, "share_memory_", lambda tensor: tensor)
        patches.set(sys.modules["torch.multiprocessing.spawn"], "start_processes", spawn)

    def _start_here(self, start: Callable[[Any], None]) -> Callable[[Any], None]:
        """Process.start: a rank or a trainer of the user's own runs here, the other ranks don't run at all."""
        followed: set[Any] = set()

        def planned_start(process: Any) -> None:
            target, args = process._target, process._args
            if target is None or not self._is_users(target):
                start(process)
            elif target in followed:
                process.join = process.terminate = lambda *_, **__: None
            elif _takes_part(args):
                followed.add(target)
                process.join = process.terminate = lambda *_, **__: None
                self._session.recorder.note("spawn", "of the processes that the script starts, the first was followed")
                process.run()
            else:
                start(process)

        return planned_start

    def _is_users(self, function: Any) -> bool:
        code = getattr(function, "__code__", None)
        return code is not None and "site-packages" not in code.co_filename and "/lib/python" not in code.co_filename

    # --- process groups ------------------------------------------------------------------------------------------------
    def _install_group(self, patches: Patches) -> None:
        init, new_group = dist.init_process_group, dist.new_group
        asked = {"backend": "nccl"}

        def init_process_group(
            backend: str | None = None, init_method: str | None = None, timeout: Any = None, world_size: int = -1,
            rank: int = -1, store: Any = None, group_name: str = "", **_: Any,
        ) -> None:  # fmt: skip
            from torch.testing._internal.distributed.fake_pg import FakeStore

            del timeout, store
            asked["backend"] = (backend or "nccl").rpartition(":")[2]
            needs_environment = world_size < 0 and init_method in (None, "env://")
            if needs_environment and "WORLD_SIZE" not in os.environ:
                raise ValueError("environment variable WORLD_SIZE expected, but not set")
            ranks = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
            self.world_size = ranks
            init("fake", store=FakeStore(), world_size=ranks, rank=max(0, rank), group_name=group_name)

        def planned_new_group(
            ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            del timeout, backend, args
            kwargs = {k: v for k, v in kwargs.items() if k in ("use_local_synchronization", "group_desc")}
            return new_group(ranks, backend="fake", **kwargs)

        def gather_objects(object_list: Any, obj: Any, *_: Any, **__: Any) -> None:
            if object_list is not None:
                object_list[:] = [copy.copy(obj) for _ in object_list]

        answers: dict[str, Any] = {
            "init_process_group": init_process_group,
            "new_group": planned_new_group,
            "get_backend": lambda *_, **__: asked["backend"],
            "is_nccl_available": lambda: True,
            "is_gloo_available": lambda: True,
            "all_gather_object": gather_objects,
            "gather_object": gather_objects,
            "broadcast_object_list": lambda *_, **__: None,
            "barrier": lambda *_, **__: None,
            "monitored_barrier": lambda *_, **__: None,
        }
        for name, answer in answers.items():
            _replace_everywhere(patches, name, getattr(dist.distributed_c10d, name, None), answer)

    # --- wrappers ------------------------------------------------------------------------------------------------------
    def _install_data_parallel(self, patches: Patches) -> None:
        def init(
            wrapper: nn.DataParallel[Any],
            module: nn.Module,
            device_ids: Any = None,
            output_device: Any = None,
            dim: int = 0,
        ) -> None:
            nn.Module.__init__(wrapper)
            wrapper.module = module
            wrapper.device_ids = list(device_ids or range(self._request.card.num_gpus))
            wrapper.dim, wrapper.output_device, wrapper.src_device_obj = dim, output_device or 0, DEVICE
            self.data_parallel = "dp"

        def forward(wrapper: nn.DataParallel[Any], *args: Any, **kwargs: Any) -> Any:
            args, kwargs = _moved((args, kwargs))
            return wrapper.module(*args, **kwargs)

        patches.set(nn.DataParallel, "__init__", init)
        patches.set(nn.DataParallel, "forward", forward)

    def _install_ddp(self, patches: Patches) -> None:
        wrapper_class = nn.parallel.DistributedDataParallel

        def init(
            wrapper: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, **options: Any
        ) -> None:
            nn.Module.__init__(wrapper)
            wrapper.module = module
            wrapper.device_ids, wrapper.output_device, wrapper.device, wrapper.device_type = (
                device_ids,
                output_device,
                DEVICE,
                "cuda",
            )
            wrapper.process_group = options.get("process_group")
            wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = True
            for name in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers"):
                setattr(wrapper, name, options.get(name, False))
            wrapper.parameters_to_ignore = set()
            self.data_parallel = "ddp"

        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if wrapper.device_ids:
                args, kwargs = _moved((args, kwargs))
            return wrapper.module(*args, **kwargs)

        replaced: dict[str, Any] = {
            "__init__": init,
            "forward": forward,
            "no_sync": _no_context,
            "join": _no_context,
            "register_comm_hook": _nothing,
            "_register_builtin_comm_hook": _nothing,
            "_set_static_graph": _nothing,
            "__getstate__": lambda wrapper: wrapper.__dict__,
            "__setstate__": lambda wrapper, state: wrapper.__dict__.update(state),
            "train": nn.Module.train,
        }
        for name, method in replaced.items():
            patches.set(wrapper_class, name, method)

    def _install_fsdp(self, patches: Patches) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel

        def init(wrapper: Any, module: nn.Module, *_: Any, **options: Any) -> None:
            nn.Module.__init__(wrapper)
            wrapper._fsdp_wrapped_module = module
            if options.get("device_id") is not None:
                module.to(DEVICE)
            wrapper._gpurig_dtype = getattr(options.get("mixed_precision"), "param_dtype", None)
            self.data_parallel = "fsdp"

        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = _moved((args, kwargs))
            with _cast(wrapper._gpurig_dtype):
                return wrapper._fsdp_wrapped_module(*args, **kwargs)

        def clip(wrapper: Any, max_norm: float, norm_type: float = 2.0) -> Any:
            return nn.utils.clip_grad_norm_(wrapper.parameters(), max_norm, norm_type)

        replaced: dict[str, Any] = {
            "__init__": init,
            "forward": forward,
            "module": property(lambda wrapper: wrapper._fsdp_wrapped_module),
            "__getattr__": _inner_attribute,
            "no_sync": _no_context,
            "clip_grad_norm_": clip,
            "summon_full_params": staticmethod(_no_context),
            "state_dict_type": staticmethod(_no_context),
            "set_state_dict_type": staticmethod(_nothing),
            "optim_state_dict": staticmethod(_optimizer_state),
            "full_optim_state_dict": staticmethod(_optimizer_state),
            "named_parameters": nn.Module.named_parameters,
            "named_buffers": nn.Module.named_buffers,
            "apply": nn.Module.apply,
            "register_comm_hook": _nothing,
        }
        for name, method in replaced.items():
            patches.set(FullyShardedDataParallel, name, method)

    def _install_fully_shard(self, patches: Patches) -> None:
        import torch.distributed.fsdp as fsdp

        if not hasattr(fsdp, "fully_shard"):  # before torch 2.6
            return
        module_class = fsdp.FSDPModule

        def fully_shard(module: Any, **options: Any) -> Any:
            self.data_parallel = "fsdp"
            dtype = getattr(options.get("mp_policy"), "param_dtype", None)
            for part in module if isinstance(module, (list, tuple)) else (module,):
                _say_sharded(part)
                if not isinstance(part, module_class):
                    part.__class__ = type(f"FSDP{type(part).__name__}", (module_class, type(part)), {})
                if dtype is not None:
                    part.register_forward_pre_hook(_cast_inputs(dtype), with_kwargs=True)
            return module

        for name in [n for n in vars(module_class) if n.startswith(("set_", "unshard", "reshard", "_set_"))]:
            patches.set(module_class, name, _nothing)
        patches.set(module_class, "_apply", nn.Module._apply)
        patches.set(module_class, "__new__", lambda cls, *_, **__: object.__new__(cls))
        patches.set(fsdp, "fully_shard", fully_shard)
        with contextlib.suppress(ImportError):
            import torch.distributed._composable.fsdp as composable

            patches.set_existing(composable, "fully_shard", fully_shard)


def _replace_everywhere(patches: Patches, name: str, original: Any, answer: Any) -> None:
    """Replace a function of torch.distributed also where its modules have taken it by name."""
    for module in [m for n, m in sys.modules.items() if n.startswith("torch.distributed") and m is not None]:
        if original is not None and module.__dict__.get(name) is original:
            patches.set(module, name, answer)


def _say_sharded(module: nn.Module) -> None:
    """What scripts read of a sharded parameter."""
    from torch.distributed.tensor import DTensor, Shard

    for parameter in module.parameters():
        if isinstance(parameter, DTensor):
            continue  # tensor parallel already: it says so itself
        parameter.placements = (Shard(0),)
        parameter.to_local = parameter.full_tensor = lambda parameter=parameter: parameter


def _takes_part(args: tuple[Any, ...]) -> bool:
    """Whether a process trains: it is given rank 0, a device, or something that lives on one."""
    first = args[0] if args else None
    if isinstance(first, int) and not isinstance(first, bool) and first == 0:
        return True
    for value in pytree.tree_leaves(args):
        held = next(value.parameters(), None) if isinstance(value, nn.Module) else value
        if isinstance(held, FakeTensor) or (isinstance(held, torch.device) and held.type == "cuda"):
            return True
    return False


def _inner_attribute(wrapper: Any, name: str) -> Any:
    try:
        return nn.Module.__getattr__(wrapper, name)
    except AttributeError:
        return getattr(nn.Module.__getattr__(wrapper, "_fsdp_wrapped_module"), name)


def _moved(values: Any) -> Any:
    """Host tensors among the inputs, on the device, as the wrappers move them."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.to(DEVICE), values)


def _nothing(*_: Any, **__: Any) -> None: ...


def _optimizer_state(_: Any, optimizer: torch.optim.Optimizer, *__: Any, **___: Any) -> dict[str, Any]:
    return optimizer.state_dict()  # type: ignore[no-any-return]


@contextlib.contextmanager
def _no_context(*_: Any, **__: Any) -> Any:
    yield


def _cast(dtype: torch.dtype | None) -> Any:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cuda", dtype=dtype)


def _cast_inputs(dtype: torch.dtype) -> Callable[..., Any]:
    def cast(module: nn.Module, args: Any, kwargs: Any) -> Any:
        del module
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, (args, kwargs))

    return cast
