"""The step at another micro-batch: exact where the step is affine, refused where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import StepBuilder, addition, matrix_product

from gpurig.predict.allocator import replay
from gpurig.predict.batch import Affine, at_micro_batch, same_path, storages_agree

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.model.trace import StepTrace

torch = pytest.importorskip("torch")
nn = torch.nn


def spelled(micro_batch: int) -> StepTrace:
    step = StepBuilder()
    step.make(4096)
    step.call(replace(matrix_product(), flops=1000 * micro_batch, dims=(1, 8 * micro_batch, 16, 16)))
    kept = step.make(512 * micro_batch + 100)
    step.call(replace(addition(), read_bytes=64 * micro_batch, write_bytes=32 * micro_batch))
    step.make(256 * micro_batch)
    step.free(kept)
    return step.trace(micro_batch=micro_batch)


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 1000))
def test_an_affine_step_is_met_exactly_between_and_beyond(one: int, other: int, wanted: int) -> None:
    low, high = sorted((one, other))
    if low == high:
        high += 1
    assert at_micro_batch(spelled(low), spelled(high), wanted) == spelled(wanted)


@given(
    st.integers(-(10**6), 10**6),
    st.integers(-1000, 1000),
    st.integers(1, 64),
    st.integers(65, 512),
    st.integers(1, 2048),
)
def test_affine_numbers(start: int, slope: int, low: int, high: int, at: int) -> None:
    expected = start + slope * at
    assert Affine(low, high, start + slope * low, start + slope * high).at(at) == max(0, expected)


def test_its_own_traces_come_back_as_they_are() -> None:
    low, high = spelled(2), spelled(8)
    assert at_micro_batch(low, high, 2) is low
    assert at_micro_batch(low, high, 8) is high


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: replace(t, calls=t.calls[:-1]), id="fewer calls"),
        pytest.param(lambda t: replace(t, storages=(*t.storages, t.storages[0])), id="one more storage"),
        pytest.param(lambda t: replace(t, events=(t.events[1], t.events[0], *t.events[2:])), id="another order"),
        pytest.param(lambda t: replace(t, ops=(replace(t.ops[0], name="bmm"), *t.ops[1:])), id="another operator"),
    ],
)
def test_another_path_is_refused(change: Callable[[StepTrace], StepTrace]) -> None:
    low, high = spelled(2), change(spelled(8))
    assert not same_path(low, high)
    assert at_micro_batch(low, high, 4) is None


@pytest.mark.parametrize(("low", "high"), [(None, 8), (8, None), (8, 2), (4, 4)])
def test_two_known_and_different_batches_are_needed(low: int | None, high: int | None) -> None:
    with pytest.raises(ValueError, match="micro-batch"):
        at_micro_batch(replace(spelled(2), micro_batch=low), replace(spelled(8), micro_batch=high), 4)


# --- real steps: a third trace tells ------------------------------------------------------------------------------------
def convolutions() -> torch.nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(inplace=True), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10),
    )  # fmt: skip


def attention() -> torch.nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 8, 8), nn.Flatten(2), nn.Linear(16, 32), nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        nn.Flatten(), nn.Linear(64 * 32, 10),
    )  # fmt: skip


def traced(make: Callable[[], torch.nn.Module], micro_batch: int) -> StepTrace:
    from gpurig.trace.step import trace_step

    def setup() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
        model = make().cuda()
        images = torch.randn(micro_batch, 3, 32, 32, device="cuda")
        labels = torch.zeros(micro_batch, dtype=torch.long, device="cuda")
        return model, torch.optim.AdamW(model.parameters()), images, labels

    def step(state: tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]) -> None:
        model, optimizer, images, labels = state
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return trace_step(setup, step, micro_batch=micro_batch, samples_per_step=micro_batch)


@pytest.mark.torch
@pytest.mark.parametrize("make", [convolutions, attention])
def test_a_third_trace_agrees(make: Callable[[], torch.nn.Module]) -> None:
    low, middle, high = (traced(make, n) for n in (4, 12, 32))
    between = at_micro_batch(low, high, 12)
    assert between is not None
    assert storages_agree(between, middle) < 1e-3
    assert between.samples_per_step == 12
    assert sum(op.flops for op in between.ops) == sum(op.flops for op in middle.ops)
    for limit in ("peak_allocated", "peak_reserved"):
        predicted = getattr(replay([s.num_bytes for s in between.storages], between.events), limit)
        assert predicted == pytest.approx(
            getattr(replay([s.num_bytes for s in middle.storages], middle.events), limit), rel=0.01
        )


@pytest.mark.torch
def test_a_step_that_grows_with_the_square_is_noticed() -> None:
    class Pairs(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(3 * 32 * 32, 64)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            rows = self.embed(images.flatten(1))
            return torch.softmax(rows @ rows.T, -1) @ rows[:, :10]

    low, middle, high = (traced(Pairs, n) for n in (64, 256, 1024))
    between = at_micro_batch(low, high, 256)
    assert between is not None
    assert storages_agree(between, middle) > 0.05
