"""Packages that need a GPU to be installed: flash-attn, apex, xformers.

They can't be on a laptop. A script that stops for want of one is started again with a module of that name, whose functions
are PyTorch's own of the same shapes. A script that has a way around the package takes it and never meets this file.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.trace.session import Session

KNOWN = ("flash_attn", "apex", "xformers")


def provide(names: tuple[str, ...], session: Session) -> None:
    """Make these packages importable, each from the file of its name beside this one."""
    for name in names:
        modules: dict[str, dict[str, object]] = importlib.import_module(f"{__package__}.like_{name}").MODULES
        for path, contents in modules.items():
            _add(path, contents)
        session.recorder.note("stand-in", f"{name} is not installed: PyTorch's own functions stood in for it")


def _add(path: str, contents: dict[str, object]) -> None:
    module = ModuleType(path)
    module.__dict__.update(contents)
    module.__path__ = []  # a package, for whatever is imported from below it
    module.__spec__ = importlib.machinery.ModuleSpec(path, None, is_package=True)
    sys.modules[path] = module
    parent, _, name = path.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)
