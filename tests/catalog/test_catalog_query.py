"""Filters: what passes and the reason why the rest does not."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.offers import load_offers
from gpurig.catalog.prices import default_rates
from gpurig.catalog.query import (
    SORT_KEYS,
    GpuFilter,
    OfferFilter,
    gpu_rejection,
    select_gpus,
    select_offers,
    sort_offers,
)
from gpurig.catalog.search import find_gpus, find_offers, relaxations
from gpurig.errors import UnknownName
from gpurig.model.offer import Currency

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.model.gpu import Gpu
    from gpurig.model.offer import Offer

RATES = default_rates()
SAMPLE = load_offers()[::17]

GPU_CASES = [
    ("T4", GpuFilter(min_memory_gb=16), None),
    ("T4", GpuFilter(min_memory_gb=24), "too little GPU memory"),
    ("A100-SXM4-80GB", GpuFilter(max_memory_gb=40), "too much GPU memory"),
    ("T4", GpuFilter(min_cuda_cores=3072), "CUDA cores"),
    ("M40", GpuFilter(min_cuda_cores=3072), None),
    ("GB200", GpuFilter(min_cuda_cores=3072), "CUDA cores not known"),
    ("T4", GpuFilter(min_compute_capability=(8, 0)), "compute capability"),
    ("A30", GpuFilter(min_compute_capability=(8, 0)), None),
    ("MI300X", GpuFilter(min_compute_capability=(8, 0)), "compute capability"),
    ("T4", GpuFilter(dtypes=("bf16",)), "bf16"),
    ("A100-PCIE-40GB", GpuFilter(dtypes=("bf16", "fp8")), "fp8"),
    ("L4", GpuFilter(dtypes=("bf16", "fp8")), None),
    ("T4", GpuFilter(min_pcie_gen=4), "PCIe generation"),
    ("GB200", GpuFilter(min_pcie_gen=4), "PCIe generation not known"),
    ("L40S", GpuFilter(nvlink=True), "NVLink"),
    ("A40", GpuFilter(nvlink=True), None),
    ("T4", GpuFilter(mig=True), "MIG"),
    ("A30", GpuFilter(mig=True), None),
    ("MI300X", GpuFilter(vendor="nvidia"), "vendor"),
    ("T4", GpuFilter(gpu_ids=frozenset({"L4"})), "another GPU"),
]


@pytest.mark.parametrize(
    ("gpu_id", "wanted", "reason"), GPU_CASES, ids=[f"{g}-{r}-{n}" for n, (g, _, r) in enumerate(GPU_CASES)]
)
def test_a_gpu_passes_or_the_reason_is_named(
    gpu_id: str, wanted: GpuFilter, reason: str | None, gpus: dict[str, Gpu]
) -> None:
    assert gpu_rejection(gpus[gpu_id], wanted) == reason


OFFER_CASES: list[tuple[str, dict[str, Any], OfferFilter, str | None]] = [
    ("provider", {}, OfferFilter(providers=frozenset({"aws"})), "provider"),
    ("region glob", {"region": "us-east-1"}, OfferFilter(regions=("US-*",)), None),
    ("other region", {"region": "eu-west-1"}, OfferFilter(regions=("us-*",)), "region"),
    ("no region", {"region": None}, OfferFilter(regions=("us-*",)), "region not stated"),
    ("country", {"country": "DE"}, OfferFilter(countries=frozenset({"DE", "FR"})), None),
    ("no country", {}, OfferFilter(countries=frozenset({"DE"})), "country not known"),
    ("continent", {"continent": "EU"}, OfferFilter(continents=frozenset({"AS"})), "continent"),
    ("too few GPUs", {}, OfferFilter(min_gpus=2), "fewer GPUs"),
    ("too many GPUs", {"gpu_count": 8.0}, OfferFilter(max_gpus=4), "more GPUs"),
    ("slice", {"gpu_count": 0.5, "vgpu": True, "gpu_memory_gb_each": 8.0}, OfferFilter(whole_gpus=True), "a slice of a GPU"),
    ("memory of a slice", {"gpu_count": 0.5, "vgpu": True, "gpu_memory_gb_each": 8.0}, OfferFilter(gpu=GpuFilter(min_memory_gb=16)), "too little GPU memory"),
    ("vCPUs", {"vcpus": 4.0}, OfferFilter(min_vcpus=8), "fewer vCPUs"),
    ("no vCPUs", {"vcpus": None}, OfferFilter(min_vcpus=8), "vCPUs not known"),
    ("host memory", {"memory_gb": 4.0}, OfferFilter(min_host_memory_gb=8), "less host memory"),
    ("no host memory", {"memory_gb": None}, OfferFilter(min_host_memory_gb=8), "host memory not known"),
    ("no spot", {}, OfferFilter(spot=True), "no spot price known"),
    ("spot by saving", {"spot_saving_pct": 70.0}, OfferFilter(spot=True, max_price_per_h=0.31), None),
    ("price", {}, OfferFilter(max_price_per_h=0.99), "price"),
    ("price in another currency", {"price_per_h": 7.0, "currency": Currency.CNY}, OfferFilter(max_price_per_h=1.0, currency=Currency.USD), None),
    ("not wired", {"gpu_count": 4.0, "intra_node_link": "PCIe only"}, OfferFilter(wired=True), "GPUs not linked by NVLink"),
    ("wiring unknown", {"gpu_count": 4.0}, OfferFilter(wired=True), "GPU link not known"),
    ("suspect", {"suspect": "price 0"}, OfferFilter(), "price not believed"),
    ("suspect let through", {"suspect": "price 0"}, OfferFilter(suspect=True), None),
    ("form not stated, all forms pass", {"gpu_id": None, "gpu_family": "A100-80GB"}, OfferFilter(gpu=GpuFilter(dtypes=("bf16",))), None),
    ("form not stated, one form fails", {"gpu_id": None, "gpu_family": "V100-16GB"}, OfferFilter(gpu=GpuFilter(nvlink=True)), "form of the GPU not stated"),
    ("form not stated, all fail", {"gpu_id": None, "gpu_family": "V100-16GB"}, OfferFilter(gpu=GpuFilter(dtypes=("bf16",))), "bf16"),
    ("no facts", {"gpu_id": "XPU", "gpu_family": "XPU"}, OfferFilter(gpu=GpuFilter(mig=True)), "no facts about the GPU"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "wanted", "reason"), [case[1:] for case in OFFER_CASES], ids=[case[0] for case in OFFER_CASES]
)
def test_an_offer_passes_or_the_reason_is_named(
    changes: dict[str, Any],
    wanted: OfferFilter,
    reason: str | None,
    make_offer: Callable[..., Offer],
    gpus: dict[str, Gpu],
) -> None:
    found = select_offers([make_offer(**changes)], wanted, gpus, RATES)
    assert dict(found.rejected) == ({} if reason is None else {reason: 1})


GPU_FILTERS = st.builds(
    GpuFilter,
    gpu_ids=st.none() | st.frozensets(st.sampled_from(sorted(load_gpus())), min_size=1),
    min_memory_gb=st.none() | st.floats(0, 200),
    max_memory_gb=st.none() | st.floats(0, 300),
    min_cuda_cores=st.none() | st.integers(0, 20000),
    min_compute_capability=st.none() | st.tuples(st.integers(3, 12), st.integers(0, 9)),
    dtypes=st.lists(st.sampled_from(["fp16", "bf16", "tf32", "fp8"]), unique=True, max_size=2).map(tuple),
    min_pcie_gen=st.none() | st.sampled_from([3.0, 4.0, 5.0]),
    nvlink=st.booleans(),
    mig=st.booleans(),
    vendor=st.none() | st.sampled_from(["nvidia", "amd"]),
)
OFFER_FILTERS = st.builds(
    OfferFilter,
    gpu=st.just(GpuFilter()) | GPU_FILTERS,
    providers=st.frozensets(st.sampled_from(["aws", "gcp", "azure", "vast"]), max_size=2),
    regions=st.lists(st.sampled_from(["us-*", "*east*", "cn-*", "*"]), max_size=2).map(tuple),
    continents=st.frozensets(st.sampled_from(["NA", "EU", "AS"]), max_size=2),
    min_gpus=st.none() | st.floats(0, 8),
    max_gpus=st.none() | st.floats(0, 16),
    whole_gpus=st.booleans(),
    min_vcpus=st.none() | st.floats(0, 100),
    spot=st.booleans(),
    max_price_per_h=st.none() | st.floats(0, 50),
    currency=st.just(Currency.USD),
    wired=st.booleans(),
    suspect=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(OFFER_FILTERS, OFFER_FILTERS, st.data())
def test_a_further_condition_never_adds_an_offer(first: OfferFilter, second: OfferFilter, data: st.DataObject) -> None:
    gpus, plain = load_gpus(), OfferFilter()
    name = data.draw(
        st.sampled_from([f.name for f in fields(OfferFilter) if f.name not in ("currency", "suspect", "gpu", "spot")])
    )
    without = replace(first, **{name: getattr(plain, name)})
    with_condition = replace(without, **{name: getattr(second, name)})
    more = select_offers(SAMPLE, without, gpus, RATES)
    fewer = select_offers(SAMPLE, with_condition, gpus, RATES)
    assert set(fewer.passed) <= set(more.passed)


@settings(max_examples=60, deadline=None)
@given(OFFER_FILTERS, st.floats(0, 60), st.floats(0, 60))
def test_a_higher_price_limit_never_removes_an_offer(wanted: OfferFilter, one: float, other: float) -> None:
    low, high = sorted((one, other))
    gpus = load_gpus()
    cheap = select_offers(SAMPLE, replace(wanted, max_price_per_h=low), gpus, RATES)
    dear = select_offers(SAMPLE, replace(wanted, max_price_per_h=high), gpus, RATES)
    assert set(cheap.passed) <= set(dear.passed)


@settings(max_examples=60, deadline=None)
@given(OFFER_FILTERS)
def test_every_offer_passes_or_is_counted_in_order(wanted: OfferFilter) -> None:
    found = select_offers(SAMPLE, wanted, load_gpus(), RATES)
    assert len(found.passed) + sum(found.rejected.values()) == len(SAMPLE)
    positions = [SAMPLE.index(offer) for offer in found.passed]
    assert positions == sorted(positions)


@settings(max_examples=60, deadline=None)
@given(GPU_FILTERS, GPU_FILTERS, st.data())
def test_a_further_condition_never_adds_a_gpu(first: GpuFilter, second: GpuFilter, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([f.name for f in fields(GpuFilter)]))
    without = replace(first, **{name: getattr(GpuFilter(), name)})
    with_condition = replace(without, **{name: getattr(second, name)})
    parts = load_gpus().values()
    assert {g.gpu_id for g in select_gpus(parts, with_condition).passed} <= {
        g.gpu_id for g in select_gpus(parts, without).passed
    }


@pytest.mark.parametrize("key", SORT_KEYS)
@pytest.mark.parametrize("spot", [False, True])
def test_sorting_only_changes_the_order_and_is_stable_against_the_given_one(key: str, spot: bool) -> None:
    one = sort_offers(SAMPLE, key, RATES, spot=spot)
    assert set(one) == set(SAMPLE)
    assert sort_offers(tuple(reversed(SAMPLE)), key, RATES, spot=spot) == one


def test_prices_are_ordered_across_currencies() -> None:
    offers = sort_offers(load_offers(), "price", RATES)
    dollars = [RATES.convert(offer.price_per_h, offer.currency, Currency.USD) for offer in offers]
    assert dollars == sorted(dollars)
    assert {offer.currency for offer in offers[:2000]} == {Currency.USD, Currency.CNY}


def test_find_offers_by_any_spelling_and_never_ranks_a_suspect_price() -> None:
    search = find_offers(["tesla v100 sxm2 16gb"], OfferFilter(providers=frozenset({"alibaba"})))
    assert {offer.gpu_id for offer in search.offers} == {"V100-SXM2-16GB"}
    assert all(offer.suspect is None for offer in search.offers)
    assert len(search.set_aside) == 6
    assert all(offer.suspect for offer in search.set_aside)


def test_nothing_found_says_what_would_match() -> None:
    search = find_offers(["T4"], OfferFilter(max_price_per_h=0.01, continents=frozenset({"EU"})))
    assert search.offers == ()
    assert [(r.condition, r.num_matching > 0) for r in search.relaxations] == [("max_price_per_h", True)]


def test_each_relaxation_gives_the_number_it_promises() -> None:
    gpus, offers = load_gpus(), load_offers()
    wanted = OfferFilter(gpu=GpuFilter(dtypes=("fp8",), max_memory_gb=10), providers=frozenset({"vast"}))
    assert not select_offers(offers, wanted, gpus, RATES).passed
    for relaxation in relaxations(offers, wanted, gpus, RATES):
        in_gpu = relaxation.condition in {f.name for f in fields(GpuFilter)}
        plain = {relaxation.condition: getattr(GpuFilter() if in_gpu else OfferFilter(), relaxation.condition)}
        relaxed = replace(wanted, gpu=replace(wanted.gpu, **plain)) if in_gpu else replace(wanted, **plain)
        assert len(select_offers(offers, relaxed, gpus, RATES).passed) == relaxation.num_matching


@pytest.mark.parametrize(
    ("wanted", "kind", "suggestion"),
    [
        (OfferFilter(providers=frozenset({"amazon"})), "provider", None),
        (OfferFilter(providers=frozenset({"azur"})), "provider", "azure"),
        (OfferFilter(countries=frozenset({"XX"})), "country", None),
        (OfferFilter(continents=frozenset({"EUR"})), "continent", "EU"),
    ],
    ids=["unknown", "typo", "country", "continent"],
)
def test_an_unknown_name_in_a_filter_is_an_error_not_an_empty_answer(
    wanted: OfferFilter, kind: str, suggestion: str | None
) -> None:
    with pytest.raises(UnknownName) as caught:
        find_offers((), wanted)
    assert caught.value.kind == kind
    if suggestion:
        assert suggestion in caught.value.suggestions


def test_find_gpus_leaves_out_what_nobody_rents_unless_named_or_asked() -> None:
    assert "TITANXp" not in {gpu.gpu_id for gpu in find_gpus().passed}
    assert "TITANXp" in {gpu.gpu_id for gpu in find_gpus(known=True).passed}
    assert [gpu.gpu_id for gpu in find_gpus(["titan xp"]).passed] == ["TITANXp"]


def test_the_day_of_a_price_sorts_newest_first_and_undated_last() -> None:
    days = [offer.snapshot_date or date.min for offer in sort_offers(load_offers(), "date", RATES)]
    assert days == sorted(days, reverse=True)
