"""Every spelling of a GPU name in use leads to the right parts, and a typo to a suggestion."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.names import parse_name, part_of_label, resolve, resolve_part, suggest
from gpurig.errors import InputError, UnknownName

if TYPE_CHECKING:
    from pathlib import Path

    from gpurig.model.gpu import Gpu

A100 = ("A100-PCIE-40GB", "A100-SXM4-40GB", "A100-PCIE-80GB", "A100-SXM4-80GB")

SPELLINGS = [
    # what people type
    ("a100", A100),
    ("A100-40GB", A100[:2]),
    ("a100 80gb sxm", ("A100-SXM4-80GB",)),
    ("A100 PCIe", (A100[0], A100[2])),
    ("h100", ("H100-PCIE-80GB", "H100-SXM5-80GB", "H100-NVL-94GB")),
    ("RTX3090", ("RTX3090",)),
    ("3090", ("RTX3090",)),
    ("3090ti", ("RTX3090Ti",)),
    ("A6000", ("RTXA6000",)),
    ("rtx 6000 ada", ("RTX6000Ada",)),
    ("Quadro RTX 6000", ("RTX6000",)),
    ("RTX PRO 6000", ("RTXPRO6000-Server", "RTXPRO6000-Workstation", "RTXPRO6000-MaxQ")),
    ("H100-80GB", ("H100-PCIE-80GB", "H100-SXM5-80GB")),
    # what drivers and clouds say
    ("NVIDIA A100-SXM4-80GB", ("A100-SXM4-80GB",)),
    ("NVIDIA A100 80GB PCIe", ("A100-PCIE-80GB",)),
    ("NVIDIA H100 80GB HBM3", ("H100-SXM5-80GB",)),
    ("NVIDIA H100 PCIe", ("H100-PCIE-80GB",)),
    ("NVIDIA H100 NVL", ("H100-NVL-94GB",)),
    ("NVIDIA GH200 480GB", ("GH200-96GB",)),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ("RTXPRO6000-Server",)),
    ("NVIDIA RTX 6000 Ada Generation", ("RTX6000Ada",)),
    ("Tesla V100-SXM2-16GB", ("V100-SXM2-16GB",)),
    ("Tesla P100-PCIE-16GB", ("P100-PCIE-16GB",)),
    ("Tesla T4", ("T4",)),
    ("nvidia-tesla-t4", ("T4",)),
    ("nvidia-h100-80gb", ("H100-PCIE-80GB", "H100-SXM5-80GB")),
    ("AMD Instinct MI300X", ("MI300X",)),
    ("H100-MEGA-80GB", ("H100-SXM5-80GB",)),
    ("GeForce RTX 3090", ("RTX3090",)),
    # what benchmark tables say
    ("A100", A100),
    ("A100 (mem 1215 MHz)", A100),
    ("A100-40GB (form not stated)", A100[:2]),
    ("A100-80GB (form not stated)", A100[2:]),
    ("A100-PCIe-40GB", ("A100-PCIE-40GB",)),
    ("V100-SXM2 (memory size not stated)", ("V100-SXM2-16GB", "V100-SXM2-32GB")),
    ("V100-SXM3-32GB", ("V100-SXM3-32GB",)),
    ("V100-16GB", ("V100-PCIE-16GB", "V100-SXM2-16GB")),
    ("GeForce GTX 1080 Ti", ("GTX1080Ti",)),
    ("GeForce RTX 2070 with Max-Q Design", ("RTX2070-MaxQ",)),
    ("GeForce RTX 2080 with Max-Q Design", ("RTX2080-MaxQ",)),
    ("GeForce RTX 2080 Super with Max-Q Design", ("RTX2080Super-MaxQ",)),
    ("GeForce RTX 2080 Ti", ("RTX2080Ti",)),
    ("GeForce RTX 3080", ("RTX3080",)),
    ("GeForce RTX 3080 Laptop GPU", ("RTX3080-Laptop",)),
    ("GeForce RTX 3080 Ti Laptop GPU", ("RTX3080Ti-Laptop",)),
    ("Quadro RTX 8000", ("RTX8000",)),
    ("RTX A5500", ("RTXA5500",)),
    ("TITAN RTX", ("TITANRTX",)),
    ("TITAN Xp", ("TITANXp",)),
    ("P100", ("P100-PCIE-16GB", "P100-SXM2-16GB")),
    ("MI250", ("MI250",)),
]


@pytest.mark.parametrize(("name", "parts"), SPELLINGS, ids=[name for name, _ in SPELLINGS])
def test_a_spelling_means_these_parts(name: str, parts: tuple[str, ...], gpus: dict[str, Gpu]) -> None:
    assert tuple(gpu.gpu_id for gpu in resolve(name, gpus)) == parts


@pytest.mark.parametrize("gpu_id", load_gpus())
def test_every_part_is_found_by_its_own_name(gpu_id: str, gpus: dict[str, Gpu]) -> None:
    assert resolve_part(gpu_id, gpus).gpu_id == gpu_id


@given(
    gpu_id=st.sampled_from(sorted(load_gpus())),
    separator=st.sampled_from(["-", " ", "_", "/"]),
    upper=st.booleans(),
    maker=st.booleans(),
)
def test_case_and_separators_do_not_matter(gpu_id: str, separator: str, upper: bool, maker: bool) -> None:
    gpus = load_gpus()
    name = gpu_id.replace("-", separator)
    name = ("NVIDIA " if maker else "") + (name.upper() if upper else name.lower())
    assert gpu_id in {gpu.gpu_id for gpu in resolve(name, gpus)}


@pytest.mark.parametrize(
    ("typo", "suggestion"),
    [
        ("A10O", "A10"),
        ("rtx3900", "RTX3090"),
        ("A100-60GB", "A100-PCIE-40GB"),
        ("H10", "H100-80GB"),
        ("T5", "T4"),
        ("L4OS", "L40S"),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(typo: str, suggestion: str, gpus: dict[str, Gpu]) -> None:
    with pytest.raises(UnknownName) as caught:
        resolve(typo, gpus)
    assert suggestion in caught.value.suggestions
    assert caught.value.exit_code == 2


def test_nonsense_gets_no_suggestion(gpus: dict[str, Gpu]) -> None:
    assert suggest("zzzzzzzz", gpus) == ()


def test_one_part_is_demanded_and_the_choices_listed(gpus: dict[str, Gpu]) -> None:
    with pytest.raises(InputError) as caught:
        resolve_part("A100", gpus)
    assert [detail.split(":")[0] for detail in caught.value.details] == list(A100)


@pytest.mark.parametrize(
    ("label", "memory_gb", "expected"),
    [
        ("Tesla V100", 16.0, (None, "V100-16GB")),
        ("H100 SXM", 79.65, ("H100-SXM5-80GB", "H100-80GB")),
        ("A100 SXM4", 40.0, ("A100-SXM4-40GB", "A100-40GB")),
        ("L40S", 45.0, ("L40S", "L40S")),
    ],
    ids=["form stays open", "driver figure", "memory decides", "usable figure"],
)
def test_memory_narrows_a_label(
    label: str, memory_gb: float, expected: tuple[str | None, str], gpus: dict[str, Gpu]
) -> None:
    assert part_of_label(label, memory_gb, gpus) == expected


def test_a_label_that_leaves_the_memory_open_is_refused(gpus: dict[str, Gpu]) -> None:
    with pytest.raises(UnknownName, match="A100"):
        part_of_label("A100", None, gpus)


@given(st.text())
def test_parsing_never_fails(name: str) -> None:
    parse_name(name)


def test_every_label_of_the_benchmark_table_resolves(raw_data: Path, gpus: dict[str, Gpu]) -> None:
    with (raw_data / "benchmarks" / "all.csv").open(newline="") as file:
        labels = {row["gpu"] for row in csv.DictReader(file)} - {""}
    assert len(labels) > 40
    unknown = []
    for label in labels:
        try:
            resolve(label, gpus)
        except UnknownName:
            unknown.append(label)
    assert unknown == []
