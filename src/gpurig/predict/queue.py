"""The two clocks of a step: the host issues kernels, the device runs them in order, and now and then the host waits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpurig.predict.tiles import Floats

HOST_NORM = 8.0


@dataclass(frozen=True, slots=True)
class Walk:
    """Wall time of steps in a steady loop, and what host and device would need alone."""

    step_time_s: float
    host_s: float
    device_s: float


def walk(host_s: Floats, device_s: Floats, syncs: NDArray[np.bool_], *, waits_at_end: bool = False) -> Walk:
    """Time of one step of a loop that runs the same calls again and again.

    Between two waits, call n ends at max over j ≤ n of (issue of j + device time of j … n): the device starts a call
    when it was issued and the one before has ended. The second of two steps is timed, so that the host's lead at
    the start of a step is that of a running loop.

    Args:
        host_s: Host time to issue each call.
        device_s: Device time of each call, 0 for calls without a kernel.
        syncs: Calls at which the host waits for all before.
        waits_at_end: Whether the loop waits for the device after each step, as timing loops do.
    """
    host_total, device_total = float(host_s.sum()), float(device_s.sum())
    if not len(host_s):
        return Walk(0.0, 0.0, 0.0)
    if not (waits_at_end or bool(syncs.any())):
        return Walk(_either(host_total, device_total), host_total, device_total)
    bounds = [0, *(np.flatnonzero(syncs) + 1), len(host_s)]
    host_now = device_now = 0.0
    ends = []
    for _ in range(2):
        for start, end in itertools.pairwise(bounds):
            if start == end:
                continue
            waits = bool(syncs[end - 1]) or (waits_at_end and end == len(host_s))
            host_now, device_now = _segment(host_s[start:end], device_s[start:end], host_now, device_now)
            if waits:
                host_now = device_now = max(host_now, device_now)
        ends.append(max(host_now, device_now) if waits_at_end else host_now)
    return Walk(max(ends[1] - ends[0], _either(host_total, device_total)), host_total, device_total)


def _either(host_s: float, device_s: float) -> float:
    """Pace of a loop in which the host never waits: its lead grows until the slower of both sets the pace.

    Where both are alike, stretches in which one is slower do not average out: (host^8 + device^8)^(1/8).
    """
    return (host_s**HOST_NORM + device_s**HOST_NORM) ** (1 / HOST_NORM)  # type: ignore[no-any-return]


def _segment(host_s: Floats, device_s: Floats, host_now: float, device_now: float) -> tuple[float, float]:
    """(host clock, device clock) after calls without a wait between them."""
    issued = host_now + np.cumsum(host_s)
    done = np.cumsum(device_s)
    before = done - device_s
    device_end = max(device_now, float(np.max(issued - before))) + float(done[-1])
    return float(issued[-1]), device_end
