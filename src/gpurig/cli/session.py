"""What a command may know of the world outside its arguments: today's date and whether to use colour."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class Session:
    """Handed to every command as ``ctx.obj``; tests hand in a fixed one."""

    today: date
    colour: bool = False

    @classmethod
    def of_process(cls) -> Session:
        """The real one: colour on a terminal, unless NO_COLOR is set (no-color.org) or the terminal is dumb."""
        wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(today=date.today(), colour=wanted)
