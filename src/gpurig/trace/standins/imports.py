"""Calls a function right after a module has been imported."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

Patch = Callable[[ModuleType], None]


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and runs the waiting patches after its code."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Patch]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._wrap(spec)
                return spec
        return None

    def _wrap(self, spec: ModuleSpec) -> None:
        if spec.loader is None:
            return
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for patch in self.waiting.pop(spec.name, []):
                patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]


_finder = _AfterImport()


def after_import(name: str, patch: Patch) -> None:
    """Call `patch(module)` after the module `name` is imported; at once if it already is."""
    module = sys.modules.get(name)
    if module is not None:
        patch(module)
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.waiting.setdefault(name, []).append(patch)
