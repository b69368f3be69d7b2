"""Implausible prices are set aside with the reason; nothing is dropped."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurig.catalog.offers import packaged_offers
from gpurig.catalog.quality import believed, median, screen, unjudged
from gpurig.model.offer import Currency, Offer

if TYPE_CHECKING:
    from collections.abc import Callable


def _reasons(offers: tuple[Offer, ...]) -> list[str | None]:
    return [offer.suspect for offer in screen(offers)]


def test_zero_is_not_a_price(make_offer: Callable[..., Offer]) -> None:
    assert _reasons((make_offer(price_per_h=0.0),)) == ["price 0 is not a price"]


def test_spot_above_on_demand_is_set_aside(make_offer: Callable[..., Offer]) -> None:
    assert _reasons((make_offer(price_per_h=1.0, spot_price_per_h=1.5),)) == ["spot 1.5 is above on demand 1"]


def test_spot_equal_to_on_demand_is_believed(make_offer: Callable[..., Offer]) -> None:
    assert _reasons((make_offer(price_per_h=1.0, spot_price_per_h=1.0),)) == [None]


@pytest.mark.parametrize(("price", "suspect"), [(0.69, True), (0.70, False), (1.0, False), (3.0, False)])
def test_a_price_per_gpu_below_70_percent_of_the_types_median_is_set_aside(
    price: float, suspect: bool, make_offer: Callable[..., Offer]
) -> None:
    offers = (*tuple(make_offer(region=f"r-{n}") for n in range(4)), make_offer(region="odd", price_per_h=price))
    reason = _reasons(offers)[-1]
    assert (reason is not None) == suspect
    if reason:
        assert "69% of cloud's median 1.00 for t4.small" in reason


def test_two_regions_are_no_median(make_offer: Callable[..., Offer]) -> None:
    assert _reasons((make_offer(region="a"), make_offer(region="b", price_per_h=0.1))) == [None, None]


def test_a_type_that_is_wrong_everywhere_is_caught_against_all_providers(make_offer: Callable[..., Offer]) -> None:
    others = tuple(make_offer(provider=f"p{n}", instance_type=f"i{n}", price_per_h=5.0) for n in range(5))
    reason = _reasons((*others, make_offer(price_per_h=0.01)))[-1]
    assert reason is not None
    assert "0.2% of the median 5.00 of all providers for T4" in reason


def test_currencies_are_not_compared(make_offer: Callable[..., Offer]) -> None:
    yuan = tuple(make_offer(region=f"r-{n}", price_per_h=7.0, currency=Currency.CNY) for n in range(4))
    assert _reasons((*yuan, make_offer(region="usd", price_per_h=1.0))) == [None] * 5


def test_the_newest_of_duplicates_stays(make_offer: Callable[..., Offer]) -> None:
    old = make_offer(price_per_h=2.0, snapshot_date=date(2025, 1, 1))
    new = make_offer(price_per_h=1.5, snapshot_date=date(2026, 1, 1))
    undated = make_offer(price_per_h=1.7, snapshot_date=None)
    expected = "duplicate of the row at 1.5 USD/h (2026-01-01)"
    assert _reasons((old, new, undated)) == [expected, None, expected]


def test_more_gpus_of_one_type_are_no_duplicate(make_offer: Callable[..., Offer]) -> None:
    assert _reasons((make_offer(gpu_count=1.0), make_offer(gpu_count=8.0, price_per_h=8.0))) == [None, None]


def test_a_machine_of_ones_own_may_be_free(make_offer: Callable[..., Offer]) -> None:
    assert _reasons((make_offer(price_per_h=0.0, own=True),)) == [None]


def test_the_packaged_offers_that_are_set_aside() -> None:
    packaged = packaged_offers()
    assert screen(unjudged(packaged)) == packaged  # the verdicts in the table are those of the rules
    suspect = [offer for offer in packaged if offer.suspect]
    assert {(offer.provider, offer.gpu_family) for offer in suspect} == {("alibaba", "V100-16GB"), ("aws", "K80")}
    assert len(suspect) == 15


PRICES = st.lists(st.floats(0, 100), min_size=0, max_size=12)


@given(PRICES)
def test_screening_keeps_every_offer_in_place_and_changes_nothing_else(prices: list[float]) -> None:
    from dataclasses import replace

    base = packaged_offers()[0]
    offers = tuple(replace(base, region=f"r{n}", price_per_h=price) for n, price in enumerate(prices))
    screened = screen(offers)
    assert tuple(replace(offer, suspect=None) for offer in screened) == offers
    assert screen(screened) == screened
    assert believed(screened) == tuple(offer for offer in screened if offer.suspect is None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_median_is_the_standard_one(values: list[float]) -> None:
    import statistics

    assert median(values) == pytest.approx(statistics.median(values))
