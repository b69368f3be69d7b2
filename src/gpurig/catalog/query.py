"""Filters over GPUs and offers. Pure: what passes, and for everything else the one reason why not.

A fact that is not known never satisfies a filter: the reason then says so. An offer that does not state its form passes
a filter on GPUs only if every part that it may be passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpurig.catalog.prices import Rates
    from gpurig.model.gpu import Gpu
    from gpurig.model.offer import Currency, Offer


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFilter:
    """What a GPU must be. None or empty: no condition."""

    gpu_ids: frozenset[str] | None = None  # exact parts, from `names.resolve`
    min_memory_gb: float | None = None  # as labelled, per GPU
    max_memory_gb: float | None = None
    min_cuda_cores: int | None = None
    min_compute_capability: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()  # all of them in hardware
    min_pcie_gen: float | None = None
    nvlink: bool = False
    mig: bool = False
    vendor: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every GPU passes."""
        return self == GpuFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferFilter:
    """What an offer must be. None or empty: no condition."""

    gpu: GpuFilter = field(default_factory=GpuFilter)
    providers: frozenset[str] = frozenset()
    regions: tuple[str, ...] = ()  # globs; any of them, without regard to case
    countries: frozenset[str] = frozenset()  # ISO 3166 alpha-2, upper case
    continents: frozenset[str] = frozenset()  # AF AS EU NA OC SA
    min_gpus: float | None = None
    max_gpus: float | None = None
    whole_gpus: bool = False  # no slices of a GPU
    min_vcpus: float | None = None
    min_host_memory_gb: float | None = None
    spot: bool = False  # a spot price is known
    max_price_per_h: float | None = None  # whole instance; the spot price where `spot` is set
    currency: Currency | None = None  # of `max_price_per_h`
    wired: bool = False  # the GPUs of the instance are linked by NVLink or its like
    suspect: bool = False  # let suspect offers pass


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """What passed, and for the rest how many failed for which reason first."""

    passed: tuple[T, ...]
    rejected: Mapping[str, int]


def select_gpus(gpus: Iterable[Gpu], wanted: GpuFilter) -> Selection[Gpu]:
    """The GPUs that pass, in the given order."""
    return _select(gpus, lambda gpu: gpu_rejection(gpu, wanted))


def select_offers(
    offers: Iterable[Offer], wanted: OfferFilter, gpus: Mapping[str, Gpu], rates: Rates
) -> Selection[Offer]:
    """The offers that pass, in the given order.

    `rates` is only used for a price limit in another currency than the offer's.
    """
    judged = _JudgedParts(gpus, wanted.gpu)
    return _select(offers, lambda offer: _offer_rejection(offer, wanted, judged, rates))


def gpu_rejection(gpu: Gpu, wanted: GpuFilter) -> str | None:
    """The first reason why a GPU does not pass, in a few words; None: it passes."""
    if wanted.gpu_ids is not None and gpu.gpu_id not in wanted.gpu_ids:
        return "another GPU"
    if wanted.vendor is not None and gpu.vendor.lower() != wanted.vendor.lower():
        return "vendor"
    return _memory_rejection(gpu.memory_gb, wanted) or _fact_rejection(gpu, wanted)


def _fact_rejection(gpu: Gpu, wanted: GpuFilter) -> str | None:
    """Conditions on facts that may be unknown."""
    capability = gpu.compute_capability
    conditions: tuple[tuple[str, object, Callable[[], bool]], ...] = (
        (
            "CUDA cores",
            wanted.min_cuda_cores,
            lambda: _at_least(gpu.cuda_cores, wanted.min_cuda_cores),
        ),
        (
            "compute capability",
            wanted.min_compute_capability,
            lambda: capability is not None and capability >= (wanted.min_compute_capability or (0, 0)),
        ),
        ("PCIe generation", wanted.min_pcie_gen, lambda: _at_least(gpu.pcie_gen, wanted.min_pcie_gen)),
        ("NVLink", wanted.nvlink or None, lambda: gpu.has_nvlink),
        ("MIG", wanted.mig or None, lambda: gpu.mig_max_instances > 0),
        *((dtype, dtype, lambda dtype=dtype: gpu.supports(dtype) is True) for dtype in wanted.dtypes),
    )
    unknown = {
        "CUDA cores": gpu.cuda_cores is None,
        "PCIe generation": gpu.pcie_gen is None,
        "compute capability": capability is None and gpu.vendor == "NVIDIA",
    }
    for reason, condition, passes in conditions:
        if condition is not None and not passes():
            return f"{reason} not known" if unknown.get(reason) else reason
    return None


def _memory_rejection(memory_gb: float, wanted: GpuFilter) -> str | None:
    if wanted.min_memory_gb is not None and memory_gb < wanted.min_memory_gb:
        return "too little GPU memory"
    if wanted.max_memory_gb is not None and memory_gb > wanted.max_memory_gb:
        return "too much GPU memory"
    return None


