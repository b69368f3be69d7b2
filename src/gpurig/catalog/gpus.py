"""Hardware facts of GPUs, from the packaged tables."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from gpurig.catalog.files import DATA_DIR, optional_date, optional_float, optional_int, read_table, user_data_dir
from gpurig.model.gpu import Gpu

GPU_COLUMNS = (
    "gpu_id", "family", "vendor", "architecture", "chip", "compute_capability", "isa", "cuda_cores", "sm_count",
    "tensor_cores", "memory_gb", "memory_type", "memory_bandwidth_gb_per_s", "l2_mb", "boost_mhz", "fp64_tflops",
    "fp64_tensor_tflops", "fp32_tflops", "tf32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops", "int8_tops",
    "pcie_gen", "pcie_lanes", "nvlink_gb_per_s", "tdp_w", "mig_max_instances", "source", "notes", "crosscheck",
    "compiled_on", "rentable",
)  # fmt: skip
USABLE_COLUMNS = ("gpu_ids", "usable_gib", "fraction_of_label", "origin", "source", "date")


@cache
def load_gpus() -> dict[str, Gpu]:
    """All known parts by `gpu_id`: those of rentable offers, those known for published measurements, the user's own.

    Raises:
        BadFile: the user's card file (GPURIG_CARDS, or cards.toml in the user's folder) has faults.
    """
    usable = _usable_memory()
    rows = [row for name in ("gpus.csv", "gpus_more.csv") for row in read_table(DATA_DIR / name, GPU_COLUMNS)]
    known = {row[0]: _gpu(row, usable) for row in rows}
    own = own_cards_file()
    if own is not None:
        from gpurig.catalog.own_cards import read_own_cards

        known |= read_own_cards(own, known)
    return known


def own_cards_file() -> Path | None:
    """Where the user describes cards of their own: GPURIG_CARDS, else cards.toml in the user's folder if it is there."""
    named = os.environ.get("GPURIG_CARDS")
    path = Path(named) if named else user_data_dir() / "cards.toml"
    return path if named or path.exists() else None


def parts_of_family(family: str) -> tuple[Gpu, ...]:
    """The rentable parts that an offer of this family may be, where the provider does not state the form."""
    return tuple(gpu for gpu in load_gpus().values() if gpu.family == family and gpu.rentable)


def _usable_memory() -> dict[str, tuple[float | None, float | None, str]]:
    """gpu_id (or ``*``) to (usable GiB, fraction of the label, origin as text)."""
    rules: dict[str, tuple[float | None, float | None, str]] = {}
    for ids, usable_gib, fraction, origin, source, day in read_table(DATA_DIR / "usable_memory.csv", USABLE_COLUMNS):
        text = f"{origin}: {source}" + (f", {day}" if day else "")
        for gpu_id in ids.split():
            rules[gpu_id] = (optional_float(usable_gib), optional_float(fraction), text)
    return rules


def _gpu(row: list[str], usable: dict[str, tuple[float | None, float | None, str]]) -> Gpu:
    """One row of GPU_COLUMNS as a part."""
    cell = dict(zip(GPU_COLUMNS, row, strict=True))
    number = {name: optional_float(cell[name]) for name in GPU_COLUMNS[14:23]}
    capability = cell["compute_capability"]
    memory_gb = float(cell["memory_gb"])
    usable_gib, fraction, origin = usable.get(cell["gpu_id"], usable["*"])
    if usable_gib is None:
        usable_gib = round(memory_gb * (fraction or 1.0), 2)
    return Gpu(
        gpu_id=cell["gpu_id"],
        family=cell["family"],
        vendor=cell["vendor"],
        architecture=cell["architecture"],
        chip=cell["chip"] or None,
        compute_capability=_capability(capability),
        isa=cell["isa"] or None,
        cuda_cores=optional_int(cell["cuda_cores"]),
        sm_count=optional_int(cell["sm_count"]),
        tensor_cores=optional_int(cell["tensor_cores"]),
        memory_gb=memory_gb,
        usable_memory_gib=usable_gib,
        usable_memory_origin=origin,
        memory_type=cell["memory_type"] or None,
        memory_bandwidth_gb_per_s=optional_float(cell["memory_bandwidth_gb_per_s"]),
        l2_mb=optional_float(cell["l2_mb"]),
        boost_mhz=number["boost_mhz"],
        fp64_tflops=number["fp64_tflops"],
        fp64_tensor_tflops=number["fp64_tensor_tflops"],
        fp32_tflops=number["fp32_tflops"],
        tf32_tflops=number["tf32_tflops"],
        fp16_tflops=number["fp16_tflops"],
        bf16_tflops=number["bf16_tflops"],
        fp8_tflops=number["fp8_tflops"],
        int8_tops=number["int8_tops"],
        pcie_gen=optional_float(cell["pcie_gen"]),
        pcie_lanes=optional_int(cell["pcie_lanes"]),
        nvlink_gb_per_s=optional_float(cell["nvlink_gb_per_s"]),
        tdp_w=optional_float(cell["tdp_w"]),
        mig_max_instances=int(cell["mig_max_instances"]),
        source=cell["source"],
        notes=cell["notes"],
        crosscheck=cell["crosscheck"],
        compiled_on=optional_date(cell["compiled_on"]),
        rentable=cell["rentable"] == "1",
    )


def _capability(text: str) -> tuple[int, int] | None:
    """``8.6`` as (8, 6); empty as None."""
    if not text:
        return None
    major, _, minor = text.partition(".")
    return int(major), int(minor)
