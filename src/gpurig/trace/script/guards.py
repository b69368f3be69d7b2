"""What a traced script may not do: reach the network, write checkpoints of tensors that do not exist, see a real GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from gpurig.trace.device import DEVICE

if TYPE_CHECKING:
    from gpurig.trace.patches import Patches
    from gpurig.trace.script.request import ScriptRequest
    from gpurig.trace.session import Session

_LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0", "/")


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
    install_files(patches, session)


_MARK = b"gpurig: not written while planning "


class SavedFiles:
    """torch.save and torch.load of things that live on the planned device: a short file stands for each."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._save, self._load = torch.save, torch.load
        self._kept: list[Any] = []

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        """torch.save."""
        if not any(isinstance(leaf, FakeTensor) for leaf in _leaves(obj)):
            self._save(obj, f, *args, **kwargs)
            return
        self._session.recorder.note("save", "what the script saves from the GPU was not written")
        mark = _MARK + str(len(self._kept)).encode()
        self._kept.append(obj)
        if hasattr(f, "write"):
            f.write(mark)
        else:
            Path(f).write_bytes(mark)

    def load(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """torch.load: tensors are read to the host and moved from there."""
        kept = self._kept_in(f)
        if kept is not None:
            return kept
        if not _names_cuda(map_location):
            return self._load(f, map_location or _stays_on_host, *args, **kwargs)
        loaded = self._load(f, "cpu", *args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(DEVICE), loaded)

    def _kept_in(self, f: Any) -> Any:
        if not self._kept:
            return None
        if hasattr(f, "read"):
            at = f.tell()
            data = f.read(len(_MARK) + 12)
            f.seek(at)
        else:
            with Path(f).open("rb") as file:
                data = file.read(len(_MARK) + 12)
        return self._kept[int(data[len(_MARK) :])] if data.startswith(_MARK) else None


def install_files(patches: Patches, session: Session) -> None:
    """Answer torch.save and torch.load."""
    files = SavedFiles(session)
    patches.set(torch, "save", files.save)
    patches.set(torch, "load", files.load)


def _stays_on_host(storage: Any, location: str) -> Any:
    del location
    return storage


def _names_cuda(location: Any) -> bool:
    if isinstance(location, torch.device):
        return location.type == "cuda"  # type: ignore[no-any-return]
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
