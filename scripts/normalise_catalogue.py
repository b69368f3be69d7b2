"""Make the packaged catalogue tables from a folder of raw ones, and report what was changed or set aside.

Usage: python scripts/normalise_catalogue.py RAW_FOLDER [--out FOLDER]

Deterministic: the same raw folder gives the same bytes. Hand-written tables (gpus_more, gpu_aliases, usable_memory,
regions, exchange_rates) are inputs and are not touched.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.catalog.files import DATA_DIR, read_table
from gpurig.catalog.gpus import GPU_COLUMNS, _gpu, _usable_memory
from gpurig.catalog.mig import LAYOUT_COLUMNS, MIG_COLUMNS
from gpurig.catalog.names import part_of_label
from gpurig.catalog.offers import (
    LINK_COLUMNS,
    OFFER_COLUMNS,
    PACKAGED_COLUMNS,
    SOURCE_COLUMNS,
    SPEC_COLUMNS,
    SPOT_COLUMNS,
    Places,
    offer_of_row,
)
from gpurig.catalog.quality import screen
from gpurig.errors import UnknownName

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu

COMPILED_ON = "2026-12-01"  # day on which the raw folder was gathered
CORRECTION_COLUMNS = ("table", "row", "field", "was", "is", "why")
NO_NOTES = ("M40", "RTX5000")  # their raw notes are remarks on the raw folder, not on the part
NO_REGION = ("", "all(list price)")

Row = dict[str, str]


class Report:
    """What was changed on the way, for a person and for corrections.csv."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []

    def changed(self, table: str, row: str, field: str, was: str, now: str, why: str) -> None:
        """Record one change."""
        self.rows.append((table, row, field, was, now, why))


