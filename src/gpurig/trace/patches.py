"""Attributes that are replaced for the time of a trace and put back after it."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Replaces attributes and puts them back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace `owner.name`; a missing attribute is removed again at the end."""
        before = owner.__dict__.get(name, _MISSING) if hasattr(owner, "__dict__") else getattr(owner, name, _MISSING)
        self._undo.append((owner, name, before))
        setattr(owner, name, value)

    def set_existing(self, owner: Any, name: str, value: Any) -> None:
        """Replace `owner.name` if this version of the library has it."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def restore(self) -> None:
        """Put everything back."""
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