class _JudgedParts:
    """Each part judged once: thousands of offers share a few dozen parts."""

    def __init__(self, gpus: Mapping[str, Gpu], wanted: GpuFilter) -> None:
        self._reason = {gpu_id: gpu_rejection(gpu, wanted) for gpu_id, gpu in gpus.items()}
        self._wanted = wanted
        self._anything = wanted.is_empty
        self._families: dict[str, list[str]] = {}
        for gpu in gpus.values():
            if gpu.rentable:
                self._families.setdefault(gpu.family, []).append(gpu.gpu_id)
        # A slice has its own memory, so its part is judged without the memory condition.
        other = _without_memory(wanted)
        self._slice_reason = {gpu_id: gpu_rejection(gpu, other) for gpu_id, gpu in gpus.items()}

    def rejection(self, offer: Offer) -> str | None:
        """The first reason why the offer's GPU does not pass."""
        if self._anything:
            return None
        if offer.vgpu and (why := _memory_rejection(offer.gpu_memory_gb_each, self._wanted)):
            return why
        reasons = self._slice_reason if offer.vgpu else self._reason
        if offer.gpu_id is not None:
            return reasons.get(offer.gpu_id, "no facts about the GPU")
        parts = self._families.get(offer.gpu_family, [])
        if not parts:
            return "no facts about the GPU"
        failed = [why for part in parts if (why := reasons[part]) is not None]
        if not failed:
            return None
        return failed[0] if len(failed) == len(parts) else "form of the GPU not stated"


def _without_memory(wanted: GpuFilter) -> GpuFilter:
    """The same filter without conditions on memory."""
    return replace(wanted, min_memory_gb=None, max_memory_gb=None)


def _offer_rejection(offer: Offer, wanted: OfferFilter, judged: _JudgedParts, rates: Rates) -> str | None:
    return (
        judged.rejection(offer)
        or _place_rejection(offer, wanted)
        or _size_rejection(offer, wanted)
        or _price_rejection(offer, wanted, rates)
        or ("price not believed" if offer.suspect and not wanted.suspect else None)
    )


def _place_rejection(offer: Offer, wanted: OfferFilter) -> str | None:
    if wanted.providers and offer.provider not in wanted.providers:
        return "provider"
    if wanted.regions and not any(fnmatchcase((offer.region or "").lower(), glob.lower()) for glob in wanted.regions):
        return "region" if offer.region else "region not stated"
    if wanted.countries and offer.country not in wanted.countries:
        return "country" if offer.country else "country not known"
    if wanted.continents and offer.continent not in wanted.continents:
        return "continent" if offer.continent else "continent not known"
    return None


def _size_rejection(offer: Offer, wanted: OfferFilter) -> str | None:
    if wanted.min_gpus is not None and offer.gpu_count < wanted.min_gpus:
        return "fewer GPUs"
    if wanted.max_gpus is not None and offer.gpu_count > wanted.max_gpus:
        return "more GPUs"
    if wanted.whole_gpus and (offer.vgpu or offer.mig_profile is not None):
        return "a slice of a GPU"
    if wanted.min_vcpus is not None and not _at_least(offer.vcpus, wanted.min_vcpus):
        return "fewer vCPUs" if offer.vcpus is not None else "vCPUs not known"
    if wanted.min_host_memory_gb is not None and not _at_least(offer.memory_gb, wanted.min_host_memory_gb):
        return "less host memory" if offer.memory_gb is not None else "host memory not known"
    if wanted.wired and offer.nvlink_gb_per_s is None:
        return "GPUs not linked by NVLink" if offer.intra_node_link else "GPU link not known"
    return None


def _price_rejection(offer: Offer, wanted: OfferFilter, rates: Rates) -> str | None:
    price = offer.spot if wanted.spot else offer.on_demand
    if price is None:
        return "no spot price known"
    if wanted.max_price_per_h is None:
        return None
    amount = rates.convert(price.amount_per_h, price.currency, wanted.currency or price.currency)
    return "price" if amount > wanted.max_price_per_h else None


def _at_least(value: float | None, minimum: float | None) -> bool:
    """Whether a known value reaches the minimum."""
    return value is not None and (minimum is None or value >= minimum)


def _select(items: Iterable[T], rejection: Callable[[T], str | None]) -> Selection[T]:
    passed: list[T] = []
    rejected: dict[str, int] = {}
    for item in items:
        why = rejection(item)
        if why is None:
            passed.append(item)
        else:
            rejected[why] = rejected.get(why, 0) + 1
    return Selection(tuple(passed), dict(sorted(rejected.items(), key=lambda entry: -entry[1])))


def sort_offers(offers: Sequence[Offer], by: str, rates: Rates, *, spot: bool = False) -> tuple[Offer, ...]:
    """Offers in order: by ``price-per-gpu``, ``price``, ``memory``, ``vcpus``, ``date``, ``provider`` or ``gpu``.

    Prices ascend (the spot price where `spot` is set), compared in US dollars at `rates`; memory, vCPUs and date descend.
    Ties keep a fixed order, so that the same catalogue always prints the same.
    """
    from gpurig.model.offer import Currency

    def dollars(offer: Offer) -> float:
        price = (offer.spot if spot else None) or offer.on_demand
        return rates.convert(price.amount_per_h, price.currency, Currency.USD)

    keys: dict[str, Callable[[Offer], float | str]] = {
        "price-per-gpu": lambda offer: dollars(offer) / offer.gpu_count,
        "price": dollars,
        "memory": lambda offer: -offer.gpu_memory_gb_each,
        "vcpus": lambda offer: -(offer.vcpus or 0),
        "date": lambda offer: -(offer.snapshot_date.toordinal() if offer.snapshot_date else 0),
        "provider": lambda offer: offer.provider,
        "gpu": lambda offer: offer.gpu_label,
    }
    key = keys[by]
    return tuple(
        sorted(
            offers,
            key=lambda o: (key(o), dollars(o) / o.gpu_count, o.gpu_count, o.provider, o.instance_type, o.region or ""),
        )
    )


SORT_KEYS = ("price-per-gpu", "price", "memory", "vcpus", "date", "provider", "gpu")
