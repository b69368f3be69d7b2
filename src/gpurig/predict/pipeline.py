"""The input pipeline: how fast worker processes deliver batches on a given number of cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpurig.model.trace import InputProfile


def input_time_s(profile: InputProfile | None, *, vcpus: int | None, gpus_per_node: int = 1) -> float | None:
    """Time between two batches that the loader of one rank can deliver.

    Workers share the cores of the instance with the ranks, which need one each; more workers than cores deliver no more.
    Without workers the loader runs in the loop, and its time adds to the step (`serial`).

    Args:
        profile: What was timed; None: no loader was seen.
        vcpus: Virtual cores of the instance; None: as many as the workers want.
        gpus_per_node: Ranks on the instance.

    Returns:
        Seconds, or None where nothing was timed.
    """
    if profile is None or profile.batch_time_s is None:
        return None
    workers = max(1, profile.num_workers)
    if vcpus is not None and profile.num_workers > 0:
        workers = min(workers, max(1, vcpus // gpus_per_node - 1))
    return profile.batch_time_s / workers


def is_serial(profile: InputProfile | None) -> bool:
    """Whether loading takes place inside the loop: no worker processes."""
    return profile is not None and profile.num_workers == 0
