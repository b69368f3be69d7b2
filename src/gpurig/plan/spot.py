"""What it costs to run on instances that may be taken back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpurig.model.plan import SpotCost

if TYPE_CHECKING:
    from gpurig.model.offer import Offer

_HOURS_PER_MONTH = 730.0
# No figure is published for most providers. One interruption a day is pessimistic for most GPU types and is said to be assumed.
ASSUMED_HAZARD_PER_H = 1 / 24
_LOAD_GB_PER_S = 1.0


def hazard_per_h(offer: Offer) -> tuple[float, str, bool]:
    """Interruptions an hour, where the figure comes from, and whether it is an assumption.

    A published band is the share of instances taken back within a month; the upper bound p of the band gives
    -ln(1 - p) / 730 h. Bands without an upper bound are taken at 40 %.
    """
    band = offer.spot_interruption
    if band is None:
        return ASSUMED_HAZARD_PER_H, "no figure published: one interruption a day assumed", True
    upper = min(band.per_month[1], 0.4)
    day = f" of {offer.spot_stats_date}" if offer.spot_stats_date else ""
    return -math.log(1 - upper) / _HOURS_PER_MONTH, f"published band {band.value} a month{day}", False


def checkpoint_interval_s(save_s: float, hazard: float) -> float:
    """Young's interval between checkpoints: sqrt(2 · save time · mean time to interruption).

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.

    Args:
        save_s: Seconds to save.
        hazard: Interruptions an hour; must be positive.
    """
    return math.sqrt(2 * save_s * 3600 / hazard)


def spot_cost(
    useful_h: float, checkpoint_bytes: int, offer: Offer, *, startup_s: float, save_gb_per_s: float
) -> SpotCost:
    """Expected interruptions and the time they add to `useful_h` hours of training.

    Overhead = save/interval + hazard · (interval/2 + restart): writing checkpoints, work lost since the last, starting again.
    """
    hazard, source, assumed = hazard_per_h(offer)
    save_s = max(1.0, checkpoint_bytes / 1e9 / save_gb_per_s)
    restart_s = startup_s + checkpoint_bytes / 1e9 / _LOAD_GB_PER_S
    interval_s = min(checkpoint_interval_s(save_s, hazard), max(useful_h * 3600, save_s))
    overhead = save_s / interval_s + hazard / 3600 * (interval_s / 2 + restart_s)
    return SpotCost(
        hazard_per_h=hazard,
        hazard_source=source,
        hazard_assumed=assumed,
        checkpoint_every_s=interval_s,
        save_s=save_s,
        restart_s=restart_s,
        expected_interruptions=hazard * useful_h * (1 + overhead),
        overhead=overhead,
    )
