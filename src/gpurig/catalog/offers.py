"""What can be rented: the packaged offers and refreshed lists, joined with links, spot statistics and places."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpurig.catalog.files import DATA_DIR, optional_date, optional_float, read_table, user_data_dir
from gpurig.catalog.quality import screen, unjudged
from gpurig.errors import BadFile
from gpurig.model.offer import Currency, InstanceSpec, Interconnect, Offer, SpotBand

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date
    from pathlib import Path

OFFER_COLUMNS = (
    "provider", "instance_type", "region", "gpu_id", "gpu_family", "gpu_count", "gpu_memory_gb_each", "vgpu", "vcpus",
    "memory_gb", "price_per_h", "spot_price_per_h", "currency", "price_basis", "source", "snapshot_date",
)  # fmt: skip
PACKAGED_COLUMNS = (*OFFER_COLUMNS, "suspect")  # the verdict of `quality.screen` over all packaged offers
SOURCE_COLUMNS = ("key", "source", "licence", "attribution")
LINK_COLUMNS = (
    "provider", "instance_type", "gpu_id", "intra_node_link", "nvlink_gb_per_s", "network_gbps", "rdma", "source",
    "evidence", "compiled_on",
)  # fmt: skip
SPOT_COLUMNS = ("region", "instance_type", "saving_pct", "interruption", "source", "snapshot_date")
REGION_COLUMNS = ("provider", "region", "country", "continent", "source", "compiled_on")
SPEC_COLUMNS = (
    "provider", "instance_type", "gpu_as_published", "gpu_count", "gpu_memory_gb_each", "vcpus", "memory_gb",
    "network_gbps", "price_per_h", "currency", "price_region", "source", "snapshot_date",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpotStatistics:
    """How often spot instances of one type in one region are taken back, and what they save."""

    saving_pct: float
    interruption: SpotBand
    snapshot_date: date | None


@dataclass(frozen=True, slots=True)
class Places:
    """What is known of an offer beside its price list: links by instance type, spot statistics, countries."""

    links: dict[tuple[str, str], Interconnect]
    spot: dict[tuple[str, str], SpotStatistics]
    regions: dict[tuple[str, str], tuple[str | None, str | None]]


def load_offers(data_dir: Path | None = None) -> tuple[Offer, ...]:
    """All offers, screened: refreshed lists in `data_dir` (default: the user's) replace a provider's packaged rows.

    Offers that are not believed carry the reason in `suspect`; none is left out.

    Raises:
        BadFile: a refreshed list was damaged after it was written.
    """
    return _load_offers(data_dir or user_data_dir())


def forget_offers() -> None:
    """Read the lists again on the next load: one was replaced."""
    _load_offers.cache_clear()


@cache
def _load_offers(data_dir: Path) -> tuple[Offer, ...]:
    refreshed = _refreshed_offers(data_dir / "offers")
    if not refreshed:
        return packaged_offers()
    replaced = {offer.provider for offer in refreshed}
    packaged = [offer for offer in packaged_offers() if offer.provider not in replaced]
    # The medians have changed, so every offer is judged again.
    return screen(unjudged((*packaged, *refreshed)))


@cache
def packaged_offers() -> tuple[Offer, ...]:
    """The offers that come with the package, joined and judged."""
    sources = {row[0]: row[1] for row in read_table(DATA_DIR / "sources.csv", SOURCE_COLUMNS)}
    places = load_places()
    rows = read_table(DATA_DIR / "offers.csv", PACKAGED_COLUMNS)
    return tuple(offer_of_row(row, sources[row[14]], places, suspect=row[16] or None) for row in rows)


@cache
def load_places() -> Places:
    """The tables that offers are joined with."""
    links = {
        (row[0], row[1]): Interconnect(
            provider=row[0],
            instance_type=row[1],
            gpu_id=row[2] or None,
            intra_node_link=row[3] or None,
            nvlink_gb_per_s=optional_float(row[4]),
            network_gbps=optional_float(row[5]),
            rdma=row[6] or None,
            source=row[7],
            evidence=row[8],
        )
        for row in read_table(DATA_DIR / "interconnect.csv", LINK_COLUMNS)
    }
    spot = {
        (row[1], row[0]): SpotStatistics(float(row[2]), SpotBand(row[3]), optional_date(row[5]))
        for row in read_table(DATA_DIR / "spot_aws.csv", SPOT_COLUMNS)
    }
    regions = {
        (row[0], row[1]): (row[2] or None, row[3] or None)
        for row in read_table(DATA_DIR / "regions.csv", REGION_COLUMNS)
    }
    return Places(links, spot, regions)


@cache
def load_instance_specs() -> tuple[InstanceSpec, ...]:
    """Instance types of Chinese clouds as published, many without a price and some under a cover name."""
    return tuple(
        InstanceSpec(
            provider=row[0],
            instance_type=row[1],
            gpu_as_published=row[2],
            gpu_count=optional_float(row[3]),
            gpu_memory_gb_each=optional_float(row[4]),
            vcpus=optional_float(row[5]),
            memory_gb=optional_float(row[6]),
            network_gbps=optional_float(row[7]),
            price_per_h=optional_float(row[8]),
            currency=Currency(row[9]) if row[9] else None,
            price_region=row[10] or None,
            source=row[11],
            snapshot_date=optional_date(row[12]),
        )
        for row in read_table(DATA_DIR / "instances_china.csv", SPEC_COLUMNS)
    )


def place_of(provider: str, region: str | None, places: Places) -> tuple[str | None, str | None]:
    """Country (ISO 3166) and continent of a region; None where not known.

    Vast.ai writes them into the region: ``Czechia, CZ, EU``.
    """
    if region is None:
        return (None, None)
    known = places.regions.get((provider, region))
    if known is not None:
        return known
    parts = [part.strip() for part in region.split(",")]
    if len(parts) >= 3 and len(parts[-1]) == 2 and len(parts[-2]) == 2:
        return (parts[-2], parts[-1])
    return (None, None)


def instance_parts(offers: Iterable[Offer]) -> dict[tuple[str, str], str | None]:
    """Exact part by (provider, instance type), None where the known offers disagree or do not say."""
    parts: dict[tuple[str, str], str | None] = {}
    for offer in offers:
        key = (offer.provider, offer.instance_type)
        parts[key] = offer.gpu_id if parts.get(key, offer.gpu_id) == offer.gpu_id else None
    return parts


def provider_names(offers: Sequence[Offer]) -> tuple[str, ...]:
    """Providers, sorted."""
    return tuple(sorted({offer.provider for offer in offers}))


def _refreshed_offers(folder: Path) -> tuple[Offer, ...]:
    """Offers of every refreshed list of the user; none where there are no lists."""
    if not folder.is_dir():
        return ()
    places = load_places()
    return tuple(offer for path in sorted(folder.glob("*.csv")) for offer in _read_stored(path, places))


def _read_stored(path: Path, places: Places) -> tuple[Offer, ...]:
    """Offers of a stored list.

    Raises:
        BadFile: the file was changed or damaged since it was stored.
    """
    try:
        return tuple(offer_of_row(row, row[14], places) for row in read_table(path, OFFER_COLUMNS))
    except (OSError, ValueError, LookupError) as error:
        raise BadFile(
            f"the refreshed price list {path} is damaged",
            details=(str(error),),
            hint="delete it to use the packaged prices, or run gpurig offers refresh",
        ) from error


def offer_of_row(row: Sequence[str], source: str, places: Places, *, suspect: str | None = None) -> Offer:
    """One checked row of OFFER_COLUMNS as an offer, joined; `source` stands for the row's source key."""
    provider, instance_type, region = row[0], row[1], row[2] or None
    link = places.links.get((provider, instance_type))
    stats = places.spot.get((instance_type, region)) if provider == "aws" and region else None
    country, continent = place_of(provider, region, places)
    gpu_count = float(row[5])
    return Offer(
        provider=provider,
        instance_type=instance_type,
        region=region,
        gpu_id=row[3] or None,
        gpu_family=row[4],
        gpu_count=gpu_count,
        gpu_memory_gb_each=float(row[6]),
        vgpu=row[7] == "1",
        vcpus=float(row[8]) if row[8] else None,
        memory_gb=float(row[9]) if row[9] else None,
        price_per_h=float(row[10]),
        spot_price_per_h=float(row[11]) if row[11] else None,
        currency=_CURRENCIES[row[12]],
        price_basis=row[13],
        source=source,
        snapshot_date=_day(row[15]),
        country=country,
        continent=continent,
        # One GPU has no other to be linked to, whatever the table says of the family.
        intra_node_link="none" if gpu_count <= 1 else (link.intra_node_link if link else None),
        nvlink_gb_per_s=link.nvlink_gb_per_s if link else None,
        network_gbps=link.network_gbps if link else None,
        rdma=link.rdma if link else None,
        spot_interruption=stats.interruption if stats else None,
        spot_saving_pct=stats.saving_pct if stats else None,
        spot_stats_date=stats.snapshot_date if stats else None,
        suspect=suspect,
    )


_CURRENCIES = {currency.value: currency for currency in Currency}


@cache
def _day(text: str) -> date | None:
    """The few days that price lists are of, parsed once each."""
    return optional_date(text)
