"""Contract of the packaged tables: complete, consistent, each row with its source and date."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpurig.catalog import gpus as gpu_tables
from gpurig.catalog.files import DATA_DIR, read_table
from gpurig.catalog.gpus import load_gpus, parts_of_family
from gpurig.catalog.mig import load_mig_layouts, load_mig_profiles, mig_profiles_of
from gpurig.catalog.offers import load_instance_specs, load_offers, load_places, packaged_offers
from gpurig.model.gpu import DTYPES

if TYPE_CHECKING:
    from gpurig.model.gpu import Gpu

# table -> column of the source, column of the date (empty cells allowed: the source gives none), dates all present
TABLES = {
    "gpus.csv": ("source", "compiled_on", True),
    "gpus_more.csv": ("source", "compiled_on", True),
    "gpu_aliases.csv": ("source", "compiled_on", True),
    "usable_memory.csv": ("source", "date", False),
    "mig_profiles.csv": ("source", "source_date", False),
    "mig_layouts.csv": ("source", "source_date", True),
    "interconnect.csv": ("source", "compiled_on", True),
    "spot_aws.csv": ("source", "snapshot_date", True),
    "regions.csv": ("source", "compiled_on", True),
    "instances_china.csv": ("source", "snapshot_date", False),
    "exchange_rates.csv": ("source", "date", True),
    "offers.csv": ("source", "snapshot_date", False),
}
NO_ROW_SOURCE = {"sources.csv", "corrections.csv"}  # a list of sources, and a list of changes


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA_DIR / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_a_source_and_a_date_or_an_explicit_empty_one(name: str) -> None:
    source, day, all_dated = TABLES[name]
    rows = _rows(name)
    assert rows
    for number, row in enumerate(rows, 2):
        assert row[source].strip(), f"{name}:{number} has no source"
        if row[day]:
            assert date.fromisoformat(row[day]) <= date(2026, 12, 1), f"{name}:{number}"
        else:
            assert not all_dated, f"{name}:{number} has no date"


def test_every_packaged_table_is_under_this_contract() -> None:
    assert {path.name for path in DATA_DIR.glob("*.csv")} == set(TABLES) | NO_ROW_SOURCE


def test_every_source_states_its_licence_and_share_alike_keeps_the_attribution() -> None:
    rows = _rows("sources.csv")
    assert all(row["licence"] for row in rows)
    share_alike = [row for row in rows if "CC BY-SA" in row["licence"]]
    assert share_alike
    assert all("Spare Cores" in row["attribution"] for row in share_alike)
    notice = (DATA_DIR / "NOTICE.md").read_text(encoding="utf-8")
    assert "CC BY-SA 4.0" in notice
    assert "Spare Cores" in notice


def test_the_catalogue_has_all_rows() -> None:
    offers = load_offers()
    assert len(offers) == 3186
    assert len({offer.provider for offer in offers}) == 20
    assert {offer.currency.value for offer in offers} == {"USD", "CNY"}
    assert len(_rows("gpus.csv")) == 65
    assert len(load_mig_profiles()) == 104
    assert len(load_mig_layouts()) == 60
    assert len(load_instance_specs()) == 266


def test_offers_name_parts_and_families_that_exist(gpus: dict[str, Gpu]) -> None:
    for offer in packaged_offers():
        if offer.gpu_id is not None:
            assert gpus[offer.gpu_id].family == offer.gpu_family, offer.key
        else:
            assert parts_of_family(offer.gpu_family), offer.key


def test_memory_of_an_offer_is_that_of_its_part(gpus: dict[str, Gpu]) -> None:
    for offer in packaged_offers():
        label_gb = min(part.memory_gb for part in parts_of_family(offer.gpu_family))
        label_gb = gpus[offer.gpu_id].memory_gb if offer.gpu_id else label_gb
        if offer.vgpu:
            assert 0 < offer.gpu_memory_gb_each <= label_gb, offer.key
        else:
            assert offer.gpu_memory_gb_each == pytest.approx(label_gb, rel=0.07), offer.key


def test_usable_memory_is_below_the_label_and_says_where_it_is_from(gpus: dict[str, Gpu]) -> None:
    for gpu in gpus.values():
        assert 0.85 * gpu.memory_gb < gpu.usable_memory_gib < gpu.memory_gb, gpu.gpu_id
        assert re.match(r"(measured|derived): ", gpu.usable_memory_origin), gpu.gpu_id


@pytest.mark.parametrize(
    ("gpu_id", "usable_gib"),
    [("A10G", 22.3), ("L4", 22.3), ("L40S", 44.53), ("B200-SXM-180GB", 179), ("A100-SXM4-40GB", 39.5), ("T4", 14.56)],
)
def test_measured_usable_memory_is_used(gpu_id: str, usable_gib: float, gpus: dict[str, Gpu]) -> None:
    assert gpus[gpu_id].usable_memory_gib == usable_gib
    assert gpus[gpu_id].usable_memory_origin.startswith("measured")


@pytest.mark.parametrize(
    ("gpu_id", "fact", "value"),
    [
        ("A10G", "sm_count", 80),
        ("L4", "sm_count", 58),
        ("L40S", "l2_mb", 96),
        ("L40S", "tdp_w", 350),
        ("A100-PCIE-80GB", "l2_mb", 40),
        ("V100-PCIE-16GB", "tdp_w", 250),
        ("A30", "memory_type", "HBM2"),
        ("T4", "cuda_cores", 2560),
        ("T4", "pcie_gen", 3.0),
        ("RTX2080Ti", "fp16_tflops", 53.8),
    ],
)
def test_facts_that_other_tables_get_wrong(gpu_id: str, fact: str, value: object, gpus: dict[str, Gpu]) -> None:
    assert getattr(gpus[gpu_id], fact) == value


@pytest.mark.parametrize(
    ("gpu_id", "supported"),
    [
        ("K80", set()),
        ("P40", {"int8"}),
        ("P100-PCIE-16GB", {"fp16"}),
        ("V100-SXM2-16GB", {"fp16", "int8"}),
        ("T4", {"fp16", "int8"}),
        ("A100-SXM4-40GB", {"fp16", "bf16", "tf32", "int8"}),
        ("RTX4060", {"fp16", "bf16", "tf32", "fp8", "int8"}),
        ("L4", {"fp16", "bf16", "tf32", "fp8", "int8"}),
        ("MI210", {"fp16", "bf16", "int8"}),
    ],
)
def test_dtypes_in_hardware(gpu_id: str, supported: set[str], gpus: dict[str, Gpu]) -> None:
    gpu = gpus[gpu_id]
    assert {dtype for dtype in DTYPES if gpu.supports(dtype)} - {"fp32", "fp64"} == supported


def test_peaks_are_those_of_cores_and_clock(gpus: dict[str, Gpu]) -> None:
    """FP32 = 2 x cores x boost, where a row has all three (NVIDIA; datasheets round, H100 is quoted at another clock)."""
    checked = 0
    for gpu in gpus.values():
        if gpu.vendor == "NVIDIA" and gpu.cuda_cores and gpu.boost_mhz and gpu.fp32_tflops:
            computed = 2 * gpu.cuda_cores * gpu.boost_mhz / 1e6
            assert gpu.fp32_tflops == pytest.approx(computed, rel=0.12), gpu.gpu_id
            checked += 1
    assert checked > 50


def test_a_part_that_nobody_rents_is_marked_and_its_figures_said_to_be_unopened() -> None:
    rows = _rows("gpus_more.csv")
    assert all(row["notes"].startswith("not re-opened") for row in rows)
    rented = {offer.gpu_family for offer in packaged_offers()}
    for row in rows:
        assert (row["rentable"] == "1") == (row["family"] in rented and row["gpu_id"] != "V100-SXM3-32GB"), row[
            "gpu_id"
        ]


def test_mig_placements_stay_on_the_card() -> None:
    for profile in load_mig_profiles():
        if profile.placement_size is not None and profile.memory_slices_total is not None:
            for start in profile.placement_starts:
                assert start + profile.placement_size <= profile.memory_slices_total, profile
        if profile.usable_memory_gib is not None:
            assert 0.88 <= profile.usable_memory_gib / profile.memory_gb_nominal <= 1


def test_safe_memory_of_a_mig_profile_is_never_above_what_was_reported(gpus: dict[str, Gpu]) -> None:
    for profile in load_mig_profiles():
        for gpu_id in profile.gpu_ids:
            usable = gpus[gpu_id].usable_memory_gib
            guess = replace(profile, usable_memory_gib=None).safe_memory_gib(usable)
            reported = profile.usable_memory_gib
            if reported is None:
                assert profile.safe_memory_gib(usable) == guess < profile.memory_gb_nominal
            elif profile.memory_slices != profile.memory_slices_total:
                assert guess <= reported == profile.safe_memory_gib(usable), profile


def test_mig_profiles_of_a_part() -> None:
    assert [profile.name for profile in mig_profiles_of("A30")] == [
        "1g.6gb",
        "1g.6gb+me",
        "2g.12gb",
        "2g.12gb+me",
        "4g.24gb",
    ]
    assert mig_profiles_of("T4") == ()


def test_links_name_types_and_parts_that_are_offered(gpus: dict[str, Gpu]) -> None:
    offered = {(offer.provider, offer.instance_type): offer for offer in packaged_offers()}
    joined = 0
    for key, link in load_places().links.items():
        assert link.gpu_id is None or link.gpu_id in gpus
        if key in offered and link.gpu_id and offered[key].gpu_id:
            assert offered[key].gpu_id == link.gpu_id, key
            joined += 1
    assert joined > 80


def test_links_and_spot_statistics_are_joined() -> None:
    offers = {(offer.instance_type, offer.region): offer for offer in packaged_offers() if offer.provider == "aws"}
    alibaba = {offer.instance_type: offer for offer in packaged_offers() if offer.provider == "alibaba"}
    assert sum(offer.network_gbps is not None for offer in alibaba.values()) > 40
    p4d = offers["p4d.24xlarge", "us-east-1"]
    assert (p4d.intra_node_link, p4d.nvlink_gb_per_s, p4d.network_gbps, p4d.rdma) == ("NVSwitch", 600, 400, "EFA x4")
    g4dn = offers["g4dn.xlarge", "us-east-1"]
    assert g4dn.spot_saving_pct is not None
    assert g4dn.spot_interruption is not None
    assert g4dn.spot is not None
    assert g4dn.spot.estimated
    assert (g4dn.country, g4dn.continent) == ("US", "NA")


def test_a_damaged_installation_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "gpus.csv"
    path.write_text("gpu_id,name\nT4,T4\n")
    with pytest.raises(ValueError, match="expected the columns"):
        read_table(path, gpu_tables.GPU_COLUMNS)


def test_the_packaged_tables_are_made_from_the_raw_ones(raw_data: Path, tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "normalise_catalogue.py"
    done = subprocess.run(
        [sys.executable, str(script), str(raw_data / "catalog"), "--out", str(tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "71 rows" in done.stderr
    made = sorted(path.name for path in tmp_path.iterdir())
    assert len(made) == 9
    for name in made:
        assert (tmp_path / name).read_bytes() == (DATA_DIR / name).read_bytes(), name


def test_load_gpus_gives_one_part_per_row() -> None:
    assert len(load_gpus()) == len(_rows("gpus.csv")) + len(_rows("gpus_more.csv"))
