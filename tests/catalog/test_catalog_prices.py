"""Currencies and ages, and the user's own price file."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.offers import load_offers
from gpurig.catalog.own_prices import Discount, OwnPrices, apply_own_prices, read_own_prices
from gpurig.catalog.prices import age_text, default_rates, parse_rate, price_day_text, short_age
from gpurig.catalog.search import find_offers
from gpurig.errors import BadFile, InputError
from gpurig.model.offer import Currency

if TYPE_CHECKING:
    from pathlib import Path

    from gpurig.model.offer import Offer

TODAY = date(2026, 12, 1)


@pytest.mark.parametrize(
    ("day", "text", "short"),
    [
        (None, "of no stated date", "no date"),
        (date(2026, 12, 1), "of today", "today"),
        (date(2026, 11, 30), "1 day old", "1 d"),
        (date(2026, 10, 2), "60 days old", "60 d"),
        (date(2026, 10, 1), "2 months old", "2 mo"),
        (date(2024, 12, 31), "23 months old", "23 mo"),
        (date(2024, 12, 1), "24 months old", "24 mo"),
        (date(2022, 11, 22), "4 years old", "4 y"),
        (date(2027, 1, 1), "dated in the future", "future"),
    ],
)
def test_a_price_says_how_old_it_is(day: date | None, text: str, short: str) -> None:
    assert age_text(day, TODAY) == text
    assert short_age(day, TODAY) == short


def test_the_day_of_a_price_is_spelled_out() -> None:
    assert price_day_text(date(2024, 12, 31), TODAY) == "price of 2024-12-31, 23 months old"
    assert price_day_text(None, TODAY) == "price of no stated date"


@given(
    st.floats(0, 1e5), st.sampled_from(list(Currency)), st.sampled_from(list(Currency)), st.sampled_from(list(Currency))
)
def test_conversion_is_consistent(amount: float, a: Currency, b: Currency, c: Currency) -> None:
    rates = default_rates()
    assert rates.convert(rates.convert(amount, a, b), b, a) == pytest.approx(amount)
    assert rates.convert(rates.convert(amount, a, b), b, c) == pytest.approx(rates.convert(amount, a, c))
    assert rates.convert(amount, a, a) == amount


def test_a_given_rate_replaces_the_default_and_is_called_given() -> None:
    default = default_rates()
    rates = default.with_rates([parse_rate("cny=7")])
    assert rates.convert(7, Currency.CNY, Currency.USD) == 1
    assert rates.describe(Currency.CNY) == "7 CNY per USD (given)"
    assert default.describe(Currency.CNY) == "7.1884 CNY per USD of 2024-12-31 (default)"


@pytest.mark.parametrize(
    "text", ["CNY", "CNY=", "CNY=0", "CNY=-1", "CNY=nan", "CNY=inf", "GBP=0.8", "USD=2", "=7", "7.1"]
)
def test_what_is_not_a_rate_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a rate"):
        parse_rate(text)


GOOD = """
[rates]
CNY = 7.05

[[discount]]
provider = "aws"
instance_type = "G4DN*"
region = "us-*"
percent = 10

[[discount]]
provider = "aws"
percent = 50
applies_to = "spot"

[[override]]
provider = "lambda"
instance_type = "gpu_8x_v100"
price_per_h = 4.0
date = 2026-11-01

