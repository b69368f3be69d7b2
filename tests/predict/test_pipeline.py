from __future__ import annotations

import pytest

from gpurig.model.trace import InputProfile
from gpurig.predict.pipeline import input_time_s, is_serial


def profile(workers: int, seconds: float | None = 1.0) -> InputProfile:
    return InputProfile(seconds, workers, 1 << 20, 8, 1000, 125)


@pytest.mark.parametrize(
    ("workers", "vcpus", "gpus", "expected"),
    [
        pytest.param(4, 64, 1, 0.25, id="as many as asked for"),
        pytest.param(16, 8, 1, 1 / 7, id="no more than cores, one is the training loop's"),
        pytest.param(8, 8, 4, 1.0, id="ranks share the cores"),
        pytest.param(0, 64, 1, 1.0, id="in the loop"),
        pytest.param(4, None, 1, 0.25, id="cores not known"),
    ],
)
def test_time_between_batches(workers, vcpus, gpus, expected):
    assert input_time_s(profile(workers), vcpus=vcpus, gpus_per_node=gpus) == pytest.approx(expected)


def test_what_was_not_timed_is_not_known():
    assert input_time_s(None, vcpus=8) is None
    assert input_time_s(profile(4, None), vcpus=8) is None


def test_only_a_loader_without_workers_is_in_the_loop():
    assert is_serial(profile(0))
    assert not is_serial(profile(2))
    assert not is_serial(None)
