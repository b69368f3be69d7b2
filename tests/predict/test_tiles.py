from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpurig.predict.tiles import product_time_s, winograd_time_s

PEAK, SMS = 19.5e12, 108.0


def time_of(batch: int, m: int, n: int, k: int) -> float:
    shape = (np.array([float(x)]) for x in (batch, m, n, k))
    return float(product_time_s(*shape, np.array([PEAK]), SMS)[0])


sizes = st.integers(1, 8192)


@given(batch=st.integers(1, 64), m=sizes, n=sizes, k=sizes)
def test_a_product_is_never_faster_than_the_peak(batch, m, n, k):
    assert time_of(batch, m, n, k) >= 2 * batch * m * n * k / PEAK * 0.999


@given(m=sizes, n=sizes, k=st.integers(512, 4096))
def test_a_longer_reduction_never_takes_less(m, n, k):
    assert time_of(1, m, n, 2 * k) >= time_of(1, m, n, k) * 0.999


@pytest.mark.parametrize(
    ("shape", "at_most"),
    [
        pytest.param((1, 8192, 8192, 8192), 1.05, id="large and square runs at the peak"),
        pytest.param((1, 128, 128, 16384), 12.0, id="split over idle multiprocessors, not one tile alone"),
    ],
)
def test_how_far_from_the_peak(shape, at_most):
    batch, m, n, k = shape
    assert time_of(*shape) <= at_most * 2 * batch * m * n * k / PEAK


def test_one_tile_leaves_most_of_the_chip_idle():
    assert time_of(1, 64, 64, 256) > 20 * 2 * 64 * 64 * 256 / PEAK


def test_winograd_needs_less_than_the_direct_flops():
    images, channels, size = 32.0, 256.0, 56.0
    args = [np.array([x]) for x in (images, channels, channels, size, size)]
    direct = 2 * images * size * size * channels * channels * 9 / PEAK
    found = float(winograd_time_s(*args, np.array([PEAK]), SMS)[0])
    assert direct / 2.25 < found < direct
