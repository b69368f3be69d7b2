from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurig.predict.queue import walk


def times(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


@pytest.mark.parametrize(
    ("host", "device", "syncs", "expected"),
    [
        pytest.param([1, 1, 1], [5, 5, 5], [0, 0, 0], 15, id="device bound, the host runs ahead"),
        pytest.param([5, 5, 5], [1, 1, 1], [0, 0, 0], 15, id="launch bound"),
        pytest.param(
            [1, 1, 1], [5, 5, 0], [0, 0, 1], 11, id="a wait at the end: the next step starts with an idle device"
        ),
        pytest.param([1, 1, 1], [5, 0, 5], [0, 1, 0], 11, id="a wait in the middle"),
        pytest.param([], [], [], 0, id="no calls"),
    ],
)
def test_step_time(host, device, syncs, expected):
    found = walk(times(*host), times(*device), np.array(syncs, dtype=bool))
    assert found.step_time_s == pytest.approx(expected, rel=0.1)


calls = st.lists(st.tuples(st.floats(1e-6, 1e-3), st.floats(0, 1e-2), st.booleans()), min_size=1, max_size=40)


@given(calls)
def test_a_step_takes_at_least_what_host_and_device_need_and_at_most_both(rows):
    host, device, syncs = (np.array(column) for column in zip(*rows, strict=True))
    found = walk(host, device, syncs.astype(bool))
    assert found.step_time_s >= max(host.sum(), device.sum()) * 0.999
    assert found.step_time_s <= (host.sum() + device.sum()) * 1.001


@given(calls)
def test_another_wait_never_makes_a_step_faster(rows):
    host, device, syncs = (np.array(column) for column in zip(*rows, strict=True))
    more = syncs.astype(bool).copy()
    more[len(more) // 2] = True
    assert walk(host, device, more).step_time_s >= walk(host, device, syncs.astype(bool)).step_time_s * 0.999
