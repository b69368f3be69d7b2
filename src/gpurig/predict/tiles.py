"""How much of a GPU a matrix product keeps busy: tiles, waves and split-k. Pure numpy, one element per operator."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

# Thread-block tiles of cuBLAS and cuDNN (rows, columns of the output), as the kernel names of the NeuSight set show.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (64, 32), (32, 32))
FULL_TILE = 128 * 128
# Fitted on 24,006 bmm and linear timings of six GPUs (scripts/fit/operators.py prints them).
SMALL_TILE_EXPONENT = 0.6  # a tile of a quarter of the area reaches 0.44 of the rate
WAVE_ROUNDING = 0.14  # share of the last wave's idle part that is lost; 1 would be full rounding up
FIRST_WAVE_FLOOR = 0.88  # less than one wave takes this share of a full one
SPLIT_K_FROM = 512


def product_time_s(
    batch: Floats, m: Floats, n: Floats, k: Floats, peak_flops: Floats, sm_count: float, *, split_k: bool = True
) -> Floats:
    """Time of batch × ([m,k]·[k,n]) at the full rate of each occupied multiprocessor, with the best tile.

    Args:
        batch, m, n, k: Shape per product.
        peak_flops: Peak of the whole chip for the type, FLOP/s.
        sm_count: Multiprocessors.
        split_k: Whether a long reduction may be split over idle multiprocessors.

    Returns:
        Seconds, a lower bound that efficiency factors divide: ≥ 2·batch·m·n·k / peak_flops.
    """
    best = np.full(np.shape(m), np.inf)
    per_sm = peak_flops / sm_count
    for rows, columns in TILES:
        rate = min(1.0, (rows * columns / FULL_TILE) ** SMALL_TILE_EXPONENT)
        tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
        splits = np.ones_like(tiles)
        if split_k:
            wanted = np.clip(np.floor(sm_count / tiles), 1, np.maximum(1, np.floor(k / 256)))
            splits = np.where((tiles < sm_count) & (k >= SPLIT_K_FROM), wanted, 1.0)
        waves = tiles * splits / sm_count
        rounded = np.where(
            waves > 1, waves + WAVE_ROUNDING * (np.ceil(waves) - waves), np.maximum(waves, FIRST_WAVE_FLOOR)
        )
        best = np.minimum(best, rounded * 2 * rows * columns * (k / splits) / per_sm / rate)
    return best


def winograd_time_s(
    images: Floats, c_in: Floats, c_out: Floats, height: Floats, width: Floats, peak_flops: Floats, sm_count: float
) -> Floats:
    """Time of a 3 × 3 stride-1 convolution as F(2×2, 3×3): 16 products per 2 × 2 outputs, 2.25 times fewer FLOPs.

    The relative rate of its kernel is that of the fit on 24,662 convolution timings.

    Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015.
    """
    positions = images * np.ceil(height / 2) * np.ceil(width / 2)
    tiles = 16 * np.ceil(positions / 32) * np.ceil(c_out / 128)
    waves = tiles / sm_count
    rounded = np.where(waves > 1, waves + WAVE_ROUNDING * (np.ceil(waves) - waves), np.maximum(waves, FIRST_WAVE_FLOOR))
    return rounded * 2 * 32 * 128 * c_in / (peak_flops / sm_count) / WINOGRAD_RATE


WINOGRAD_RATE = 0.88  # of the peak, relative to a direct convolution at 1
