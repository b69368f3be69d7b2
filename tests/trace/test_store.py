"""Traces in files."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurig.errors import BadFile
from gpurig.model.trace import (
    Assumption,
    Call,
    InputProfile,
    Op,
    OpClass,
    Phase,
    Site,
    StepTrace,
    Storage,
    StorageKind,
)
from gpurig.trace import store

if TYPE_CHECKING:
    from pathlib import Path

counts = st.integers(0, 2**60)
texts = st.text(max_size=20)
times = st.floats(0, 1e6, allow_nan=False)
TRACES = st.builds(
    StepTrace,
    label=texts,
    torch_version=texts,
    sm=st.sampled_from([70, 75, 80, 90]),
    precision=st.sampled_from(["fp32", "bf16-amp"]),
    steps_traced=counts,
    samples_per_step=st.none() | counts,
    micro_batch=st.none() | counts,
    accumulation=st.integers(1, 64),
    num_parameters=counts,
    num_trainable=counts,
    ops=st.lists(
        st.builds(
            Op, texts, st.sampled_from(OpClass), texts, counts, counts, counts, counts,
            st.lists(counts, max_size=4).map(tuple), st.booleans(), st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    calls=st.lists(st.builds(Call, counts, st.sampled_from(Phase), st.integers(-1, 9)), max_size=3).map(tuple),
    sites=st.lists(st.builds(Site, texts, counts, texts, texts), max_size=2).map(tuple),
    storages=st.lists(
        st.builds(Storage, counts, st.sampled_from(StorageKind), st.integers(-1, 9), st.sampled_from(Phase)), max_size=3
    ).map(tuple),
    events=st.lists(st.tuples(st.sampled_from([1, -1]), counts, st.integers(-1, 9)), max_size=4).map(tuple),
    steady_from=counts,
    input=st.none()
    | st.builds(InputProfile, st.none() | times, counts, counts, st.none() | counts, st.none() | counts, st.none() | counts),
    assumptions=st.lists(st.builds(Assumption, texts, texts, st.integers(-1, 9)), max_size=2).map(tuple),
    trace_time_s=times,
)  # fmt: skip


@given(TRACES)
def test_what_is_written_is_read(trace: StepTrace) -> None:
    assert store.decode(store.encode(trace)) == trace


@given(TRACES)
def test_without_msgspec_the_same_is_written(trace: StepTrace) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "msgspec", None)
        slow = store.encode(trace)
    assert store.decode(slow) == trace


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    trace = _one()
    store.save(trace, tmp_path / "step.json")
    assert [p.name for p in tmp_path.iterdir()] == ["step.json"]
    assert store.load(tmp_path / "step.json") == trace


def _one() -> StepTrace:
    return StepTrace(
        label="train.py", torch_version="2.13.0", sm=80, precision="fp32", steps_traced=3, samples_per_step=8,
        micro_batch=8, accumulation=1, num_parameters=2, num_trainable=2, ops=(), calls=(), sites=(), storages=(),
        events=(), steady_from=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"not json", "is not a trace"),
        (b"[]", "is not a trace"),
        (b'{"schema_version": 1}', "is not a trace"),
        (json.dumps({"schema_version": 99}).encode(), "version 99"),
    ],
    ids=["text", "list", "fields missing", "later version"],
)
def test_another_file_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(BadFile, match=says) as caught:
        store.decode(data, "step.json")
    assert "step.json" in caught.value.message
