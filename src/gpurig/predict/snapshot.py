"""The step's memory in the format of torch.cuda.memory._snapshot(), for pytorch.org/memory_viz: of a run that never was."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpurig.model.trace import StepTrace

_Value: TypeAlias = "int | str | list[_Value] | dict[str, _Value]"
_BASE_ADDRESS = 0x7F0000000000


def memory_snapshot(trace: StepTrace) -> dict[str, _Value]:
    """Allocation history of the whole trace: an object to be pickled.

    Addresses are invented (each storage has one of its own); sizes and order are those of the trace. Frames name the line
    of the user's code where it is known, else the kind of storage.
    """
    addresses: dict[int, int] = {}
    top = _BASE_ADDRESS
    history: list[_Value] = []
    for time_us, (sign, index, _) in enumerate(trace.events):
        storage = trace.storages[index]
        if sign > 0:
            addresses[index] = top
            top += -(-storage.num_bytes // 512) * 512
        event: dict[str, _Value] = {
            "action": "alloc" if sign > 0 else "free_completed",
            "addr": addresses[index],
            "size": storage.num_bytes,
            "stream": 0,
            "time_us": time_us,
            "frames": _frames(trace, index),
        }
        history.append(event)
    live = {i for s, i, _ in trace.events if s > 0} - {i for s, i, _ in trace.events if s < 0}
    segments: list[_Value] = [_segment(trace, index, addresses[index]) for index in sorted(live)]
    return {"segments": segments, "device_traces": [history], "allocator_settings": {}}


def _frames(trace: StepTrace, index: int) -> list[_Value]:
    storage = trace.storages[index]
    frames: list[_Value] = [{"name": storage.kind.value, "filename": storage.phase.value, "line": 0}]
    if storage.site >= 0:
        site = trace.sites[storage.site]
        frames.append({"name": site.function, "filename": site.file, "line": site.line})
    return frames


def _segment(trace: StepTrace, index: int, address: int) -> dict[str, _Value]:
    size = -(-trace.storages[index].num_bytes // 512) * 512
    block: dict[str, _Value] = {
        "address": address,
        "size": size,
        "requested_size": trace.storages[index].num_bytes,
        "state": "active_allocated",
        "frames": _frames(trace, index),
    }
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": trace.storages[index].num_bytes,
        "stream": 0,
        "segment_type": "large" if size > 1 << 20 else "small",
        "segment_pool_id": [0, 0],
        "is_expandable": 0,
        "frames": [],
        "blocks": [block],
    }