def main() -> int:
    """Read, normalise, write, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path)
    parser.add_argument("--out", type=Path, default=DATA_DIR)
    arguments = parser.parse_args()
    report = Report()
    gpu_rows = normal_gpus(_read(arguments.raw / "gpus.csv"))
    gpus = _gpus([[row[name] for name in GPU_COLUMNS] for row in gpu_rows])
    offers, sources = normal_offers(_read(arguments.raw / "offers.csv"), gpus, report)
    specs = _read(arguments.raw / "china_instances.csv")
    links = normal_links(_read(arguments.raw / "interconnect.csv"), offers, report)
    links += network_links(specs, links, offers, report)
    tables: dict[str, tuple[tuple[str, ...], list[Row]]] = {
        "gpus.csv": (GPU_COLUMNS, gpu_rows),
        "mig_profiles.csv": (MIG_COLUMNS, normal_mig(_read(arguments.raw / "mig_profiles.csv"), report)),
        "mig_layouts.csv": (LAYOUT_COLUMNS, normal_layouts(_read(arguments.raw / "mig_valid_combinations.csv"))),
        "interconnect.csv": (LINK_COLUMNS, links),
        "spot_aws.csv": (SPOT_COLUMNS, normal_spot(_read(arguments.raw / "aws_spot_advisor.csv"))),
        "instances_china.csv": (SPEC_COLUMNS, normal_specs(specs)),
        "offers.csv": (PACKAGED_COLUMNS, judged(offers)),
        "sources.csv": (SOURCE_COLUMNS, sources),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (columns, rows) in tables.items():
        _write(arguments.out / name, columns, rows)
        print(f"{name}: {len(rows)} rows")
    changes = [dict(zip(CORRECTION_COLUMNS, row, strict=True)) for row in report.rows]
    _write(arguments.out / "corrections.csv", CORRECTION_COLUMNS, changes)
    _print_report(report)
    return 0


def normal_gpus(raw: list[Row]) -> list[Row]:
    """Hardware facts: our column names; the AMD architecture moves from compute_capability to isa."""
    renamed = {
        "family": "gpu_name", "memory_bandwidth_gb_per_s": "memory_bandwidth_gbs", "fp16_tflops": "fp16_tensor_tflops",
        "bf16_tflops": "bf16_tensor_tflops", "fp8_tflops": "fp8_tensor_tflops",
        "nvlink_gb_per_s": "nvlink_gbs_bidir_total",
    }  # fmt: skip
    rows = []
    for source in raw:
        row = {name: source.get(renamed.get(name, name), "") for name in GPU_COLUMNS}
        capability = source["compute_capability"]
        if capability.startswith("gfx"):
            row["compute_capability"], row["isa"] = "", capability
        elif capability:
            row["isa"] = "sm_" + capability.replace(".", "")
        if row["gpu_id"] in NO_NOTES:
            row["notes"] = ""
        row["compiled_on"], row["rentable"] = COMPILED_ON, "1"
        rows.append(row)
    return rows


def normal_offers(raw: list[Row], gpus: dict[str, Gpu], report: Report) -> tuple[list[Row], list[Row]]:
    """Offers with sources by key; memory and parts that contradict the row itself are corrected and reported."""
    keys: dict[str, str] = {}
    rows = []
    for source in raw:
        text = source["source"]
        keys.setdefault(
            text, f"{source['provider']}-{sum(k.startswith(source['provider'] + '-') for k in keys.values()) + 1}"
        )
        row = {
            "provider": source["provider"],
            "instance_type": source["instance_type"],
            "region": "" if source["region"] in NO_REGION else source["region"],
            "gpu_id": source["gpu_id"],
            "gpu_family": source["gpu_name"],
            "gpu_count": _gpu_count(source),
            "gpu_memory_gb_each": source["gpu_memory_gb_each"],
            "vgpu": source["vgpu"],
            "vcpus": source["vcpus"],
            "memory_gb": source["memory_gb"],
            "price_per_h": source["price_native"],
            "spot_price_per_h": source["spot_price_usd_per_hour"],
            "currency": source["currency"],
            "price_basis": source["price_basis"],
            "source": keys[text],
            "snapshot_date": source["snapshot_date"],
        }
        if source["region"] == "all(list price)":
            row["price_basis"] = "same list price in every region of the file; not availability"
        if row["vgpu"] == "0":
            _correct_memory_and_part(row, gpus, report)
        rows.append(row)
    sources = [{"key": key, "source": text, **_licence(text)} for text, key in keys.items()]
    return rows, sources


def judged(rows: list[Row]) -> list[Row]:
    """The offers with the verdict of the quality rules."""
    places = Places({}, {}, {})  # what is joined does not matter to the rules
    offers = screen(offer_of_row([row[name] for name in OFFER_COLUMNS], "", places) for row in rows)
    return [{**row, "suspect": offer.suspect or ""} for row, offer in zip(rows, offers, strict=True)]


def normal_mig(raw: list[Row], report: Report) -> list[Row]:
    """MIG profiles; a model without a part of ours stays, with no gpu_ids."""
    rows = []
    for source in raw:
        row = {name: source.get(name, "") for name in MIG_COLUMNS}
        row["source_date"] = ""  # the documents carry no day
        if not source["gpu_ids"]:
            report.changed(
                "mig_profiles",
                f"{source['gpu_model']} {source['profile']}",
                "gpu_ids",
                "",
                "",
                "no such part in the catalogue",
            )
        rows.append(row)
    return rows


def normal_layouts(raw: list[Row]) -> list[Row]:
    """Maximal MIG layouts: enumerated from the placement rules, so the rules are their source."""
    return [
        {
            **{name: source.get(name, "") for name in LAYOUT_COLUMNS},
            "source": "enumerated from the placement rules in README.md; the 19 maximal 8-slice layouts agree with NVIDIA's table",
            "source_date": COMPILED_ON,
        }
        for source in raw
    ]


def normal_links(raw: list[Row], offers: list[Row], report: Report) -> list[Row]:
    """Links by exact instance type: a row for a family (``n1-standard-*+T4``) becomes one row per offered type."""
    rows = []
    for source in raw:
        row = {
            "provider": source["provider"], "instance_type": source["instance_type"], "gpu_id": source["gpu_id"],
            "intra_node_link": source["intra_node_link"], "nvlink_gb_per_s": source["nvlink_gbs_bidir_per_gpu"],
            "network_gbps": source["network_gbps"], "rdma": source["rdma"], "source": source["source"],
            "evidence": source["evidence"], "compiled_on": COMPILED_ON,
        }  # fmt: skip
        if "*" not in row["instance_type"]:
            rows.append(row)
            continue
        rows.extend(_expanded(row, offers, report))
    return rows


def network_links(specs: list[Row], links: list[Row], offers: list[Row], report: Report) -> list[Row]:
    """Network of offered types that only the published specifications state; how their GPUs are linked stays unknown."""
    known = {(row["provider"], row["instance_type"]) for row in links}
    offered = {(row["provider"], row["instance_type"]) for row in offers}
    rows: dict[tuple[str, str], Row] = {}
    for spec in specs:
        key = (spec["provider"], spec["instance_type"])
        if spec["network_gbps"] and key in offered - known and key not in rows:
            rows[key] = {
                "provider": key[0],
                "instance_type": key[1],
                "gpu_id": "",
                "intra_node_link": "",
                "nvlink_gb_per_s": "",
                "network_gbps": spec["network_gbps"],
                "rdma": "",
                "source": spec["source"],
                "evidence": "network as published in the specification; GPU link not stated",
                "compiled_on": COMPILED_ON,
            }
    report.changed(
        "interconnect", "-", "network_gbps", "", f"{len(rows)} types", "added from the published specifications"
    )
    return [rows[key] for key in sorted(rows)]


def normal_spot(raw: list[Row]) -> list[Row]:
    """AWS spot statistics."""
    return [
        {
            "region": row["region"],
            "instance_type": row["instance_type"],
            "saving_pct": row["spot_savings_pct_vs_on_demand"],
            "interruption": row["interruption_range_monthly"],
            "source": row["source"],
            "snapshot_date": row["snapshot_date"],
        }
        for row in raw
    ]


def normal_specs(raw: list[Row]) -> list[Row]:
    """Instance types of Chinese clouds, as published."""
    renamed = {"gpu_as_published": "gpu_name_as_published", "price_per_h": "price_native_per_hour"}
    return [{name: row[renamed.get(name, name)] for name in SPEC_COLUMNS} for row in raw]


def _correct_memory_and_part(row: Row, gpus: dict[str, Gpu], report: Report) -> None:
    """Some lists give the memory of all GPUs together; some parts were read from that sum or from a shortened name.

    The instance type of a marketplace names the part (``4x-RTX_4060_Ti-32-65536``): it decides, with the memory per GPU.
    """
    name = f"{row['provider']} {row['instance_type']} {row['region']}".strip()
    memory_gb, count = float(row["gpu_memory_gb_each"]), float(row["gpu_count"])
    label_gb = (
        gpus[row["gpu_id"]].memory_gb
        if row["gpu_id"]
        else min(gpu.memory_gb for gpu in gpus.values() if gpu.family == row["gpu_family"])
    )
    if row["provider"] == "vast" and "x-" in row["instance_type"]:
        per_gpu = memory_gb / count
        label = (
            row["instance_type"]
            .split("x-", 1)[1]
            .split("-32-")[0]
            .replace("S_Ti", "_Ti_Super")
            .replace("6000Ada", "6000 Ada")
        )
        try:
            gpu_id, family = part_of_label(label.replace("_", " "), per_gpu, gpus)
        except UnknownName:
            gpu_id, family = row["gpu_id"] or None, row["gpu_family"]
        if family != row["gpu_family"] or (gpu_id or "") != row["gpu_id"]:
            report.changed(
                "offers",
                name,
                "gpu",
                row["gpu_id"] or row["gpu_family"],
                gpu_id or family,
                "the instance type names another part, or its form, and the memory per GPU agrees",
            )
            row["gpu_id"], row["gpu_family"] = gpu_id or "", family
        if count > 1:
            row["gpu_memory_gb_each"] = f"{per_gpu:g}"
            report.changed(
                "offers",
                name,
                "gpu_memory_gb_each",
                f"{memory_gb:g}",
                f"{per_gpu:g}",
                "the list gives the memory of all GPUs together",
            )
    elif abs(memory_gb / label_gb - 1) > 0.1:
        report.changed(
            "offers",
            name,
            "gpu_memory_gb_each",
            f"{memory_gb:g}",
            f"{memory_gb:g}",
            f"kept, but the part has {label_gb:g} GB",
        )


def _expanded(row: Row, offers: list[Row], report: Report) -> list[Row]:
    """One row per offered instance type that a family pattern matches."""
    prefix, _, suffix = row["instance_type"].partition("*+")
    types = sorted({
        (offer["instance_type"], offer["gpu_count"])
        for offer in offers
        if offer["provider"] == row["provider"] and offer["instance_type"].startswith(prefix) and offer["instance_type"].endswith(f"x{suffix}")
    })  # fmt: skip
    report.changed(
        "interconnect",
        row["instance_type"],
        "instance_type",
        row["instance_type"],
        f"{len(types)} types",
        "one row per offered type; one GPU has no link",
    )
    return [
        {
            **row,
            "instance_type": name,
            "intra_node_link": _link_of(row, count),
            "nvlink_gb_per_s": row["nvlink_gb_per_s"] if float(count) > 1 else "",
        }
        for name, count in types
    ]


def _link_of(row: Row, count: str) -> str:
    if float(count) <= 1:
        return "none"
    return "NVLink" if row["intra_node_link"].startswith("NVLink") else row["intra_node_link"]


def _gpu_count(source: Row) -> str:
    """Fractions as exact as their denominator: 0.333 and 0.3333 are both a third."""
    value = float(source["gpu_count"])
    if source["vgpu"] != "1" or value >= 1:
        return source["gpu_count"]
    denominator = round(1 / value)
    return f"{1 / denominator:.6g}"


def _licence(text: str) -> Row:
    """Licence and attribution of a source, as stated where it was read."""
    known = (
        (
            "SpareCores/sc-data-dumps",
            "Apache-2.0 (prices); CC BY-SA 4.0 (specifications)",
            "Instance specifications: Spare Cores, sc-data-dumps, CC BY-SA 4.0",
        ),
        ("aws/karpenter-provider-aws", "Apache-2.0", ""),
        ("tedivm/ec2details", "MIT", ""),
        ("Azure/karpenter-provider-azure", "Apache-2.0", ""),
        ("cloudpilot-ai/", "Apache-2.0", ""),
        ("anycloud-sh/catalog", "none stated (facts only)", ""),
        (
            "skypilot-org/skypilot-catalog",
            "no licence file seen (SkyPilot itself is Apache-2.0); facts transcribed by hand",
            "",
        ),
        ("toolshedlabs-hash/gpu-price-feed", "MIT (stated in its README)", ""),
        ("Tencent Cloud", "vendor document (facts only)", ""),
    )
    for prefix, licence, attribution in known:
        if prefix in text:
            return {"licence": licence, "attribution": attribution}
    raise SystemExit(f"no licence known for the source {text!r}: add it to _licence")


def _gpus(rows: list[list[str]]) -> dict[str, Gpu]:
    """The parts as the package will see them, from the rows about to be written."""
    usable = _usable_memory()
    return {row[0]: _gpu(row, usable) for row in (*rows, *read_table(DATA_DIR / "gpus_more.csv", GPU_COLUMNS))}


def _read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(path: Path, columns: tuple[str, ...], rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _print_report(report: Report) -> None:
    counts: dict[tuple[str, str, str], int] = {}
    for table, _, field, _, _, why in report.rows:
        counts[(table, field, why)] = counts.get((table, field, why), 0) + 1
    print(f"corrections.csv: {len(report.rows)} rows", file=sys.stderr)
    for (table, field, why), count in sorted(counts.items()):
        print(f"  {count:4} {table}.{field}: {why}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
