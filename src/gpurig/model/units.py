"""Units: GiB is 2^30 bytes, GB is 10^9 bytes, and text always says which."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 10**9


def gib(num_bytes: float) -> float:
    """Bytes as GiB (2^30)."""
    return num_bytes / GIB


def format_bytes(num_bytes: float) -> str:
    """Bytes for a person: ``17.2 GiB``, ``512 MiB``, ``3.0 KiB``, ``12 B``."""
    for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= size:
            value = num_bytes / size
            return f"{value:.0f} {name}" if value >= 100 or (name != "GiB" and value >= 10) else f"{value:.1f} {name}"
    return f"{num_bytes:.0f} B"


def format_duration(seconds: float) -> str:
    """Seconds for a person: ``0.61 s``, ``12 min``, ``16.9 h``, ``3.2 d``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{1 if seconds < 0.01 else 0}f} ms" if seconds < 0.1 else f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 72 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def format_count(number: float) -> str:
    """A count for a person: ``354.8 M``, ``7.2 G``, ``950``."""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.1f} {name}"
    return f"{number:.0f}"
