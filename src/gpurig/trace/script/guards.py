"""What a traced script may not do: reach the network, write checkpoints of tensors that do not exist, see a real GPU."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gpurig.trace.device import DEVICE
from gpurig.trace.patches import Patches
from gpurig.trace.script.request import ScriptRequest
from gpurig.trace.session import Session

_LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0", "/")  # noqa: S104 names to compare with, nothing is bound


class NetworkBlocked(ConnectionError):
    """The script tried to reach the network while it was planned."""

    def __init__(self, target: str) -> None:
        super().__init__(f"gpurig keeps scripts off the network while it plans them: {target}")
        self.target = target


class Network:
    """An audit hook that refuses connections to other machines and remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        """See sys.addaudithook."""
        if event == "urllib.Request":
            self.asked.append(str(args[0]))
        elif event in ("socket.connect", "socket.getaddrinfo"):
            host = _host(event, args)
            if host is not None and not host.startswith(_LOOPBACK):
                self.asked.append(host)
                raise NetworkBlocked(self.asked[-2] if self.asked[-2:-1] and host in self.asked[-2] else host)


def _host(event: str, args: tuple[Any, ...]) -> str | None:
    target = args[0] if event == "socket.getaddrinfo" else args[1]
    if isinstance(target, tuple):
        target = target[0]
    if isinstance(target, bytes):
        target = target.decode(errors="replace")
    return target if isinstance(target, str) and target else None


def install(patches: Patches, request: ScriptRequest, session: Session) -> None:
    """Put the guards up, for the rest of the process."""
    if not request.network:
        sys.addaudithook(Network().hook)
    # C libraries must not see a GPU, and scripts read the variable: Python's view of it is all that changes
    visible = ",".join(str(i) for i in range(request.card.num_gpus))
    os.environ._data[os.environ.encodekey("CUDA_VISIBLE_DEVICES")] = os.environ.encodevalue(visible)  # type: ignore[attr-defined]
    _install_files(patches, session)


def _install_files(patches: Patches, session: Session) -> None:
    save, load = torch.save, torch.load

    def planned_save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(leaf, FakeTensor) for leaf in _leaves(obj)):
            session.recorder.note("save", "what the script saves from the GPU was not written")
            return
        save(obj, f, *args, **kwargs)

    def planned_load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Tensors are read to the host and moved from there."""
        if not _names_cuda(map_location):
            return load(f, map_location or _stays_on_host, *args, **kwargs)
        loaded = load(f, "cpu", *args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(DEVICE), loaded)

    patches.set(torch, "save", planned_save)
    patches.set(torch, "load", planned_load)


def _stays_on_host(storage: Any, location: str) -> Any:
    del location
    return storage


def _names_cuda(location: Any) -> bool:
    if isinstance(location, torch.device):
        return location.type == "cuda"
    if isinstance(location, dict):
        return any(_names_cuda(value) for value in location.values())
    return (isinstance(location, str) and location.startswith("cuda")) or isinstance(location, int)


def _leaves(obj: Any) -> list[Any]:
    if isinstance(obj, torch.nn.Module):
        return [*obj.parameters(), *obj.buffers()]
    leaves = []
    for leaf in pytree.tree_leaves(obj):
        leaves += _leaves(leaf) if isinstance(leaf, torch.nn.Module) else [leaf]
    return leaves
