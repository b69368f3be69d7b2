from __future__ import annotations

import math

import numpy as np
import pytest
from cards import add, card, convolution, gemm

from gpurig.predict.features import op_features, split_gradients
from gpurig.predict.fit import Problem, Sample

CARDS = ("A100-SXM4-80GB", "V100-SXM2-16GB", "RTX3090", "T4")
STEPS = {
    "products": (gemm(), gemm(1024, 8192, 512)),
    "halves": (gemm(dtype="fp16"), add(dtype="fp16")),
    "convolutions": (convolution(direction=3), convolution(dtype="fp16", channels_last=True), convolution(groups=128)),
    "memory": (add(), add(1 << 26)),
}


def sample(gpu_id: str, kind: str, seconds: float = 1.0, host: float = 10.0) -> Sample:
    parts, _ = split_gradients(STEPS[kind])
    gpu = card(gpu_id)
    return Sample(
        gpu=gpu,
        features=op_features(parts, gpu),
        counts=np.full(len(parts), 20.0),
        host_counts={"forward": host, "backward": host},
        step_time_s=seconds,
        group=f"{gpu_id} | {kind}",
    )


def problem_with(truth_of: np.ndarray | None = None) -> tuple[Problem, np.ndarray]:
    """Samples whose times are what shifted parameters predict, and those parameters."""
    samples = [sample(g, k) for g in CARDS for k in STEPS]
    problem = Problem(samples)
    truth = problem.start + 0.1 * np.sin(np.arange(len(problem.start))) if truth_of is None else truth_of
    times = problem.predictions(truth)
    timed = [sample(s.gpu.gpu_id, s.group.split(" | ")[1], float(t)) for s, t in zip(samples, times, strict=True)]
    return Problem(timed), truth


def test_the_fit_explains_times_that_the_model_made():
    problem, _ = problem_with()
    before = np.abs(np.log(problem.predictions(problem.start) / problem.measured))
    after = np.abs(np.log(problem.predictions(problem.solve()) / problem.measured))
    assert np.median(after) < 0.05
    assert np.median(after) < 0.3 * np.median(before)


def test_the_jacobian_is_the_derivative():
    problem, truth = problem_with()
    x = truth + 0.05
    weights = np.ones(len(problem.measured))
    exact = problem._jacobian(x, weights)
    for column in range(0, len(x), 7):
        step = np.zeros_like(x)
        step[column] = 1e-6
        numeric = (problem._residuals(x + step, weights) - problem._residuals(x - step, weights)) / 2e-6
        assert np.allclose(exact[:, column], numeric, rtol=1e-3, atol=1e-4), problem.names[column]


def test_equal_samples_give_equal_coefficients():
    first, second = problem_with()[0], problem_with()[0]
    assert first.coefficients(first.solve()) == second.coefficients(second.solve())


def test_a_card_that_is_left_out_gets_what_its_data_sheet_suggests():
    problem, _ = problem_with()
    left_out = np.array([s.gpu.gpu_id == "T4" for s in problem.samples])
    found = problem.coefficients(problem.solve(without=left_out))
    for pipe in ("simt", "half", "memory"):
        assert found.gpu_rates["T4"][pipe] == pytest.approx(found.prior_log_rate(card("T4"), pipe), abs=1e-3)


def test_what_is_left_out_has_no_influence():
    problem, _ = problem_with()
    left_out = np.array([s.gpu.gpu_id == "T4" for s in problem.samples])
    spoiled = Problem(
        [
            sample(s.gpu.gpu_id, s.group.split(" | ")[1], t * (50 if out else 1))
            for s, t, out in zip(problem.samples, problem.measured, left_out, strict=True)
        ]
    )
    clean, dirty = (p.coefficients(p.solve(without=left_out)) for p in (problem, spoiled))
    assert clean == dirty


def test_one_wild_row_does_not_pull_the_others():
    problem, _ = problem_with()
    wild = [
        sample(s.gpu.gpu_id, s.group.split(" | ")[1], t) for s, t in zip(problem.samples, problem.measured, strict=True)
    ]
    wild[0] = sample(CARDS[0], "products", float(problem.measured[0]) * 10)
    spoiled = Problem(wild)
    errors = np.abs(np.log(spoiled.predictions(spoiled.solve())[1:] / problem.measured[1:]))
    assert np.median(errors) < 0.05


def test_host_time_is_found_where_it_binds():
    samples = [sample(g, "memory", 1.0, host=1e5) for g in CARDS]
    seconds = 2 * 1e5 * 20e-6
    problem = Problem([sample(s.gpu.gpu_id, "memory", seconds, host=1e5) for s in samples])
    found = problem.coefficients(problem.solve())
    mean = (found.host_s["forward"] + found.host_s["backward"]) / 2
    assert mean * math.exp(np.mean(list(found.gpu_host.values()))) == pytest.approx(20e-6, rel=0.1)
