"""Memory of a step: workspaces, breakdown, verdicts, and what the trace does not show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import MIB, StepBuilder, addition, convolution, matrix_product

from gpurig.catalog.gpus import load_gpus
from gpurig.model.recipe import Recipe
from gpurig.model.trace import Phase, StepTrace, StorageKind
from gpurig.predict import base_memory
from gpurig.predict.allocator import OutOfMemory
from gpurig.predict.memory import (
    activation_bytes,
    allocator_usage,
    communication_bytes,
    contributors,
    convolution_workspaces,
    fits,
    phase_of_peak,
    predict_memory,
    replay_key,
    timeline,
    workspaces,
)

if TYPE_CHECKING:
    from gpurig.model.prediction import MemoryPrediction

CUBLAS = 8_519_680
A100 = load_gpus()["A100-SXM4-80GB"]
T4 = load_gpus()["T4"]


def training_step(activation: int = 100 * MIB, torch_version: str = "2.6.0") -> StepTrace:
    step = StepBuilder(torch_version)
    step.make(50 * MIB, StorageKind.PARAMETER)
    step.call(matrix_product())
    kept = step.make(activation)
    step.call(addition())
    passing = step.make(30 * MIB, StorageKind.TEMPORARY)
    step.free(passing)
    step.call(matrix_product(), Phase.BACKWARD)
    step.make(50 * MIB, StorageKind.GRADIENT)
    step.free(kept)
    return step.trace(micro_batch=4)


def predicted(trace: StepTrace, **recipe: int) -> MemoryPrediction:
    return predict_memory(trace, Recipe(precision="fp32", micro_batch=4, **recipe), A100, base_memory.load())


@pytest.mark.parametrize(
    ("version", "sm", "expected"),
    [
        pytest.param("2.6.0", 80, (CUBLAS, CUBLAS), id="one for forward, one for autograd's thread"),
        pytest.param("1.13.1", 70, (CUBLAS, CUBLAS), id="from 1.13 on"),
        pytest.param("1.12.1", 80, (), id="before, cuBLAS has its own"),
        pytest.param("2.6.0", 90, (32 * MIB, 32 * MIB), id="Hopper has larger ones"),
        pytest.param("2.6.0", 100, (CUBLAS, CUBLAS), id="Blackwell does not"),
        pytest.param("2.6.0", None, (), id="not an NVIDIA card"),
        pytest.param("nightly", 80, (CUBLAS, CUBLAS), id="an unreadable version is a recent one"),
    ],
)
def test_cublas_workspaces(version: str, sm: int | None, expected: tuple[int, ...]) -> None:
    assert workspaces(training_step(torch_version=version), sm) == expected


def test_no_matrix_product_no_workspace() -> None:
    step = StepBuilder()
    step.call(addition())
    step.make(MIB)
    assert workspaces(step.trace(), 80) == ()


def test_forward_alone_has_one_workspace() -> None:
    step = StepBuilder()
    step.call(matrix_product())
    step.make(MIB)
    assert workspaces(step.trace(), 80) == (CUBLAS,)


@pytest.mark.parametrize(
    ("options", "sm", "benchmark", "expected"),
    [
        pytest.param({}, 80, False, 50 * MIB, id="half of the operands"),
        pytest.param({}, 80, True, 200 * MIB, id="four times as much where all algorithms may run"),
        pytest.param({"channels_last": True}, 80, False, None, id="channels last needs no copy"),
        pytest.param({"tf32": False}, 80, False, None, id="fp32 without tensor cores"),
        pytest.param({"dtype": "bf16", "tf32": False}, 80, False, 50 * MIB, id="half precision"),
        pytest.param({}, 75, False, None, id="before TF32"),
    ],
)
def test_convolution_workspaces(options: dict[str, bool], sm: int, benchmark: bool, expected: int | None) -> None:
    step = StepBuilder(cudnn_benchmark=benchmark)
    step.call(convolution(100 * MIB, **options))
    step.make(50 * MIB)
    assert convolution_workspaces(step.trace(), sm).get(0) == expected


def test_replays_are_shared_only_between_cards_on_which_libraries_take_the_same() -> None:
    step = StepBuilder()
    step.call(convolution(100 * MIB))
    step.call(matrix_product())
    trace = step.trace()
    assert replay_key(trace, 80) == replay_key(trace, 89)
    assert len({replay_key(trace, sm) for sm in (75, 80, 90, None)}) == 4


def test_a_workspace_lives_only_during_its_call() -> None:
    step = StepBuilder()
    step.call(convolution(400 * MIB))
    step.make(100 * MIB)
    step.call(addition())
    step.make(150 * MIB)
    usage = allocator_usage(step.trace(), 80)
    assert usage.peak_allocated == 300 * MIB  # the result and the workspace
    assert usage.end_allocated == 250 * MIB
    assert usage.peak_reserved == 300 * MIB  # what comes next finds room where the workspace was
    assert phase_of_peak(step.trace(), usage) is Phase.FORWARD


def test_a_workspace_is_taken_once_also_where_operands_are_copied() -> None:
    step = StepBuilder()
    step.call(convolution(400 * MIB))
    step.make(100 * MIB)
    step.free(step.make(40 * MIB, StorageKind.TEMPORARY))
    usage = allocator_usage(step.trace(), 80)
    assert usage.end_allocated == 100 * MIB
    assert usage.peak_allocated == 340 * MIB


def test_the_breakdown_sums_to_the_allocated_peak() -> None:
    memory = predicted(training_step())
    parts = (
        memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.temporaries, memory.inputs,
        memory.workspace,
    )  # fmt: skip
    assert sum(parts) == memory.peak_allocated
    assert memory.workspace == 2 * CUBLAS
    assert (memory.parameters, memory.gradients, memory.activations) == (50 * MIB, 50 * MIB, 100 * MIB)
    assert memory.peak_device == memory.peak_reserved + memory.base


def test_bands_of_all_three_measures() -> None:
    memory = predicted(training_step())
    assert memory.allocated_band is not None
    assert memory.reserved_band is not None
    for band in (memory.allocated_band, memory.reserved_band, memory.band):
        assert band.low <= 1 <= band.high
    assert "base memory" in memory.band.reason


def test_more_gpus_add_buckets_and_nccl() -> None:
    trace = training_step()
    assert communication_bytes(trace, Recipe(precision="fp32", micro_batch=4)) == 0
    assert predicted(trace, num_gpus=2).communication > 0


@pytest.mark.parametrize(
    ("activation_gib", "verdict"),
    [
        pytest.param(5, True, id="far below"),
        pytest.param(13, None, id="within the band"),
        pytest.param(30, False, id="far above"),
    ],
)
def test_verdicts(activation_gib: int, verdict: bool | None) -> None:
    trace = training_step(activation_gib << 30)
    memory = predict_memory(trace, Recipe(precision="fp32", micro_batch=4), T4, base_memory.load())
    assert fits(trace, memory, T4) is verdict


def test_what_the_allocator_can_give_back_does_not_stand_in_the_way() -> None:
    """Cached segments of 7 + 8 GiB, but never more than 8 GiB in use: it fits after a retry, though near the limit."""
    step = StepBuilder()
    step.call(addition())
    first = step.make(7 << 30)
    step.free(first)
    step.call(addition())
    step.make(8 << 30)
    trace = step.trace(micro_batch=1)
    assert allocator_usage(trace, 75).peak_reserved == 15 << 30
    assert allocator_usage(trace, 75, capacity=12 << 30).retries == 1
    with pytest.raises(OutOfMemory):
        allocator_usage(trace, 75, capacity=7 << 30)
    memory = predict_memory(trace, Recipe(precision="fp32", micro_batch=1), T4, base_memory.load())
    assert fits(trace, memory, T4) is not False


@given(st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=30))
def test_the_timeline_ends_where_the_trace_ends(sizes: list[int]) -> None:
    step = StepBuilder()
    for size in sizes:
        step.call(addition())
        step.make(size)
    moments = timeline(step.trace())
    assert len(moments) == len(sizes)
    assert moments[-1].total == sum(-(-size // 512) * 512 for size in sizes)
    assert activation_bytes(step.trace()) == moments[-1].total


def test_contributors_are_ranked_and_leave_workspaces_out() -> None:
    trace = training_step()
    found = contributors(trace, allocator_usage(trace, 80))
    assert [c.num_bytes for c in found] == sorted((c.num_bytes for c in found), reverse=True)
    assert sum(c.num_bytes for c in found) == allocator_usage(trace, 80).peak_allocated - 2 * CUBLAS
