"""MIG profiles and layouts, from the packaged tables."""

from __future__ import annotations

from functools import cache

from gpurig.catalog.files import DATA_DIR, optional_date, optional_float, optional_int, read_table
from gpurig.model.mig import MigLayout, MigProfile

MIG_COLUMNS = (
    "gpu_model", "gpu_ids", "profile", "profile_id", "compute_slices", "compute_slices_total", "memory_slices",
    "memory_slices_total", "memory_gb_nominal", "memory_gib_reported", "max_instances", "placement_starts",
    "placement_size", "sm_count", "copy_engines", "exclusive_rule", "placement_evidence", "source", "source_date",
)  # fmt: skip
LAYOUT_COLUMNS = (
    "layout_family", "profiles", "compute_slices_used", "distinct_placements", "example_placement", "source",
    "source_date",
)  # fmt: skip


@cache
def load_mig_profiles() -> tuple[MigProfile, ...]:
    """Every MIG profile of every GPU model that has MIG."""
    return tuple(_profile(row) for row in read_table(DATA_DIR / "mig_profiles.csv", MIG_COLUMNS))


@cache
def load_mig_layouts() -> tuple[MigLayout, ...]:
    """Every maximal set of MIG instances per layout family."""
    return tuple(
        MigLayout(family, tuple(profiles.split(" + ")), int(used), int(count), example, source, optional_date(day))
        for family, profiles, used, count, example, source, day in read_table(
            DATA_DIR / "mig_layouts.csv", LAYOUT_COLUMNS
        )
    )


def mig_profiles_of(gpu_id: str) -> tuple[MigProfile, ...]:
    """The MIG profiles of one part, in the order of the vendor's table; empty where the part has no MIG."""
    return tuple(profile for profile in load_mig_profiles() if gpu_id in profile.gpu_ids)


def _profile(row: list[str]) -> MigProfile:
    """One row of MIG_COLUMNS as a profile."""
    cell = dict(zip(MIG_COLUMNS, row, strict=True))
    return MigProfile(
        gpu_model=cell["gpu_model"],
        gpu_ids=tuple(cell["gpu_ids"].split()),
        name=cell["profile"],
        profile_id=optional_int(cell["profile_id"]),
        compute_slices=optional_int(cell["compute_slices"]),
        compute_slices_total=optional_int(cell["compute_slices_total"]),
        memory_slices=optional_int(cell["memory_slices"]),
        memory_slices_total=optional_int(cell["memory_slices_total"]),
        memory_gb_nominal=float(cell["memory_gb_nominal"]),
        usable_memory_gib=optional_float(cell["memory_gib_reported"]),
        max_instances=optional_int(cell["max_instances"]),
        placement_starts=tuple(int(start) for start in cell["placement_starts"].split()),
        placement_size=optional_int(cell["placement_size"]),
        sm_count=optional_int(cell["sm_count"]),
        copy_engines=optional_int(cell["copy_engines"]),
        exclusive_rule=cell["exclusive_rule"],
        evidence=cell["placement_evidence"],
        source=cell["source"],
        source_date=optional_date(cell["source_date"]),
    )
