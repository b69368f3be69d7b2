"""Price lists as text: SkyPilot's vms.csv and plain CSV in our own columns, checked as a whole."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from gpurig.catalog.names import part_of_label
from gpurig.errors import BadFile, UnknownName
from gpurig.model.offer import Currency

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpurig.model.gpu import Gpu

SKYPILOT_COLUMNS = ("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "Price", "Region")
OWN_COLUMNS = ("provider", "instance_type", "gpu", "gpu_count", "price_per_h", "currency")  # required ones
OWN_OPTIONAL = (
    "region", "gpu_memory_gb_each", "vcpus", "memory_gb", "spot_price_per_h", "price_basis", "source", "snapshot_date",
)  # fmt: skip
MAX_FAULTS_SHOWN = 20

# SkyPilot leaves the smaller memory size out of some names.
_SKYPILOT_MEMORY_GB = {"A100": 40.0, "V100": 16.0, "H100": 80.0, "P100": 16.0}
_SIZE_IN_MIB = re.compile(r"'SizeInMiB':\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One checked row of a price list."""

    provider: str
    instance_type: str
    region: str | None
    gpu_id: str | None
    gpu_family: str
    gpu_count: float
    gpu_memory_gb_each: float
    vgpu: bool
    vcpus: float | None
    memory_gb: float | None
    price_per_h: float
    spot_price_per_h: float | None
    currency: Currency
    price_basis: str
    source: str
    snapshot_date: date | None

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `offers.OFFER_COLUMNS`."""
        return (
            self.provider,
            self.instance_type,
            self.region or "",
            self.gpu_id or "",
            self.gpu_family,
            f"{self.gpu_count:g}",
            f"{self.gpu_memory_gb_each:g}",
            "1" if self.vgpu else "0",
            _text(self.vcpus),
            _text(self.memory_gb),
            f"{self.price_per_h:.10g}",
            _text(self.spot_price_per_h),
            self.currency.value,
            self.price_basis,
            self.source,
            self.snapshot_date.isoformat() if self.snapshot_date else "",
        )


@dataclass(frozen=True, slots=True)
class PriceList:
    """What a price list holds that we can use, and what was left out, counted by reason."""

    rows: tuple[PriceRow, ...]
    skipped: Mapping[str, int]


@dataclass(slots=True)
class _Context:
    """What the rows of one list share, and the faults found so far."""

    origin: str
    provider: str | None
    day: date | None
    gpus: Mapping[str, Gpu]
    parts: Mapping[tuple[str, str], str | None]
    faults: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    labels: dict[tuple[str, float | None], tuple[str | None, str] | None] = field(default_factory=dict)

    def skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1


def parse_price_list(
    text: str,
    *,
    origin: str,
    provider: str | None,
    day: date | None,
    gpus: Mapping[str, Gpu],
    parts: Mapping[tuple[str, str], str | None],
) -> PriceList:
    """Read a price list; its header says which of the two formats it is.

    Args:
        text: The whole file.
        origin: Where it came from, for messages and as the source of its rows.
        provider: Whose prices a SkyPilot file holds (it does not say); checked against our own columns.
        day: Day of the prices where the file gives none.
        gpus: The known parts.
        parts: Exact part by (provider, instance type), where a list only names the family.

    Raises:
        BadFile: neither format, no usable row, or malformed rows: all of them, by line.
    """
    context = _Context(origin, provider, day, gpus, parts)
    reader = csv.DictReader(io.StringIO(text))
    header = tuple(reader.fieldnames or ())
    if set(SKYPILOT_COLUMNS) <= set(header):
        if provider is None:
            raise BadFile(f"{origin} does not say whose prices it holds", hint="add --provider NAME")
        rows = _skypilot_rows(reader, context)
    elif set(OWN_COLUMNS) <= set(header):
        unknown = [name for name in header if name not in OWN_COLUMNS + OWN_OPTIONAL]
        context.faults.extend(f"line 1: unknown column {name!r}" for name in unknown)
        rows = _own_rows(reader, context)
    else:
        raise BadFile(
            f"{origin} is not a price list",
            details=(
                f"first line: {', '.join(header)[:200] or 'empty'}",
                f"needs the columns {', '.join(OWN_COLUMNS)}",
                f"or SkyPilot's {', '.join(SKYPILOT_COLUMNS)}",
            ),
        )
    if context.faults:
        raise _bad_rows(context)
    if not rows:
        raise BadFile(f"{origin} has no GPU offer that can be used", details=_counts(context.skipped))
    return PriceList(rows, context.skipped)


def _bad_rows(context: _Context) -> BadFile:
    shown = context.faults[:MAX_FAULTS_SHOWN]
    more = len(context.faults) - len(shown)
    details = (*shown, f"and {more} more") if more else tuple(shown)
    return BadFile(
        f"{context.origin}: {len(context.faults)} fault{'s' if len(context.faults) > 1 else ''}", details=details
    )


def _own_rows(reader: csv.DictReader[str], context: _Context) -> tuple[PriceRow, ...]:
    rows = []
    for cells in reader:
        before = len(context.faults)
        row = _own_row(_Cells(cells, reader.line_num, context), context)
        if row is not None and len(context.faults) == before:
            rows.append(row)
    return tuple(rows)


def _own_row(cell: _Cells, context: _Context) -> PriceRow | None:
    if cell.ragged():
        return None
    provider, instance_type, label = cell.text("provider"), cell.text("instance_type"), cell.text("gpu")
    count = cell.number("gpu_count", 1 / 64, 1024, required=True)
    price = cell.number("price_per_h", 0, 1e6, required=True)
    spot = cell.number("spot_price_per_h", 0, 1e6)
    vcpus, memory_gb = cell.number("vcpus", 0, 1e5), cell.number("memory_gb", 0, 1e6)
    each_gb = cell.number("gpu_memory_gb_each", 0.1, 4096)
    currency, day = cell.currency(), cell.day("snapshot_date")
    if context.provider is not None and provider and provider != context.provider:
        cell.fault(f"provider {provider!r} is not {context.provider!r}")
    if not provider or not instance_type or not label or count is None or price is None or currency is None:
        return None
    vgpu = count < 1
    part = _part(context, provider, instance_type, label, None if vgpu else each_gb)
    if part is None:
        cell.fault(f"unknown GPU {label!r}")
        return None
    gpu_id, family, label_gb = part
    return PriceRow(
        provider=provider,
        instance_type=instance_type,
        region=cell.optional_text("region"),
        gpu_id=gpu_id,
        gpu_family=family,
        gpu_count=count,
        gpu_memory_gb_each=each_gb or label_gb * min(count, 1.0),
        vgpu=vgpu,
        vcpus=vcpus,
        memory_gb=memory_gb,
        price_per_h=price,
        spot_price_per_h=spot,
        currency=currency,
        price_basis=cell.optional_text("price_basis") or "instance",
        source=cell.optional_text("source") or context.origin,
        snapshot_date=day or context.day,
    )


def _skypilot_rows(reader: csv.DictReader[str], context: _Context) -> tuple[PriceRow, ...]:
    """One row per type and region: zones are merged, the lowest spot price of them kept."""
    merged: dict[tuple[str, str | None], PriceRow] = {}
    for cells in reader:
        row = _skypilot_row(_Cells(cells, reader.line_num, context), context)
        if row is None:
            continue
        key = (row.instance_type, row.region)
        known = merged.get(key)
        if known is None:
            merged[key] = row
        else:
            context.skip("further zones of a region")
            merged[key] = _cheaper_spot(known, row)
    return tuple(merged.values())


def _skypilot_row(cell: _Cells, context: _Context) -> PriceRow | None:
    if cell.ragged():
        return None
    instance_type, label = cell.text("InstanceType"), cell.optional_text("AcceleratorName")
    if label is None:
        context.skip("no GPU")
        return None
    count = cell.number("AcceleratorCount", 1 / 64, 1024, required=True)
    price = cell.number("Price", 0, 1e6)
    spot = cell.number("SpotPrice", 0, 1e6)
    vcpus, memory_gb = cell.number("vCPUs", 0, 1e5), cell.number("MemoryGiB", 0, 1e6)
    if not instance_type or count is None:
        return None
    if price is None:
        context.skip("no on-demand price")
        return None
    provider = context.provider or ""
    size = _SIZE_IN_MIB.search(cell.optional_text("GpuInfo") or "")
    each_gb = float(size.group(1)) / 1024 if size else _SKYPILOT_MEMORY_GB.get(label.upper())
    part = _part(context, provider, instance_type, label, None if count < 1 else each_gb)
    if part is None:
        context.skip(f"{label}: not a GPU of the catalogue, or its memory is left open")
        return None
    gpu_id, family, label_gb = part
    return PriceRow(
        provider=provider,
        instance_type=instance_type,
        region=cell.optional_text("Region"),
        gpu_id=gpu_id,
        gpu_family=family,
        gpu_count=count,
        gpu_memory_gb_each=label_gb * min(count, 1.0),
        vgpu=count < 1,
        vcpus=vcpus,
        memory_gb=memory_gb,
        price_per_h=price,
        spot_price_per_h=spot,
        currency=Currency.USD,
        price_basis="instance",
        source=f"{context.origin} (SkyPilot-format)",
        snapshot_date=context.day,
    )


def _cheaper_spot(known: PriceRow, other: PriceRow) -> PriceRow:
    from dataclasses import replace

    spots = [spot for spot in (known.spot_price_per_h, other.spot_price_per_h) if spot is not None]
    return replace(known, spot_price_per_h=min(spots, default=None))


def _part(
    context: _Context, provider: str, instance_type: str, label: str, each_gb: float | None
) -> tuple[str | None, str, float] | None:
    """Part, family and labelled memory; the part that the catalogue knows for the type fills in an unstated form."""
    key = (label, each_gb)
    if key not in context.labels:
        try:
            context.labels[key] = part_of_label(label, each_gb, context.gpus)
        except UnknownName:
            context.labels[key] = None
    found = context.labels[key]
    if found is None:
        return None
    gpu_id, family = found
    known = context.parts.get((provider, instance_type))
    if gpu_id is None and known is not None and context.gpus[known].family == family:
        gpu_id = known
    memory_gb = next(
        gpu.memory_gb
        for gpu in context.gpus.values()
        if gpu.gpu_id == gpu_id or (gpu_id is None and gpu.family == family)
    )
    return gpu_id, family, memory_gb


class _Cells:
    """The cells of one line; collects faults with the line number."""

    def __init__(self, cells: Mapping[str | None, str | list[str] | None], line: int, context: _Context) -> None:
        self._cells = cells
        self._line = line
        self._context = context

    def fault(self, text: str) -> None:
        """Record a fault of this line."""
        self._context.faults.append(f"line {self._line}: {text}")

    def ragged(self) -> bool:
        """Whether the line has more or fewer cells than the header; that is a fault."""
        bad = None in self._cells or None in self._cells.values()
        if bad:
            self.fault("more or fewer cells than the header")
        return bad

    def optional_text(self, name: str) -> str | None:
        """A cell's text; None: empty or no such column."""
        value = self._cells.get(name)
        return value.strip() or None if isinstance(value, str) else None

    def text(self, name: str) -> str | None:
        """A cell that must not be empty."""
        value = self.optional_text(name)
        if value is None:
            self.fault(f"{name} is empty")
        return value

    def number(self, name: str, low: float, high: float, *, required: bool = False) -> float | None:
        """A number in [low, high]; None: empty (a fault if required) or a fault."""
        text = self.optional_text(name)
        if text is None:
            if required:
                self.fault(f"{name} is empty")
            return None
        try:
            value = float(text)
        except ValueError:
            self.fault(f"{name} {text[:40]!r} is not a number")
            return None
        if not low <= value <= high:
            self.fault(f"{name} {text[:40]} is outside {low:g} … {high:g}")
            return None
        return value

    def currency(self) -> Currency | None:
        """A known currency."""
        text = self.text("currency")
        try:
            return None if text is None else Currency(text)
        except ValueError:
            self.fault(f"currency {text!r} is not one of {', '.join(c.value for c in Currency)}")
            return None

    def day(self, name: str) -> date | None:
        """An ISO date, or None for an empty cell."""
        text = self.optional_text(name)
        try:
            return None if text is None else date.fromisoformat(text)
        except ValueError:
            self.fault(f"{name} {text!r} is not a date like 2026-11-01")
            return None


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _counts(skipped: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(f"{count} rows: {why}" for why, count in skipped.items())
