"""``gpurig offers``: what can be rented where; ``gpurig offers refresh``: newer price lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpurig.catalog.prices import Rates, parse_rate, price_day_text, short_age
from gpurig.catalog.query import SORT_KEYS, OfferFilter
from gpurig.catalog.search import OfferSearch, find_offers
from gpurig.cli.options import NameList, flat, gpu_filter, gpu_options
from gpurig.cli.render import Column, as_json, money, note, print_json_object, say, table
from gpurig.errors import AnswerIsNo
from gpurig.model.offer import Currency, Offer, Price

if TYPE_CHECKING:
    from datetime import date

    from gpurig.cli.session import Session

DEFAULT_LIMIT = 20

_COLUMNS = (
    Column("instance"),
    Column("gpu"),
    Column("vCPU/GB", right=True),
    Column("price/h", right=True),
    Column("per GPU", right=True),
    Column("spot/h", right=True),
    Column("where"),
    Column("price of"),
)
_SUSPECT_COLUMNS = (
    Column("instance"),
    Column("gpu"),
    Column("price/h", right=True),
    Column("where"),
    Column("price of"),
    Column("why", max_width=110),
)

# field of the filters -> the option that sets it
_OPTION_OF = {
    "gpu_ids": "--gpu", "min_memory_gb": "--min-memory", "max_memory_gb": "--max-memory",
    "min_cuda_cores": "--min-cuda-cores", "min_compute_capability": "--compute-capability", "dtypes": "--dtype",
    "min_pcie_gen": "--pcie", "nvlink": "--nvlink", "mig": "--mig", "vendor": "--vendor", "providers": "--provider",
    "regions": "--region", "countries": "--country", "continents": "--continent", "min_gpus": "--min-gpus",
    "max_gpus": "--max-gpus", "whole_gpus": "--whole", "min_vcpus": "--min-vcpus",
    "min_host_memory_gb": "--min-host-memory", "spot": "--spot", "max_price_per_h": "--max-price", "wired": "--wired",
}  # fmt: skip


@click.group(
    "offers",
    invoke_without_command=True,
    epilog="Prices are list prices of the day shown; quota and free capacity are not checked.",
)
@click.option("--gpu", "names", type=NameList(), multiple=True, help="GPU name in any spelling; several by commas.")
@gpu_options
@click.option("--min-gpus", type=float, metavar="N", help="At least so many GPUs in the instance.")
@click.option("--max-gpus", type=float, metavar="N", help="At most so many GPUs in the instance.")
@click.option("--whole", is_flag=True, help="No slices of a GPU.")
@click.option("--wired", is_flag=True, help="The GPUs of the instance are linked by NVLink or its like.")
@click.option("--min-vcpus", type=float, metavar="N", help="At least so many vCPUs.")
@click.option("--min-host-memory", type=float, metavar="GB", help="At least so much host memory.")
@click.option("--provider", "providers", type=NameList(), multiple=True, help="Only these providers.")
@click.option(
    "--region", "regions", type=NameList(), multiple=True, metavar="GLOB", help="Only regions like us-east-*."
)
@click.option(
    "--country", "countries", type=NameList(), multiple=True, metavar="CODE", help="Only these countries (DE)."
)
@click.option(
    "--continent", "continents", type=NameList(), multiple=True, metavar="CODE", help="Only AF AS EU NA OC SA."
)
@click.option("--spot", is_flag=True, help="Only with a known spot price; order and limit by it.")
@click.option(
    "--max-price", type=float, metavar="AMOUNT", help="At most this per hour for the instance, in --currency or USD."
)
@click.option(
    "--currency",
    type=click.Choice([c.value for c in Currency], case_sensitive=False),
    help="Show all prices in this currency.",
)
@click.option("--rate", "rates", multiple=True, metavar="CNY=7.1", help="Conversion rate: units for one US dollar.")
@click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="GPURIG_PRICES",
    help="Own prices and discounts (TOML).",
)
@click.option("--sort", type=click.Choice(SORT_KEYS), default="price-per-gpu", show_default=True, help="Order.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=DEFAULT_LIMIT,
    show_default=True,
    metavar="N",
    help="Rows to show; 0: all.",
)
@click.option("--suspect", is_flag=True, help="Show the offers whose price is not believed, and why.")
@click.option("--json", "as_json_text", is_flag=True, help="Every field of every matching offer as JSON.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """What can be rented where, at which price of which day.

    \b
    Examples:
      gpurig offers --gpu A100
      gpurig offers --gpu h100,a100-80gb --min-gpus 8 --wired
      gpurig offers --min-memory 40 --dtype bf16 --continent EU --max-price 3
      gpurig offers --gpu T4 --provider alibaba --currency USD --rate CNY=7.1
      gpurig offers --suspect
      gpurig offers refresh --from URL
    """
    if ctx.invoked_subcommand is None:
        _search(ctx.obj, **options)


@command.command("refresh")
@click.option(
    "--from", "source", required=True, metavar="URL", help="URL or path of a SkyPilot vms.csv or a CSV in our columns."
)
@click.option("--provider", metavar="NAME", help="Whose prices a SkyPilot file holds; else read from .../NAME/vms.csv.")
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, metavar="S", help="Limit for the download, in seconds."
)
@click.option("--allow-shrink", is_flag=True, help="Accept a list with less than half of the offers known before.")
@click.option("--json", "as_json_text", is_flag=True, help="What was done, as JSON.")
@click.pass_obj
def refresh_command(
    session: Session, /, source: str, provider: str | None, timeout: float, allow_shrink: bool, as_json_text: bool
) -> None:
    """Replace a provider's offers by a newer list. On any failure the old one is kept.

    \b
    Examples:
      gpurig offers refresh --from https://example.org/catalogs/v8/nebius/vms.csv
      gpurig offers refresh --from quotes.csv
    """
    from gpurig.catalog.refresh import refresh

    report = refresh(source, today=session.today, provider=provider, timeout_s=timeout, allow_shrink=allow_shrink)
    if as_json_text:
        print_json_object(
            {
                "refreshed": [
                    {
                        "provider": done.provider,
                        "path": str(done.path),
                        "num_offers": done.num_offers,
                        "num_replaced": done.num_replaced,
                        "as_of": as_json(done.as_of),
                    }
                    for done in report.refreshed
                ],
                "skipped": as_json(dict(report.skipped)),
            }
        )
        return
    for done in report.refreshed:
        day = f" of {done.as_of.isoformat()}" if done.as_of else ""
        say(
            f"{done.provider}: {done.num_offers} offers{day} in place of {done.num_replaced}",
            colour=session.colour,
            bold=True,
        )
        note(f"stored in {done.path}; delete it to return to the packaged prices", colour=session.colour)
    for why, count in report.skipped.items():
        note(f"left out {count} rows: {why}", colour=session.colour)


def _search(session: Session, **options: Any) -> None:
    shown: Currency | None = (
        Currency(options.pop("currency").upper()) if options["currency"] else options.pop("currency")
    )
    limit, suspect, as_json_text = options.pop("limit"), options.pop("suspect"), options.pop("as_json_text")
    names, prices, sort = flat(options.pop("names")), options.pop("prices"), options.pop("sort")
    rates = [parse_rate(text) for text in options.pop("rates")]
    wanted = _offer_filter(shown, **options)
    search = find_offers(names, wanted, prices=prices, rates=rates, sort=sort)
    if not (search.set_aside if suspect else search.offers):
        raise _no_match(search, suspect=suspect)
    if as_json_text:
        _print_json(search, suspect=suspect)
    elif suspect:
        _print_suspect(search, limit, session)
    else:
        _print_offers(search, names, shown, limit, sort, session, spot=wanted.spot)


def _offer_filter(shown: Currency | None, **options: Any) -> OfferFilter:
    """The filter that the options describe; a price limit without a currency is in US dollars."""
    own = {
        "min_gpus": options.pop("min_gpus"),
        "max_gpus": options.pop("max_gpus"),
        "whole_gpus": options.pop("whole"),
        "wired": options.pop("wired"),
        "min_vcpus": options.pop("min_vcpus"),
        "min_host_memory_gb": options.pop("min_host_memory"),
        "providers": frozenset(name.lower() for name in flat(options.pop("providers"))),
        "regions": flat(options.pop("regions")),
        "countries": frozenset(name.upper() for name in flat(options.pop("countries"))),
        "continents": frozenset(name.upper() for name in flat(options.pop("continents"))),
        "spot": options.pop("spot"),
        "max_price_per_h": options.pop("max_price"),
        "currency": shown or Currency.USD,
    }
    return OfferFilter(gpu=gpu_filter(**options), **own)


def _print_offers(
    search: OfferSearch,
    names: tuple[str, ...],
    shown: Currency | None,
    limit: int,
    sort: str,
    session: Session,
    *,
    spot: bool,
) -> None:
    offers = search.offers
    providers = len({offer.provider for offer in offers})
    best = min(offers, key=lambda offer: _per_gpu_usd(offer, search.rates, spot=spot))
    subject = f"{', '.join(names)}: " if names else ""
    say(
        f"{subject}{len(offers)} offers of {providers} provider{'s' if providers > 1 else ''}, cheapest "
        f"{_per_gpu(best, search.rates, shown, spot=spot)} {shown or best.currency}/h per GPU{' (spot)' if spot else ''}: "
        f"{best.instance_type}, {_where(best)}, {price_day_text(best.snapshot_date, session.today)}",
        colour=session.colour,
        bold=True,
    )
    rows = [
        _row(offer, search.rates, shown, session.today, spot=spot)
        for offer in (offers if limit == 0 else offers[:limit])
    ]
    say("\n" + table(_COLUMNS, rows), colour=session.colour)
    note("\n" + "\n".join(_notes(search, rows_shown=len(rows), sort=sort, shown=shown)), colour=session.colour)


def _notes(search: OfferSearch, *, rows_shown: int, sort: str, shown: Currency | None) -> list[str]:
    lines = []
    total = len(search.offers)
    if rows_shown < total:
        lines.append(
            f"{rows_shown} of {total} shown by {sort.replace('-', ' ')}; all: --limit 0; other orders: --sort; every field: --json"
        )
    else:
        lines.append(f"all {total} shown by {sort.replace('-', ' ')}; every field: --json")
    if search.set_aside:
        lines.append(f"{len(search.set_aside)} more set aside, price not believed: --suspect shows why")
    if any(offer.discount for offer in search.offers):
        lines.append("* own price or discount from the price file")
    if any(offer.spot is not None and offer.spot.estimated for offer in search.offers):
        lines.append("~ derived: on-demand price less the published spot saving" + (", or converted" if shown else ""))
    special = sum(offer.price_basis not in ("instance", "own price") for offer in search.offers)
    if special:
        lines.append(
            f"{special} prices are not a plain instance price (marketplace ask, per-GPU price, host and GPU summed, …): --json says which"
        )
    currencies = {offer.currency for offer in search.offers}
    foreign = sorted(c for c in currencies | ({shown} if shown else set()) if c is not Currency.USD)
    if len(currencies) > 1 or (shown is not None and currencies != {shown}):
        what = "converted" if shown else "ordered across currencies"
        lines.append(f"{what} at {', '.join(search.rates.describe(c) for c in foreign)}; change with --rate")
    return lines


def _row(offer: Offer, rates: Rates, shown: Currency | None, today: date, *, spot: bool) -> tuple[str, ...]:
    vcpus = f"{offer.vcpus:g}" if offer.vcpus is not None else "?"
    memory = f"{offer.memory_gb:g}" if offer.memory_gb is not None else "?"
    mark = "*" if offer.discount else ""
    spot_price = offer.spot
    return (
        offer.instance_type,
        _gpu_cell(offer),
        f"{vcpus}/{memory}",
        f"{_amount(offer.on_demand, rates, shown)}{mark} {shown or offer.currency}",
        _per_gpu(offer, rates, shown, spot=spot),
        _amount(spot_price, rates, shown) if spot_price else "-",
        _where(offer),
        f"{_day(offer)} ({short_age(offer.snapshot_date, today)})" if offer.snapshot_date else "not stated",
    )


def _gpu_cell(offer: Offer) -> str:
    """``A100-SXM4-80GB:8``; a slice with its own memory; ``form?`` where the provider does not say which part it is."""
    if offer.vgpu:
        return f"{offer.gpu_id or offer.gpu_family}:{offer.gpu_count:.3g} ({offer.gpu_memory_gb_each:.3g} GB)"
    return offer.gpu_label if offer.gpu_id else f"{offer.gpu_family}:{offer.gpu_count:g} (form?)"


def _amount(price: Price, rates: Rates, shown: Currency | None) -> str:
    amount = rates.convert(price.amount_per_h, price.currency, shown or price.currency)
    return money(amount, guessed=price.estimated or (shown is not None and shown is not price.currency))


def _per_gpu(offer: Offer, rates: Rates, shown: Currency | None, *, spot: bool) -> str:
    price = (offer.spot if spot else None) or offer.on_demand
    return _amount(
        Price(price.amount_per_h / offer.gpu_count, price.currency, price.as_of, estimated=price.estimated),
        rates,
        shown,
    )


def _per_gpu_usd(offer: Offer, rates: Rates, *, spot: bool) -> float:
    price = (offer.spot if spot else None) or offer.on_demand
    return rates.convert(price.amount_per_h, price.currency, Currency.USD) / offer.gpu_count


def _where(offer: Offer) -> str:
    return f"{offer.provider} {offer.region}" if offer.region else offer.provider


def _day(offer: Offer) -> str:
    return offer.snapshot_date.isoformat() if offer.snapshot_date else "?"


def _print_suspect(search: OfferSearch, limit: int, session: Session) -> None:
    offers = search.set_aside
    say(f"{len(offers)} offers set aside: their price is not believed", colour=session.colour, bold=True)
    rows = [
        (
            offer.instance_type,
            _gpu_cell(offer),
            f"{money(offer.price_per_h)} {offer.currency}",
            _where(offer),
            f"{_day(offer)} ({short_age(offer.snapshot_date, session.today)})" if offer.snapshot_date else "not stated",
            offer.suspect or "",
        )
        for offer in (offers if limit == 0 else offers[:limit])
    ]
    say("\n" + table(_SUSPECT_COLUMNS, rows), colour=session.colour)
    note(
        f"\n{len(rows)} of {len(offers)} shown; your own price for one puts it back: --prices FILE",
        colour=session.colour,
    )


def _print_json(search: OfferSearch, *, suspect: bool) -> None:
    offers = search.set_aside if suspect else search.offers
    rates = {
        rate.currency.value: {"units_per_usd": rate.units_per_usd, "as_of": as_json(rate.as_of), "source": rate.source}
        for rate in search.rates.by_currency.values()
    }
    print_json_object(
        {
            "offers": as_json(offers),
            "num_searched": search.num_searched,
            "num_set_aside": len(search.set_aside),
            "rejected": as_json(dict(search.rejected)),
            "rates": as_json(rates),
        }
    )


def _no_match(search: OfferSearch, *, suspect: bool) -> AnswerIsNo:
    if suspect:
        return AnswerIsNo("no offer is set aside here", details=(f"searched {search.num_searched} offers",))
    if search.set_aside:
        return AnswerIsNo(
            f"all {len(search.set_aside)} matching offers are set aside: their price is not believed",
            hint="add --suspect to see them",
        )
    rejected = ", ".join(f"{why} {count}" for why, count in list(search.rejected.items())[:5])
    relaxed = tuple(f"without {_OPTION_OF[r.condition]}: {r.num_matching} offers" for r in search.relaxations[:4])
    hint = (
        f"drop {_OPTION_OF[search.relaxations[0].condition]}" if search.relaxations else "drop two or more conditions"
    )
    return AnswerIsNo(
        f"none of {search.num_searched} offers matches",
        details=(f"rejected: {rejected}", *relaxed),
        hint=hint,
    )
