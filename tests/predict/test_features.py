from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cards import VIEW, add, card, convolution, gemm

from gpurig.predict.features import era_of, op_features, pipe_of, split_gradients


@pytest.mark.parametrize(
    ("gpu_id", "op", "pipe"),
    [
        pytest.param("A100-SXM4-80GB", gemm(dtype="fp16"), "half", id="fp16 on tensor cores"),
        pytest.param("A100-SXM4-80GB", gemm(dtype="bf16"), "half", id="bf16 on Ampere"),
        pytest.param("A100-SXM4-80GB", gemm(tf32=True), "tf32", id="fp32 that may be TF32"),
        pytest.param("A100-SXM4-80GB", gemm(), "simt", id="fp32 that may not"),
        pytest.param("V100-SXM2-16GB", gemm(tf32=True), "simt", id="Volta has no TF32"),
        pytest.param("V100-SXM2-16GB", gemm(dtype="bf16"), "simt", id="Volta has no bf16"),
        pytest.param("GTX1080Ti", gemm(dtype="fp16"), "simt", id="Pascal has no tensor cores"),
        pytest.param("A100-SXM4-80GB", add(dtype="fp16"), "simt", id="elementwise needs none"),
    ],
)
def test_pipe(gpu_id, op, pipe):
    assert pipe_of(op, card(gpu_id)) == pipe


def test_both_gradients_of_a_convolution_are_two_kernels_with_all_its_flops():
    op = convolution(direction=3)
    parts, owners = split_gradients((gemm(), op, add()))
    assert owners == (0, 1, 1, 2)
    assert [p.dims[12] for p in parts[1:3]] == [1, 2]
    assert sum(p.flops for p in parts[1:3]) == op.flops


@pytest.mark.parametrize(
    ("op", "words"),
    [
        pytest.param(convolution(), "conv:simt", id="plain"),
        pytest.param(convolution(groups=32), "grouped:simt", id="grouped"),
        pytest.param(convolution(groups=128), "depthwise:forward", id="depthwise"),
        pytest.param(gemm(dtype="fp16", n=30522), "gemm:misaligned", id="a vocabulary that tensor cores do not like"),
    ],
)
def test_terms(op, words):
    features = op_features((op,), card("A100-SXM4-80GB"))
    assert words in [name for name, _ in features.compute_terms[0]]


def test_a_convolution_in_channels_first_changes_layout_around_tensor_cores():
    first, last = (convolution(dtype="fp16", channels_last=yes) for yes in (False, True))
    extra = op_features((first, last), card("A100-SXM4-80GB")).extra_s
    assert extra[0] > 0
    assert extra[1] == 0


def test_views_cost_the_device_nothing():
    features = op_features((VIEW,), card("T4"))
    assert features.compute_s[0] == features.memory_s[0] == features.kernels[0] == 0


def test_ideal_times_are_bytes_and_flops_over_the_data_sheet():
    gpu = card("A100-SXM4-80GB")
    features = op_features((add(), gemm(dtype="fp16")), gpu)
    assert features.memory_s[0] == pytest.approx(3 * 4 * (1 << 24) / (gpu.memory_bandwidth_gb_per_s * 1e9))
    assert features.compute_s[1] == pytest.approx(2 * 4096**3 / (gpu.fp16_tflops * 1e12), rel=0.3)
    assert np.all(features.compute_s >= 0)


def test_a_card_without_its_facts_is_refused():
    with pytest.raises(ValueError, match="not known"):
        op_features((add(),), replace(card("T4"), memory_bandwidth_gb_per_s=None))


@pytest.mark.parametrize(
    ("version", "era"),
    [("1.4.0a0+a5b4d78", "old"), ("1.9", "old"), ("1.10.0", "now"), ("2.13.0+cpu", "now"), ("", "now"), ("x.y", "now")],
)
def test_era(version, era):
    assert era_of(version) == era
