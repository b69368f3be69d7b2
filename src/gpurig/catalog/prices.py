"""Prices: currencies and ages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from gpurig.catalog.files import DATA_DIR, read_table
from gpurig.errors import InputError
from gpurig.model.offer import Currency

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RATE_COLUMNS = ("currency", "units_per_usd", "date", "source")


@dataclass(frozen=True, slots=True)
class Rate:
    """Units of a currency for one US dollar."""

    currency: Currency
    units_per_usd: float
    as_of: date | None  # None: given by the user without a date
    source: str


@dataclass(frozen=True, slots=True)
class Rates:
    """Conversion rates in use. Printed wherever a converted price or an order across currencies is."""

    by_currency: Mapping[Currency, Rate]

    def convert(self, amount: float, given: Currency, wanted: Currency) -> float:
        """An amount in another currency."""
        if given == wanted:
            return amount
        return amount / self.by_currency[given].units_per_usd * self.by_currency[wanted].units_per_usd

    def describe(self, currency: Currency) -> str:
        """``7.1884 CNY per USD of 2024-12-31 (default)``."""
        rate = self.by_currency[currency]
        day = f" of {rate.as_of.isoformat()}" if rate.as_of else ""
        origin = "given" if rate.source == GIVEN else "default"
        return f"{rate.units_per_usd:g} {currency} per USD{day} ({origin})"

    def with_rates(self, rates: Sequence[Rate]) -> Rates:
        """The same with some rates replaced."""
        return Rates({**self.by_currency, **{rate.currency: rate for rate in rates}})


GIVEN = "given by the user"


def default_rates() -> Rates:
    """The dated rates that come with the package."""
    rows = read_table(DATA_DIR / "exchange_rates.csv", RATE_COLUMNS)
    rates = [Rate(Currency(name), float(units), date.fromisoformat(day), source) for name, units, day, source in rows]
    return Rates({rate.currency: rate for rate in rates})


def parse_rate(text: str) -> Rate:
    """A rate as written on the command line, ``CNY=7.1``: units for one US dollar.

    Raises:
        InputError: not of that form, an unknown currency, or not a positive number.
    """
    name, _, number = text.partition("=")
    try:
        currency, units = Currency(name.strip().upper()), float(number)
    except ValueError:
        units = 0.0
    if not 0 < units < float("inf") or currency is Currency.USD:
        known = ", ".join(c.value for c in Currency if c is not Currency.USD)
        raise InputError(
            f"{text!r} is not a rate",
            details=("a rate is CURRENCY=UNITS PER US DOLLAR", f"known currencies: {known}"),
            hint="write for example --rate CNY=7.1",
        ) from None
    return Rate(currency, units, None, GIVEN)


def age_text(day: date | None, today: date) -> str:
    """How old a price is: ``23 months old``; ``of no stated date``."""
    if day is None:
        return "of no stated date"
    days = (today - day).days
    if days < 0:
        return "dated in the future"
    if days == 0:
        return "of today"
    if days < 61:
        return f"{days} day{'s' if days != 1 else ''} old"
    months = (today.year - day.year) * 12 + today.month - day.month - (today.day < day.day)
    return f"{months} months old" if months < 36 else f"{months // 12} years old"


def short_age(day: date | None, today: date) -> str:
    """How old a price is, for a narrow column: ``23 mo``, ``5 d``, ``4 y``, ``no date``."""
    if day is None:
        return "no date"
    words = age_text(day, today).split()
    if not words[0].isdigit():
        return words[-1]  # "today", "future"
    return f"{words[0]} {'mo' if words[1] == 'months' else words[1][0]}"


def price_day_text(day: date | None, today: date) -> str:
    """``price of 2024-12-31, 23 months old``; ``price of no stated date``."""
    return f"price of {day.isoformat()}, {age_text(day, today)}" if day else "price of no stated date"
