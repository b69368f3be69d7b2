"""Which offers are not believed, and why. Nothing is dropped: a suspect offer keeps its row and gains a reason.

Public price lists are wrong in bulk (a cloud's file 35 to 64 % too low for whole families, a GPU at $0 or $0.01), and
"the cheapest" picks exactly the errors.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING

from gpurig.model.offer import Currency, Offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OUTLIER_FRACTION = 0.70  # of the provider's median for the instance type
MIN_REGIONS = 3  # fewer rows of a type have no median worth the name
FLOOR_FRACTION = 0.02  # of all providers' median for the GPU family in the same currency

_TypeKey = tuple[str, str, float, Currency]
_FamilyKey = tuple[str, Currency]


def screen(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The same offers in the same order, each with the first rule that it breaks in `suspect`.

    The user's own offers (`own`) are never suspect and never count towards a median. The rules:

    1. a price of zero or less;
    2. spot above on demand;
    3. the same provider, type and region again: the newest stays, the others are duplicates;
    4. price per GPU below 70 % of the same provider's median for that instance type over ≥ 3 regions;
    5. price per GPU below 2 % of the median of all offers for that GPU family in the same currency.
    """
    rows = tuple(offers)
    public = [offer for offer in rows if not offer.own and offer.price_per_h > 0]
    by_type: dict[_TypeKey, list[float]] = {}
    by_family: dict[_FamilyKey, list[float]] = {}
    newest: dict[tuple[str, str, str | None, float, str | None], Offer] = {}
    for offer in public:
        per_gpu = offer.price_per_h / offer.gpu_count
        by_type.setdefault(_type_key(offer), []).append(per_gpu)
        by_family.setdefault((offer.gpu_family, offer.currency), []).append(per_gpu)
        key = _same_key(offer)
        kept = newest.get(key)
        if kept is None or (offer.snapshot_date or date.min) > (kept.snapshot_date or date.min):
            newest[key] = offer
    type_median = {key: median(values) for key, values in by_type.items() if len(values) >= MIN_REGIONS}
    family_median = {key: median(values) for key, values in by_family.items() if len(values) >= MIN_REGIONS}

    def reason(offer: Offer) -> str | None:
        if offer.own:
            return None
        return (
            _reason_alone(offer)
            or _reason_duplicate(offer, newest)
            or _reason_low(
                offer, type_median.get(_type_key(offer)), family_median.get((offer.gpu_family, offer.currency))
            )
        )

    return tuple(offer if (why := reason(offer)) is None else replace(offer, suspect=why) for offer in rows)


def unjudged(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """The same offers without any verdict."""
    return tuple(offer if offer.suspect is None else replace(offer, suspect=None) for offer in offers)


def believed(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """The offers without a reason against them."""
    return tuple(offer for offer in offers if offer.suspect is None)


def median(values: Sequence[float]) -> float:
    """Middle value. The standard library's would import decimal and random, at 8 ms."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _reason_alone(offer: Offer) -> str | None:
    """What is wrong with an offer by itself."""
    if offer.price_per_h <= 0:
        return f"price {offer.price_per_h:g} is not a price"
    if offer.spot_price_per_h is not None and offer.spot_price_per_h <= 0:
        return f"spot price {offer.spot_price_per_h:g} is not a price"
    if offer.spot_price_per_h is not None and offer.spot_price_per_h > offer.price_per_h:
        return f"spot {offer.spot_price_per_h:g} is above on demand {offer.price_per_h:g}"
    return None


def _reason_duplicate(offer: Offer, newest: dict[tuple[str, str, str | None, float, str | None], Offer]) -> str | None:
    kept = newest[_same_key(offer)]
    if kept is offer:
        return None
    day = kept.snapshot_date.isoformat() if kept.snapshot_date else "no date"
    return f"duplicate of the row at {kept.price_per_h:g} {kept.currency}/h ({day})"


def _reason_low(offer: Offer, type_median: float | None, family_median: float | None) -> str | None:
    per_gpu = offer.price_per_h / offer.gpu_count
    if type_median is not None and per_gpu < OUTLIER_FRACTION * type_median:
        return (
            f"{per_gpu:.2f} {offer.currency}/h per GPU is {per_gpu / type_median:.0%} of {offer.provider}'s median "
            f"{type_median:.2f} for {offer.instance_type}"
        )
    if family_median is not None and per_gpu < FLOOR_FRACTION * family_median:
        return (
            f"{per_gpu:.2f} {offer.currency}/h per GPU is {per_gpu / family_median:.1%} of the median "
            f"{family_median:.2f} of all providers for {offer.gpu_family}"
        )
    return None


def _type_key(offer: Offer) -> _TypeKey:
    return (offer.provider, offer.instance_type, offer.gpu_count, offer.currency)


def _same_key(offer: Offer) -> tuple[str, str, str | None, float, str | None]:
    return (offer.provider, offer.instance_type, offer.region, offer.gpu_count, offer.mig_profile)
