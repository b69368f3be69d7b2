"""What can be rented: offers, their prices and links. None means not known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 (decoders read the annotations at run time)
from enum import StrEnum


class Currency(StrEnum):
    """Currencies that prices are kept in. A price is never converted without a rate that is shown."""

    USD = "USD"
    CNY = "CNY"
    EUR = "EUR"


@dataclass(frozen=True, slots=True)
class Price:
    """Money per hour for the whole instance, in the currency in which it was published."""

    amount_per_h: float
    currency: Currency
    as_of: date | None  # day on which the list was read; None: the source gives no date
    estimated: bool = False  # derived (spot from a published saving), not published as a price


class SpotBand(StrEnum):
    """Share of spot instances of a type that the provider took back within a month, as published."""

    UNDER_5 = "<5%"
    FROM_5_TO_10 = "5-10%"
    FROM_10_TO_15 = "10-15%"
    FROM_15_TO_20 = "15-20%"
    OVER_20 = ">20%"

    @property
    def per_month(self) -> tuple[float, float]:
        """Lower and upper bound as a fraction. The last band is open: its upper bound is 1."""
        return {
            "<5%": (0.0, 0.05),
            "5-10%": (0.05, 0.10),
            "10-15%": (0.10, 0.15),
            "15-20%": (0.15, 0.20),
            ">20%": (0.20, 1.0),
        }[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """How the GPUs of an instance type reach each other and the network."""

    provider: str
    instance_type: str  # may hold a * for a family
    gpu_id: str | None
    intra_node_link: str | None  # "none", "PCIe only", "NVSwitch", …
    nvlink_gb_per_s: float | None  # both directions, per GPU; None: no NVLink
    network_gbps: float | None
    rdma: str | None
    source: str
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type of one provider in one region, with its price.

    `gpu_id` is the exact part, or None where the provider does not say which form (SXM or PCIe) it rents; then
    `gpu_family` names the possible parts. `gpu_count` is fractional where `vgpu` is True; then `gpu_memory_gb_each`
    is the memory of the slice. A MIG instance is an offer with `mig_profile` set.
    """

    provider: str
    instance_type: str
    region: str | None  # None: the price is the provider's, for no stated region
    gpu_id: str | None
    gpu_family: str  # "A100-80GB"
    gpu_count: float
    gpu_memory_gb_each: float
    vgpu: bool
    vcpus: float | None
    memory_gb: float | None  # host memory
    price_per_h: float  # on demand, whole instance
    spot_price_per_h: float | None  # published spot price
    currency: Currency
    price_basis: str  # what the price covers
    source: str
    snapshot_date: date | None  # day of the price; None: the source gives none
    country: str | None = None  # ISO 3166 alpha-2
    continent: str | None = None  # AF AS EU NA OC SA
    network_gbps: float | None = None
    intra_node_link: str | None = None
    nvlink_gb_per_s: float | None = None  # both directions, per GPU
    rdma: str | None = None
    spot_interruption: SpotBand | None = None
    spot_saving_pct: float | None = None  # published saving of spot against on demand
    spot_stats_date: date | None = None  # day of the two figures before
    mig_profile: str | None = None
    own: bool = False  # from the user's own price file
    discount: str | None = None  # what the user's price file changed, for display
    suspect: str | None = None  # why the price is not believed; None: nothing found

    @property
    def on_demand(self) -> Price:
        """The on-demand price."""
        return Price(self.price_per_h, self.currency, self.snapshot_date)

    @property
    def spot(self) -> Price | None:
        """The spot price: published, else on-demand less the published saving (estimated); None: not known."""
        if self.spot_price_per_h is not None:
            return Price(self.spot_price_per_h, self.currency, self.snapshot_date)
        if self.spot_saving_pct is not None:
            amount = self.price_per_h * (1 - self.spot_saving_pct / 100)
            return Price(amount, self.currency, self.snapshot_date, estimated=True)
        return None

    @property
    def price_per_gpu_h(self) -> float:
        """On-demand price for one whole GPU, host included; a slice is scaled up to its whole GPU."""
        return self.price_per_h / self.gpu_count

    @property
    def key(self) -> tuple[str, str, str | None]:
        """What makes an offer one offer: provider, instance type, region."""
        return (self.provider, self.instance_type, self.region)

    @property
    def gpu_label(self) -> str:
        """GPU and count in one cell: ``A100-SXM4-80GB:8``, ``A10:0.5``; a family where the form is not stated."""
        count = f"{self.gpu_count:g}"
        name = self.gpu_id or self.gpu_family
        return f"{name}:{count}" if self.mig_profile is None else f"{name}/{self.mig_profile}:{count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSpec:
    """An instance type as published, under the provider's own name for its GPU; often without a price."""

    provider: str
    instance_type: str
    gpu_as_published: str  # may be a cover name: "GPU H", "G49"
    gpu_count: float | None
    gpu_memory_gb_each: float | None
    vcpus: float | None
    memory_gb: float | None
    network_gbps: float | None
    price_per_h: float | None
    currency: Currency | None
    price_region: str | None
    source: str
    snapshot_date: date | None
