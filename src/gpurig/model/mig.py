"""MIG: how one GPU is split into instances. None means not known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date  # noqa: TC003 (decoders read the annotations at run time)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One kind of MIG instance of a GPU model.

    Match by (compute_slices, memory_slices), never by name: names differ between drivers and boards.
    """

    gpu_model: str
    gpu_ids: tuple[str, ...]
    name: str  # "1g.5gb"
    profile_id: int | None
    compute_slices: int | None
    compute_slices_total: int | None
    memory_slices: int | None
    memory_slices_total: int | None
    memory_gb_nominal: float  # the figure in the name
    usable_memory_gib: float | None  # as the driver reported it; None: not seen
    max_instances: int | None
    placement_starts: tuple[int, ...]
    placement_size: int | None
    sm_count: int | None
    copy_engines: int | None
    exclusive_rule: str  # "" or why not every instance may be of this profile
    evidence: str  # where the placements were seen
    source: str
    source_date: date | None

    def safe_memory_gib(self, gpu_usable_gib: float) -> float:
        """Usable memory as reported; else a figure that no reported profile falls below.

        All memory of the card: the card's own usable memory. Part of it: 0.91 of its share of that (reported profiles
        have 0.91 to 0.99). Slices not known: 0.88 of the figure in the name (reported ones have 0.88 to 0.99).

        Args:
            gpu_usable_gib: Usable memory of the whole card, 2^30 bytes.
        """
        if self.usable_memory_gib is not None:
            return self.usable_memory_gib
        if self.memory_slices is None or self.memory_slices_total is None:
            return 0.88 * self.memory_gb_nominal
        share = self.memory_slices / self.memory_slices_total
        return gpu_usable_gib * (share if share == 1 else 0.91 * share)


@dataclass(frozen=True, slots=True)
class MigLayout:
    """One maximal set of MIG instances that fits a GPU of a layout family, with one placement of it."""

    layout_family: str
    profiles: tuple[str, ...]  # without memory: "3g", "1g.2xmem"
    compute_slices_used: int
    distinct_placements: int
    example_placement: str  # "3g@0:4 3g@4:4": profile@start:size
    source: str
    source_date: date | None
