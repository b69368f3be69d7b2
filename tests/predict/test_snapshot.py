"""The memory history in the format of torch.cuda.memory._snapshot()."""

from __future__ import annotations

import pickle
from dataclasses import replace

from steps import MIB, StepBuilder, addition, matrix_product

from gpurig.model.trace import Phase, Site, StepTrace, StorageKind
from gpurig.predict.snapshot import memory_snapshot

# What torch/cuda/_memory_viz.py reads of segments, blocks and trace entries.
SEGMENT_FIELDS = {
    "device", "address", "total_size", "allocated_size", "active_size", "stream", "segment_type", "blocks", "frames",
}  # fmt: skip
BLOCK_FIELDS = {"address", "size", "requested_size", "state", "frames"}
ENTRY_FIELDS = {"action", "addr", "size", "stream", "frames"}
ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"}


def history() -> StepTrace:
    step = StepBuilder()
    step.make(8 * MIB, StorageKind.PARAMETER)
    step.call(matrix_product())
    kept = step.make(3 * MIB + 1, site=0)
    step.call(addition(), Phase.BACKWARD)
    step.make(8 * MIB, StorageKind.GRADIENT)
    step.free(kept)
    return replace(step.trace(), sites=(Site("train.py", 12, "main"),))


def test_it_survives_pickle_and_has_torchs_fields() -> None:
    snapshot = pickle.loads(pickle.dumps(memory_snapshot(history())))
    assert set(snapshot) >= {"segments", "device_traces"}
    for segment in snapshot["segments"]:
        assert set(segment) >= SEGMENT_FIELDS
        assert all(set(block) >= BLOCK_FIELDS for block in segment["blocks"])
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    for entry in snapshot["device_traces"][0]:
        assert set(entry) >= ENTRY_FIELDS
        assert entry["action"] in ACTIONS


def test_the_history_is_that_of_the_trace() -> None:
    trace = history()
    entries = memory_snapshot(trace)["device_traces"][0]
    assert [(e["action"], e["size"]) for e in entries] == [
        ("alloc", 8 * MIB), ("alloc", 3 * MIB + 1), ("alloc", 8 * MIB), ("free_completed", 3 * MIB + 1),
    ]  # fmt: skip
    assert entries[1]["addr"] == entries[3]["addr"]
    assert len({e["addr"] for e in entries if e["action"] == "alloc"}) == 3


def test_segments_hold_what_is_alive_at_the_end() -> None:
    trace = history()
    segments = memory_snapshot(trace)["segments"]
    assert sum(s["allocated_size"] for s in segments) == 16 * MIB


def test_frames_name_the_line_of_the_program() -> None:
    frames = memory_snapshot(history())["device_traces"][0][1]["frames"]
    assert {"name": "main", "filename": "train.py", "line": 12} in frames
    assert all(set(frame) == {"name", "filename", "line"} for frame in frames)


def test_torchs_own_reader_takes_it() -> None:
    import pytest

    viz = pytest.importorskip("torch.cuda._memory_viz")
    text = viz.segsum(memory_snapshot(history()))
    assert "MiB" in text