[[offer]]
provider = "our-lab"
instance_type = "dgx"
gpu = "a100 80gb sxm"
gpu_count = 8
vcpus = 256
price_per_h = 0
nvlink_gb_per_s = 600
"""


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _by_key(offers: tuple[Offer, ...]) -> dict[tuple[str, str, str | None], Offer]:
    return {offer.key: offer for offer in offers}


def test_own_prices_are_applied(tmp_path: Path) -> None:
    path = _write(tmp_path, GOOD)
    listed = load_offers()
    own = read_own_prices(path, listed, load_gpus())
    before, after = _by_key(listed), _by_key(apply_own_prices(listed, own))

    key = ("aws", "g4dn.xlarge", "us-east-1")
    assert after[key].price_per_h == pytest.approx(0.9 * before[key].price_per_h)
    assert after[key].discount == "-10 %, -50 %"
    assert after[key].snapshot_date == before[key].snapshot_date

    elsewhere = ("aws", "g4dn.xlarge", "eu-west-1")
    assert after[elsewhere].price_per_h == before[elsewhere].price_per_h

    override = after["lambda", "gpu_8x_v100", "us-west-1"]
    assert (override.price_per_h, override.snapshot_date, override.own) == (4.0, date(2026, 11, 1), True)
    assert override.source == f"own prices: {path}"

    lab = after["our-lab", "dgx", None]
    assert (lab.gpu_id, lab.gpu_count, lab.price_per_h) == ("A100-SXM4-80GB", 8, 0)
    assert (lab.gpu_memory_gb_each, lab.nvlink_gb_per_s, lab.intra_node_link, lab.vcpus) == (80, 600, "NVLink", 256)
    assert len(after) == len(before) + 1


def test_own_prices_and_rates_reach_a_search(tmp_path: Path) -> None:
    search = find_offers(["A100-SXM4-80GB"], prices=_write(tmp_path, GOOD))
    assert search.offers[0].provider == "our-lab"
    assert search.rates.convert(7.05, Currency.CNY, Currency.USD) == 1


def test_an_override_puts_a_suspect_offer_back(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        '[[override]]\nprovider = "aws"\ninstance_type = "p2.xlarge"\nregion = "us-east-1"\nprice_per_h = 0.9\n',
    )
    found = find_offers(["K80"], prices=path)
    kept = [offer for offer in found.offers if offer.key == ("aws", "p2.xlarge", "us-east-1")]
    assert [offer.suspect for offer in kept] == [None]


BAD = """
[rate]
CNY = 7

[rates]
GBP = 0.8
CNY = -7

[[discount]]
provider = "azur"
percent = 120
aplies_to = "spot"

[[discount]]
provider = "aws"
instance_type = "p9*"
percent = 5

[[override]]
provider = "aws"
instance_type = "p4d.24xlarg"
price_per_h = "cheap"
currency = "GBP"

[[override]]
provider = "aws"
instance_type = "p4d.24xlarg"
price_per_h = 10

[[offer]]
provider = "our-lab"
gpu = "A10O"
gpu_count = true
price_per_h = 1
date = "soon"
"""


def test_all_faults_of_a_price_file_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read_own_prices(_write(tmp_path, BAD), load_offers(), load_gpus())
    faults = "\n".join(caught.value.details)
    expected = [
        "unknown section 'rate', did you mean 'rates'?",
        "rates: unknown key 'GBP'",
        "rates: CNY = -7 is outside",
        "discount[1]: unknown key 'aplies_to', did you mean 'applies_to'?",
        "discount[1]: unknown provider 'azur', did you mean 'azure'?",
        "discount[1]: percent = 120 is outside 0 … 100",
        "discount[2]: matches no offer (aws p9* in *)",
        "override[1]: price_per_h must be a number, not 'cheap'",
        "override[1]: currency 'GBP' is not one of USD, CNY, EUR",
        "override[2]: matches no offer (aws p4d.24xlarg), did you mean 'p4d.24xlarge'?",
        "offer[1]: instance_type is missing",
        "offer[1]: gpu_count must be a number, not True",
        "offer[1]: date must be a date like 2026-11-01",
        "offer[1]: gpu 'A10O' is not exact enough or unknown: A10",
    ]
    missing = [text for text in expected if text not in faults]
    assert missing == []
    assert len(caught.value.details) == len(expected)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("not toml at all", "Expected '='"),
        ("discount = 5", "discount must be written as [[discount]]"),
        ("rates = 5", "rates must be written as [rates]"),
        ("offer = [1]", "offer[1] must be a table"),
    ],
    ids=["no TOML", "no list", "no table", "list of numbers"],
)
def test_a_file_of_the_wrong_shape_is_refused(text: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read_own_prices(_write(tmp_path, text), load_offers(), load_gpus())
    assert any(fault in detail for detail in caught.value.details)


def test_a_missing_price_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"absent\.toml"):
        read_own_prices(tmp_path / "absent.toml", load_offers(), load_gpus())


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_larger_discount_never_raises_a_price(one: float, other: float) -> None:
    small, large = sorted((one, other))
    offers = load_offers()[:40]

    def prices(percent: float) -> list[float]:
        own = OwnPrices("-", discounts=(Discount(provider=offers[0].provider, percent=percent),))
        return [offer.price_per_h for offer in apply_own_prices(offers, own)]

    assert all(a >= b for a, b in zip(prices(small), prices(large), strict=True))
    assert prices(0) == [offer.price_per_h for offer in offers]
