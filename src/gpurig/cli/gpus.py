"""``gpurig gpus``: a table of GPUs, or all facts of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpurig.catalog.prices import price_day_text, short_age
from gpurig.catalog.query import GpuFilter, OfferFilter
from gpurig.catalog.search import find_gpus, find_offers
from gpurig.cli.options import NameList, flat, gpu_filter, gpu_options
from gpurig.cli.render import Column, as_json, money, note, number, pairs, print_json_object, say, table
from gpurig.errors import AnswerIsNo

if TYPE_CHECKING:
    from datetime import date

    from gpurig.cli.session import Session
    from gpurig.model.gpu import Gpu
    from gpurig.model.offer import Offer

_COLUMNS = (
    Column("gpu"),
    Column("memory", right=True),
    Column("usable", right=True),
    Column("GB/s", right=True),
    Column("TFLOP/s fp16", right=True),
    Column("capability"),
    Column("link GB/s", right=True),
    Column("cheapest/h"),
)


@click.command(
    "gpus", epilog="GB is 10^9 bytes as labelled, GiB 2^30; peaks are dense, with fp32 accumulation; ? is not known."
)
@click.argument("names", nargs=-1, type=NameList(), metavar="[NAME]...")
@gpu_options
@click.option("--all", "known", is_flag=True, help="Also parts that nobody in the catalogue rents out.")
@click.option("--json", "as_json_text", is_flag=True, help="All facts as JSON.")
@click.pass_obj
def command(
    session: Session, /, names: tuple[tuple[str, ...], ...], known: bool, as_json_text: bool, **conditions: Any
) -> None:
    """GPUs that can be rented: memory, speed, links, MIG. One NAME alone prints all facts of that part.

    \b
    Examples:
      gpurig gpus
      gpurig gpus A100-SXM4-80GB
      gpurig gpus --min-memory 40 --dtype fp8 --nvlink
      gpurig gpus --compute-capability 8.0 --json
    """
    wanted = gpu_filter(**conditions)
    wanted_names = flat(names)
    found = find_gpus(wanted_names, wanted, known=known)
    if not found.passed:
        raise AnswerIsNo(
            "no GPU matches",
            details=tuple(f"{count} left out: {why}" for why, count in found.rejected.items() if why != "another GPU"),
            hint="drop one condition, or run gpurig gpus --all",
        )
    if as_json_text:
        from gpurig.catalog.mig import mig_profiles_of

        gpus = [{**_object(gpu), "mig_profiles": as_json(mig_profiles_of(gpu.gpu_id))} for gpu in found.passed]
        print_json_object({"gpus": as_json(gpus)})
    elif len(found.passed) == 1 and wanted_names and wanted == GpuFilter():
        say(
            fact_sheet(found.passed[0], _cheapest(found.passed).get(found.passed[0].gpu_id), session),
            colour=session.colour,
        )
    else:
        _print_table(found.passed, wanted_names, session)


def _print_table(gpus: tuple[Gpu, ...], names: tuple[str, ...], session: Session) -> None:
    cheapest = _cheapest(gpus)
    largest = max(gpus, key=lambda gpu: gpu.memory_gb)
    what = f"{', '.join(names)}: {len(gpus)} parts" if names else f"{len(gpus)} GPUs"
    say(f"{what}, up to {largest.memory_gb:g} GB ({largest.gpu_id})", colour=session.colour, bold=True)
    say(
        "\n" + table(_COLUMNS, [_row(gpu, cheapest.get(gpu.gpu_id), session.today) for gpu in gpus]),
        colour=session.colour,
    )
    note(
        "\nall facts of one: gpurig gpus NAME; its offers: gpurig offers --gpu NAME\n"
        "cheapest: list price per whole GPU, host included, with its age; slices and suspect prices left out",
        colour=session.colour,
    )


def _row(gpu: Gpu, offer: Offer | None, today: date) -> tuple[str, ...]:
    return (
        gpu.gpu_id,
        f"{gpu.memory_gb:g} GB",
        _usable(gpu),
        number(gpu.memory_bandwidth_gb_per_s),
        number(gpu.fp16_tflops),
        _capability(gpu),
        number(gpu.nvlink_gb_per_s) if gpu.has_nvlink else "-",
        _price_cell(offer, today) if offer else "-",
    )


def _price_cell(offer: Offer, today: date) -> str:
    return f"{money(offer.price_per_gpu_h)} {offer.currency} {offer.provider} ({short_age(offer.snapshot_date, today)})"


def _usable(gpu: Gpu) -> str:
    guessed = "" if gpu.usable_memory_origin.startswith("measured") else "~"
    return f"{guessed}{gpu.usable_memory_gib:.1f} GiB"


def _capability(gpu: Gpu) -> str:
    if gpu.compute_capability is not None:
        return f"{gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
    return gpu.isa or "?"


def _cheapest(gpus: tuple[Gpu, ...]) -> dict[str, Offer]:
    """The believed offer with the lowest price per whole GPU, by part; offers that do not state the form count for none."""
    search = find_offers(wanted=OfferFilter(whole_gpus=True))
    wanted = {gpu.gpu_id for gpu in gpus}
    cheapest: dict[str, Offer] = {}
    for offer in search.offers:
        if offer.gpu_id in wanted:
            cheapest.setdefault(offer.gpu_id, offer)
    return cheapest


def _object(gpu: Gpu) -> dict[str, Any]:
    plain = as_json(gpu)
    assert isinstance(plain, dict)
    return plain


def fact_sheet(gpu: Gpu, offer: Offer | None, session: Session) -> str:
    """Everything known of one part, each guess marked, with its sources."""
    price = "no offer in the catalogue states this part"
    if offer is not None:
        where = f"{offer.provider} {offer.region or ''}".strip()
        price = (
            f"{money(offer.price_per_gpu_h)} {offer.currency}/h per GPU: {offer.instance_type}, {where}, "
            f"{price_day_text(offer.snapshot_date, session.today)}"
        )
    head = f"{gpu.gpu_id}: {gpu.vendor} {gpu.architecture}, {gpu.memory_gb:g} GB {gpu.memory_type or ''}".rstrip()
    peaks = (
        ("fp64", gpu.fp64_tflops), ("fp64 tensor", gpu.fp64_tensor_tflops), ("fp32", gpu.fp32_tflops),
        ("tf32", gpu.tf32_tflops), ("fp16", gpu.fp16_tflops), ("bf16", gpu.bf16_tflops), ("fp8", gpu.fp8_tflops),
        ("int8", gpu.int8_tops),
    )  # fmt: skip
    facts = pairs(
        (
            ("family", gpu.family),
            ("chip", f"{gpu.chip or '?'}, {number(gpu.sm_count)} SM, {number(gpu.cuda_cores, 6)} CUDA cores, {number(gpu.tensor_cores)} tensor cores"),
            ("capability", f"{_capability(gpu)} ({gpu.isa})" if gpu.isa else _capability(gpu)),
            ("memory", f"{_usable(gpu)} usable of {gpu.memory_gb:g} GB; {gpu.usable_memory_origin}"),
            ("bandwidth", f"{number(gpu.memory_bandwidth_gb_per_s)} GB/s; L2 {number(gpu.l2_mb)} MB"),
            ("peak TFLOP/s", ", ".join(f"{name} {number(value)}" for name, value in peaks if value is not None) or "?"),
            ("hardware for", ", ".join(dtype for dtype in ("fp16", "bf16", "tf32", "fp8", "int8") if gpu.supports(dtype)) or "none of fp16 bf16 tf32 fp8 int8"),
            ("boost clock", f"{number(gpu.boost_mhz)} MHz"),
            ("link", f"{number(gpu.nvlink_gb_per_s)} GB/s, both directions; an instance may still not wire it" if gpu.has_nvlink else "none but PCIe"),
            ("PCIe", f"{number(gpu.pcie_gen)} x{number(gpu.pcie_lanes)}"),
            ("power", f"{number(gpu.tdp_w)} W"),
            ("cheapest", price),
            ("note", gpu.notes),
            ("source", gpu.source),
            ("cross-check", gpu.crosscheck or "none"),
            ("written on", f"{gpu.compiled_on.isoformat()}, figures not re-opened since" if gpu.compiled_on else "?"),
        )
    )  # fmt: skip
    return f"{head}\n\n{facts}{_mig_text(gpu)}"


def _mig_text(gpu: Gpu) -> str:
    if gpu.mig_max_instances == 0:
        return ""
    from gpurig.catalog.mig import mig_profiles_of

    profiles = mig_profiles_of(gpu.gpu_id)
    if not profiles:
        return "\n\nmig profiles  not known"
    columns = (
        Column("mig profile"), Column("compute", right=True), Column("memory slices", right=True),
        Column("usable GiB", right=True), Column("SMs", right=True), Column("at most", right=True), Column("starts at"),
    )  # fmt: skip
    rows = [
        (
            profile.name,
            f"{number(profile.compute_slices)}/{number(profile.compute_slices_total)}",
            f"{number(profile.memory_slices)}/{number(profile.memory_slices_total)}",
            f"{'' if profile.usable_memory_gib else '~'}{profile.safe_memory_gib(gpu.usable_memory_gib):.1f}",
            number(profile.sm_count),
            number(profile.max_instances),
            " ".join(str(start) for start in profile.placement_starts) or "?",
        )
        for profile in profiles
    ]
    sources = "\n".join(dict.fromkeys(f"{profile.source}; placements: {profile.evidence}" for profile in profiles))
    return f"\n\n{table(columns, rows)}\n\nmig source  {sources}"
