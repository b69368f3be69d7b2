from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import RESNET, run_of

from gpurig.accuracy.answer import Answer
from gpurig.accuracy.calibrate import weighted_quantiles
from gpurig.accuracy.score import figures, ordered_pairs, quantile, reasons


def answer(ratio: float | None, *, row: str = "1", gpu: str = "A", source: str = "s", reason: str = "") -> Answer:
    return Answer(
        row_id=row,
        kind="time",
        measure="step time",
        gpu=gpu,
        source_repo=source,
        model="m",
        family="f",
        unit="images/s",
        published=1.0,
        predicted=ratio,
        reason=reason,
        ratio=ratio,
        trusted=True,
    )


def test_groups_weigh_alike_however_many_rows_they_have():
    many = [answer(1.01)] * 99
    few = [answer(1.31, gpu="B")]
    found = figures("x", many + few)
    assert found.macro_median == pytest.approx((0.01 + 0.31) / 2)
    assert found.median == pytest.approx(0.01)
    assert found.worst == pytest.approx(0.31)
    assert (found.values, found.answered, found.groups) == (100, 100, 2)


def test_missing_answers_are_counted_and_not_scored():
    found = figures("x", [answer(None), answer(0.9)])
    assert (found.values, found.answered) == (2, 1)
    assert found.median == pytest.approx(0.1)


def test_nothing_answered_has_no_figures():
    found = figures("x", [answer(None)])
    assert found.macro_median is found.worst is None


def test_reasons_are_counted_the_most_frequent_first():
    rows = [answer(None, reason="b"), answer(None, reason="a"), answer(None, reason="b"), answer(1.0)]
    assert reasons(rows) == (("b", 2), ("a", 1))


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30))
def test_quantiles_lie_inside_and_in_order(values):
    ordered = sorted(values)
    low, mid, high = (quantile(ordered, q) for q in (0.1, 0.5, 0.9))
    assert ordered[0] <= low <= mid <= high <= ordered[-1]


def test_a_heavy_value_pulls_a_weighted_quantile():
    import numpy as np

    values = np.array([1.0, 2.0, 3.0])
    assert weighted_quantiles(values, np.array([1.0, 1.0, 1.0]), (0.5,))[0] == pytest.approx(2.0)
    assert weighted_quantiles(values, np.array([1.0, 1.0, 100.0]), (0.5,))[0] > 2.9


@pytest.mark.parametrize(
    ("rates", "ratios", "expected"),
    [
        pytest.param((100, 200), (1.0, 1.0), (1, 1), id="right"),
        pytest.param((100, 200), (0.5, 1.2), (1, 0), id="wrong way round"),
        pytest.param((100, 105), (1.0, 1.0), (0, 0), id="too close to count"),
    ],
)
def test_pairs_of_gpus(tmp_path, rates, ratios, expected):
    runs = [
        run_of(tmp_path, RESNET, row_id=str(i), gpu=gpu, throughput=str(rate))
        for i, (gpu, rate) in enumerate(zip(("T4", "A100-SXM4-40GB"), rates, strict=True))
    ]
    answers = [answer(ratio, row=run.row_id, gpu=run.gpu) for run, ratio in zip(runs, ratios, strict=True)]
    pairs = ordered_pairs(runs, answers)
    assert (pairs.total, pairs.right) == expected
