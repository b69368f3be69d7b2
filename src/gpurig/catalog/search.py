"""One call per question: which GPUs, which offers. What the command line calls, and a notebook may."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.names import resolve
from gpurig.catalog.offers import load_offers, provider_names
from gpurig.catalog.prices import Rates, default_rates
from gpurig.catalog.query import GpuFilter, OfferFilter, Selection, select_gpus, select_offers, sort_offers
from gpurig.errors import UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gpurig.catalog.prices import Rate
    from gpurig.model.gpu import Gpu
    from gpurig.model.offer import Offer


_Filter = TypeVar("_Filter", GpuFilter, OfferFilter)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """How many more would match without one condition."""

    condition: str  # field of OfferFilter or GpuFilter
    num_matching: int


@dataclass(frozen=True, slots=True)
class OfferSearch:
    """Offers that match, in order, and what was left out."""

    offers: tuple[Offer, ...]
    set_aside: tuple[Offer, ...]  # match too, but their price is not believed
    rejected: Mapping[str, int]  # by first reason
    relaxations: tuple[Relaxation, ...]  # only where nothing matches
    rates: Rates
    num_searched: int


def find_gpus(names: Sequence[str] = (), wanted: GpuFilter | None = None, *, known: bool = False) -> Selection[Gpu]:
    """Parts with any of these names that pass the filter, in catalogue order.

    Without names, only parts that can be rented, unless `known` asks for all that have facts.

    Raises:
        UnknownName: a name that the catalogue does not know.
    """
    wanted = wanted or GpuFilter()
    gpus = load_gpus()
    if names:
        return select_gpus(gpus.values(), replace(wanted, gpu_ids=_ids(names, gpus)))
    return select_gpus((gpu for gpu in gpus.values() if known or gpu.rentable), wanted)


def find_offers(
    names: Sequence[str] = (),
    wanted: OfferFilter | None = None,
    *,
    prices: Path | None = None,
    rates: Sequence[Rate] = (),
    sort: str = "price-per-gpu",
    data_dir: Path | None = None,
) -> OfferSearch:
    """Offers of GPUs with any of these names that pass the filter, in order.

    Args:
        names: GPU names in any spelling; none: all.
        wanted: Further conditions.
        prices: The user's price file, applied before filtering.
        rates: Conversion rates that replace the default and those of the price file.
        sort: One of `query.SORT_KEYS`.
        data_dir: Where refreshed lists lie; default: the user's.

    Raises:
        UnknownName: a GPU, provider, country or continent that the catalogue does not know.
        BadFile: the price file or a refreshed list has faults.
    """
    wanted = wanted or OfferFilter()
    gpus = load_gpus()
    offers = load_offers(data_dir)
    in_use = default_rates()
    if prices is not None:
        from gpurig.catalog.own_prices import apply_own_prices, read_own_prices

        own = read_own_prices(prices, offers, gpus)
        offers = apply_own_prices(offers, own)
        in_use = in_use.with_rates(own.rates)
    in_use = in_use.with_rates(rates)
    if names:
        wanted = replace(wanted, gpu=replace(wanted.gpu, gpu_ids=_ids(names, gpus)))
    _check_names("provider", wanted.providers, provider_names(offers))
    _check_names("country", wanted.countries, {offer.country for offer in offers if offer.country})
    _check_names("continent", wanted.continents, {offer.continent for offer in offers if offer.continent})
    found = select_offers(offers, replace(wanted, suspect=True), gpus, in_use)
    believed = [offer for offer in found.passed if offer.suspect is None]
    set_aside = [offer for offer in found.passed if offer.suspect is not None]
    return OfferSearch(
        offers=sort_offers(believed, sort, in_use, spot=wanted.spot),
        set_aside=sort_offers(set_aside, sort, in_use, spot=wanted.spot),
        rejected=found.rejected,
        relaxations=() if found.passed else relaxations(offers, wanted, gpus, in_use),
        rates=in_use,
        num_searched=len(offers),
    )


def relaxations(
    offers: Iterable[Offer], wanted: OfferFilter, gpus: Mapping[str, Gpu], rates: Rates
) -> tuple[Relaxation, ...]:
    """For each condition, how many offers would match without it; most first, those that do not help left out."""
    offers = tuple(offers)
    counts = []
    for name, relaxed in _relaxed(wanted):
        number = len(select_offers(offers, relaxed, gpus, rates).passed)
        if number:
            counts.append(Relaxation(name, number))
    return tuple(sorted(counts, key=lambda relaxation: -relaxation.num_matching))


def _relaxed(wanted: OfferFilter) -> Iterable[tuple[str, OfferFilter]]:
    """The filter with each set condition removed in turn."""
    for condition in fields(OfferFilter):
        plain = OfferFilter()
        if condition.name not in ("gpu", "currency", "suspect") and _is_set(wanted, plain, condition.name):
            yield condition.name, _with_default(wanted, plain, condition.name)
    for condition in fields(GpuFilter):
        if _is_set(wanted.gpu, GpuFilter(), condition.name):
            gpu = _with_default(wanted.gpu, GpuFilter(), condition.name)
            yield condition.name, replace(wanted, gpu=gpu)


def _is_set(wanted: object, plain: object, name: str) -> bool:
    return bool(getattr(wanted, name) != getattr(plain, name))


def _with_default(wanted: _Filter, plain: _Filter, name: str) -> _Filter:
    return replace(wanted, **{name: getattr(plain, name)})


def _ids(names: Iterable[str], gpus: Mapping[str, Gpu]) -> frozenset[str]:
    return frozenset(gpu.gpu_id for name in names for gpu in resolve(name, gpus))


def _check_names(kind: str, wanted: Iterable[str], known: Iterable[str]) -> None:
    """Every wanted name is known.

    Raises:
        UnknownName: the first that is not, with suggestions.
    """
    known = sorted(known)
    for name in wanted:
        if name not in known:
            import difflib

            close = tuple(difflib.get_close_matches(name, known, n=3, cutoff=0.5))
            raise UnknownName(kind, name, close, hint=f"use one of: {', '.join(known)}")
