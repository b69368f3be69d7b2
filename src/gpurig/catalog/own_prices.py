"""The user's price file: TOML, checked as a whole, every fault reported at once.

[rates]                 # units for one US dollar
CNY = 7.1

[[discount]]            # globs; percent off
provider = "aws"
instance_type = "p5*"
percent = 30

[[override]]            # what is paid in truth
provider = "lambda"
instance_type = "gpu_8x_a100"
price_per_h = 9.6
currency = "USD"
date = 2026-11-01

[[offer]]               # a machine of one's own, or a private quote
provider = "our-lab"
instance_type = "dgx-a100"
gpu = "A100-SXM4-80GB"
gpu_count = 8
price_per_h = 6.0
currency = "USD"
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from gpurig.catalog.names import part_of_label
from gpurig.catalog.prices import GIVEN, Rate
from gpurig.errors import BadFile, UnknownName
from gpurig.model.offer import Currency, Offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from gpurig.model.gpu import Gpu

T = TypeVar("T")

_KEYS = {
    "discount": ("provider", "instance_type", "region", "percent", "applies_to"),
    "override": ("provider", "instance_type", "region", "price_per_h", "spot_price_per_h", "currency", "date"),
    "offer": (
        "provider", "instance_type", "region", "gpu", "gpu_count", "gpu_memory_gb", "vcpus", "memory_gb",
        "price_per_h", "spot_price_per_h", "currency", "date", "network_gbps", "nvlink_gb_per_s",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Discount:
    """A percentage off a provider's prices. Globs match without regard to case."""

    provider: str
    instance_type: str = "*"
    region: str = "*"
    percent: float
    on_demand: bool = True
    spot: bool = True

    def matches(self, offer: Offer) -> bool:
        """Whether the discount applies to an offer."""
        return (
            offer.provider == self.provider
            and fnmatchcase(offer.instance_type.lower(), self.instance_type.lower())
            and fnmatchcase((offer.region or "").lower(), self.region.lower())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """The price that the user really pays for one instance type, in one region or all."""

    provider: str
    instance_type: str
    region: str | None  # None: in every region
    price_per_h: float
    spot_price_per_h: float | None
    currency: Currency
    as_of: date | None

    def matches(self, offer: Offer) -> bool:
        """Whether the price is that of an offer."""
        return (offer.provider, offer.instance_type) == (self.provider, self.instance_type) and (
            self.region is None or offer.region == self.region
        )


@dataclass(frozen=True, slots=True)
class OwnPrices:
    """A user's price file: what is paid in truth, beside what the public lists say."""

    path: str
    rates: tuple[Rate, ...] = ()
    discounts: tuple[Discount, ...] = ()
    overrides: tuple[Override, ...] = ()
    offers: tuple[Offer, ...] = ()


def read_own_prices(path: Path, offers: Sequence[Offer], gpus: Mapping[str, Gpu]) -> OwnPrices:
    """Read and check a price file against the catalogue.

    Raises:
        BadFile: the file cannot be read, is no TOML, or has faults; lists all of them: unknown keys (with suggestions),
            wrong types, unknown GPUs and providers, and entries that match no offer.
    """
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadFile(f"cannot read the price file {path}", details=(str(error),)) from error
    reader = _Reader(table, str(path), offers, gpus)
    own = reader.read()
    if reader.faults:
        raise BadFile(
            f"{path}: {len(reader.faults)} fault{'s' if len(reader.faults) > 1 else ''}",
            details=tuple(reader.faults),
            hint="see docs/guides/catalogue.md for the keys of a price file",
        )
    return own


def apply_own_prices(offers: Sequence[Offer], own: OwnPrices) -> tuple[Offer, ...]:
    """Offers with overrides first, then discounts, then the user's own offers added.

    An override replaces the listed price and clears `suspect`: the user vouches for it. Discounts of several entries
    multiply. Each changed offer says so in `discount`.
    """
    changed = tuple(_discounted(_overridden(offer, own), own) for offer in offers)
    return (*changed, *own.offers)


def _overridden(offer: Offer, own: OwnPrices) -> Offer:
    for override in own.overrides:
        if override.matches(offer):
            same_currency = offer.currency == override.currency
            listed_spot = offer.spot_price_per_h if same_currency else None
            return replace(
                offer,
                price_per_h=override.price_per_h,
                spot_price_per_h=listed_spot if override.spot_price_per_h is None else override.spot_price_per_h,
                currency=override.currency,
                snapshot_date=override.as_of,
                source=f"own prices: {own.path}",
                discount="own price",
                own=True,
                suspect=None,
            )
    return offer


def _discounted(offer: Offer, own: OwnPrices) -> Offer:
    for discount in own.discounts:
        if discount.matches(offer):
            factor = 1 - discount.percent / 100
            spot = offer.spot_price_per_h
            notes = (offer.discount, f"-{discount.percent:g} %")
            offer = replace(
                offer,
                price_per_h=offer.price_per_h * (factor if discount.on_demand else 1),
                spot_price_per_h=None if spot is None else spot * (factor if discount.spot else 1),
                discount=", ".join(note for note in notes if note),
            )
    return offer


class _Entry:
    """One table of the file; collects its faults under its place (``discount[2]``)."""

    def __init__(self, place: str, table: Mapping[str, object], keys: Iterable[str], faults: list[str]) -> None:
        self._place = place
        self._table = table
        self._faults = faults
        for key in table:
            if key not in keys:
                self.fault(f"unknown key {key!r}{_suggestion(key, keys)}")

    def fault(self, text: str) -> None:
        """Record one fault of this entry."""
        self._faults.append(f"{self._place}: {text}")

    def text(self, key: str, default: str | None = None, *, required: bool = False) -> str | None:
        """A non-empty string."""
        value = self._table.get(key)
        if value is None:
            if required:
                self.fault(f"{key} is missing")
            return default
        if not isinstance(value, str) or not value.strip():
            self.fault(f"{key} must be a text, not {value!r}")
            return default
        return value

    def number(self, key: str, low: float, high: float, *, required: bool = False) -> float | None:
        """A number in [low, high]."""
        value = self._table.get(key)
        if value is None:
            if required:
                self.fault(f"{key} is missing")
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault(f"{key} must be a number, not {value!r}")
            return None
        if not low <= value <= high:
            self.fault(f"{key} = {value} is outside {low:g} … {high:g}")
            return None
        return float(value)

    def day(self, key: str) -> date | None:
        """A date, written as TOML date or text."""
        value = self._table.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            try:
                return date.fromisoformat(value)
            except ValueError:
                value = None
        if type(value) is date:
            return value
        self.fault(f"{key} must be a date like 2026-11-01")
        return None

    def currency(self) -> Currency:
        """A currency; US dollars where none is given."""
        name = self.text("currency", "USD") or "USD"
        try:
            return Currency(name.upper())
        except ValueError:
            self.fault(f"currency {name!r} is not one of {', '.join(c.value for c in Currency)}")
            return Currency.USD


class _Reader:
    """Reads the sections of one file and collects all faults."""

    def __init__(
        self, table: Mapping[str, object], path: str, offers: Sequence[Offer], gpus: Mapping[str, Gpu]
    ) -> None:
        self.faults: list[str] = []
        self._table = table
        self._path = path
        self._offers = offers
        self._gpus = gpus
        self._providers = sorted({offer.provider for offer in offers})

    def read(self) -> OwnPrices:
        """All sections; what is at fault is left out and recorded."""
        known = ("rates", *_KEYS)
        for key in self._table:
            if key not in known:
                self.faults.append(f"unknown section {key!r}{_suggestion(key, known)}")
        return OwnPrices(
            path=self._path,
            rates=tuple(self._rates()),
            discounts=_present(self._discount(entry) for entry in self._entries("discount")),
            overrides=_present(self._override(entry) for entry in self._entries("override")),
            offers=_present(self._offer(entry) for entry in self._entries("offer")),
        )

    def _entries(self, section: str) -> Iterable[_Entry]:
        tables = self._table.get(section, [])
        if not isinstance(tables, list):
            self.faults.append(f"{section} must be written as [[{section}]]")
            return
        for index, table in enumerate(tables, 1):
            if isinstance(table, dict):
                yield _Entry(f"{section}[{index}]", table, _KEYS[section], self.faults)
            else:
                self.faults.append(f"{section}[{index}] must be a table")

    def _rates(self) -> Iterable[Rate]:
        table = self._table.get("rates", {})
        if not isinstance(table, dict):
            self.faults.append("rates must be written as [rates]")
            return
        names = [currency.value for currency in Currency if currency is not Currency.USD]
        entry = _Entry("rates", table, names, self.faults)
        for name in names:
            units = entry.number(name, 1e-6, 1e6)
            if units is not None:
                yield Rate(Currency(name), units, None, GIVEN)

    def _known_provider(self, entry: _Entry) -> str:
        provider = entry.text("provider", required=True)
        if provider and provider not in self._providers:
            entry.fault(f"unknown provider {provider!r}{_suggestion(provider, self._providers)}")
            return ""
        return provider or ""

    def _discount(self, entry: _Entry) -> Discount | None:
        provider = self._known_provider(entry)
        instance_type, region = entry.text("instance_type", "*") or "*", entry.text("region", "*") or "*"
        percent = entry.number("percent", 0, 100, required=True)
        applies_to = entry.text("applies_to", "both") or "both"
        if applies_to not in ("both", "on-demand", "spot"):
            entry.fault(f"applies_to = {applies_to!r} is not one of both, on-demand, spot")
        if not provider or percent is None:
            return None
        discount = Discount(
            provider=provider,
            instance_type=instance_type,
            region=region,
            percent=percent,
            on_demand=applies_to != "spot",
            spot=applies_to != "on-demand",
        )
        if not any(discount.matches(offer) for offer in self._offers):
            entry.fault(f"matches no offer ({provider} {instance_type} in {region})")
        return discount

    def _override(self, entry: _Entry) -> Override | None:
        provider = self._known_provider(entry)
        instance_type, region = entry.text("instance_type", required=True), entry.text("region")
        price = entry.number("price_per_h", 0, 1e6, required=True)
        spot = entry.number("spot_price_per_h", 0, 1e6)
        currency, day = entry.currency(), entry.day("date")
        if not provider or not instance_type or price is None:
            return None
        override = Override(
            provider=provider,
            instance_type=instance_type,
            region=region,
            price_per_h=price,
            spot_price_per_h=spot,
            currency=currency,
            as_of=day,
        )
        if not any(override.matches(offer) for offer in self._offers):
            types = {offer.instance_type for offer in self._offers if offer.provider == provider}
            where = f" in {region}" if region else ""
            entry.fault(f"matches no offer ({provider} {instance_type}{where}){_suggestion(instance_type, types)}")
        return override

    def _offer(self, entry: _Entry) -> Offer | None:
        provider, instance_type = entry.text("provider", required=True), entry.text("instance_type", required=True)
        label = entry.text("gpu", required=True)
        count = entry.number("gpu_count", 1 / 64, 1024, required=True)
        memory_gb = entry.number("gpu_memory_gb", 0.5, 4096)
        price = entry.number("price_per_h", 0, 1e6, required=True)
        vcpus, host_gb = entry.number("vcpus", 0.25, 1e5), entry.number("memory_gb", 0.25, 1e6)
        spot = entry.number("spot_price_per_h", 0, 1e6)
        network_gbps = entry.number("network_gbps", 0, 1e5)
        nvlink_gb_per_s = entry.number("nvlink_gb_per_s", 0, 1e5)
        region, currency, day = entry.text("region"), entry.currency(), entry.day("date")
        part = self._part(entry, label, memory_gb)
        if not provider or not instance_type or part is None or count is None or price is None:
            return None
        gpu_id, family = part
        members = [gpu for gpu in self._gpus.values() if gpu.family == family]
        vgpu = count < 1
        label_gb = self._gpus[gpu_id].memory_gb if gpu_id else members[0].memory_gb
        return Offer(
            provider=provider,
            instance_type=instance_type,
            region=region,
            gpu_id=gpu_id,
            gpu_family=family,
            gpu_count=count,
            gpu_memory_gb_each=memory_gb if memory_gb is not None and vgpu else label_gb * min(count, 1.0),
            vgpu=vgpu,
            price_per_h=price,
            currency=currency,
            price_basis="own price",
            source=f"own prices: {self._path}",
            snapshot_date=day,
            own=True,
            vcpus=vcpus,
            memory_gb=host_gb,
            spot_price_per_h=spot,
            network_gbps=network_gbps,
            nvlink_gb_per_s=nvlink_gb_per_s,
            intra_node_link="none" if count <= 1 else ("NVLink" if nvlink_gb_per_s else None),
        )

    def _part(self, entry: _Entry, label: str | None, memory_gb: float | None) -> tuple[str | None, str] | None:
        if label is None:
            return None
        try:
            return part_of_label(label, memory_gb, self._gpus)
        except UnknownName as error:
            if error.suggestions:
                entry.fault(f"gpu {label!r} is not exact enough or unknown: {', '.join(error.suggestions)}?")
            else:
                entry.fault(f"unknown gpu {label!r}")
            return None


def _present(found: Iterable[T | None]) -> tuple[T, ...]:
    """Those that could be read; the faults of the others are recorded."""
    return tuple(item for item in found if item is not None)


def _suggestion(name: str, known: Iterable[str]) -> str:
    """``, did you mean 'percent'?`` or nothing."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""
