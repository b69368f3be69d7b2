"""Pretrained weights that are not on this machine: random ones do, since no value of them matters.

The shapes must be known: a constructor of torchvision or timm, a configuration of transformers that is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gpurig.errors import NotTraceable
from gpurig.trace.standins.imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from gpurig.trace.patches import Patches
    from gpurig.trace.session import Session

_NOT_HERE = (
    OSError,
    ValueError,
    RuntimeError,
)  # what hubs raise for a file that is not cached, ConnectionError among them


class MissingWeights(dict[str, Any]):
    """A state dict that would have to be downloaded: it can be loaded into a module, and not be looked into."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotTraceable(
            f"it needs a download of {self.source}",
            hint="download it first (run the script once for a moment), or allow the network with --network",
        )

    __getitem__ = __delitem__ = __contains__ = keys = values = items = pop = get = _refuse

    def __iter__(self) -> Iterator[str]:
        return self._refuse()  # type: ignore[no-any-return]


def install(patches: Patches, session: Session) -> None:
    """Stand in for weights in torch.hub, torchvision, timm and transformers."""

    def note(source: str) -> None:
        session.recorder.note(
            "pretrained", f"pretrained weights of {source} are not on this machine: random ones were used"
        )

    _install_hub(patches, note)
    after_import("timm.models._builder", lambda module: _patch_timm(patches, module, note))
    after_import("transformers.modeling_utils", lambda module: _patch_transformers(patches, module, note))


def _install_hub(patches: Patches, note: Callable[[str], None]) -> None:
    fetch, load = torch.hub.load_state_dict_from_url, nn.Module.load_state_dict

    def load_state_dict_from_url(url: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return fetch(url, *args, **kwargs)
        except OSError:
            return MissingWeights(url)

    def load_state_dict(module: nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(state_dict, MissingWeights):
            return load(module, state_dict, *args, **kwargs)
        note(state_dict.source)
        return nn.modules.module._IncompatibleKeys([], [])

    patches.set(torch.hub, "load_state_dict_from_url", load_state_dict_from_url)
    patches.set(nn.Module, "load_state_dict", load_state_dict)

    def patch_torchvision(module: ModuleType) -> None:
        patches.set(module, "load_state_dict_from_url", load_state_dict_from_url)

    after_import("torchvision.models._api", patch_torchvision)


def _patch_timm(patches: Patches, module: ModuleType, note: Callable[[str], None]) -> None:
    original = module.load_pretrained

    def load_pretrained(model: nn.Module, *args: Any, **kwargs: Any) -> None:
        try:
            original(model, *args, **kwargs)
        except _NOT_HERE as error:
            if isinstance(error, (ValueError, RuntimeError)) and not _names_a_download(error):
                raise
            note(type(model).__name__)

    patches.set(module, "load_pretrained", load_pretrained)


def _patch_transformers(patches: Patches, module: ModuleType, note: Callable[[str], None]) -> None:
    original = module.PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls: Any, /, name: Any, *args: Any, config: Any = None, **kwargs: Any) -> Any:
        try:
            return original(cls, name, *args, config=config, **kwargs)
        except OSError:
            found = config if config is not None else _config(cls, name)
            if found is None:
                raise
            note(str(name))
            dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
            model = cls._from_config(found, **({"dtype": dtype} if isinstance(dtype, torch.dtype) else {}))
            return model.eval()

    patches.set(module.PreTrainedModel, "from_pretrained", classmethod(from_pretrained))


def _config(cls: Any, name: Any) -> Any:
    """The configuration of a model whose weights are missing, if that is here."""
    try:
        return cls.config_class.from_pretrained(name)
    except _NOT_HERE:
        return None


def _names_a_download(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}"
    return any(word in text for word in ("ffline", "onnect", "hub", "cache", "network"))
