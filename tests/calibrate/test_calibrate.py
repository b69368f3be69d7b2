"""Calibration recovers a card's factors from measurements, and its file is what plans read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from gpurig.calibrate.fit import calibration_json, fit_card
from gpurig.catalog.gpus import load_gpus
from gpurig.model.trace import Op, OpClass
from gpurig.predict.base_memory import load, measured_bases
from gpurig.predict.coefficients import packaged_coefficients, read_coefficients
from gpurig.predict.roofline import op_costs

if TYPE_CHECKING:
    from pathlib import Path

GPU = load_gpus()["A100-SXM4-80GB"]
OPS = (
    Op("mm", OpClass.GEMM, "fp32", 2 * 4096**3, 8 * 4096**2, 4 * 4096**2, 1, (1, 4096, 4096, 4096)),
    Op("mm", OpClass.GEMM, "fp32", 2 * 4096**3, 8 * 4096**2, 4 * 4096**2, 1, (1, 4096, 4096, 4096), tf32=True),
    Op("mm", OpClass.GEMM, "bf16", 2 * 4096**3, 4 * 4096**2, 2 * 4096**2, 1, (1, 4096, 4096, 4096)),
    Op("add", OpClass.ELEMENTWISE, "fp32", 0, 8 << 26, 4 << 26, 1),
)


@dataclass
class Sample:
    op: Op
    time_s: float


def slower(factors: tuple[float, ...]) -> list[Sample]:
    costs = op_costs(OPS, GPU, packaged_coefficients())
    return [Sample(op, float(t) * f) for op, t, f in zip(OPS, costs.time_s, factors, strict=True)]


@pytest.mark.parametrize("factors", [(1.0, 1.0, 1.0, 1.0), (1.3, 0.9, 1.2, 1.1), (2.0, 2.0, 2.0, 2.0)], ids=str)
def test_measured_operators_are_predicted_afterwards(factors: tuple[float, ...]) -> None:
    samples = slower(factors)
    found = fit_card(samples, GPU, packaged_coefficients())
    after = op_costs(OPS, GPU, found.coefficients).time_s
    # kernel overhead is not part of the rates, so the smallest operator may stay a few percent off
    assert list(after) == pytest.approx([s.time_s for s in samples], rel=0.05)
    assert [found.change[p] for p in ("simt", "tf32", "half", "memory")] == pytest.approx(factors)


def test_other_cards_stay_as_they_are() -> None:
    base = packaged_coefficients()
    found = fit_card(slower((2.0, 2.0, 2.0, 2.0)), GPU, base)
    other = load_gpus()["T4"]
    assert list(op_costs(OPS, other, found.coefficients).time_s) == list(op_costs(OPS, other, base).time_s)


def test_the_file_is_what_plans_read(tmp_path: Path) -> None:
    found = fit_card(slower((1.5, 1.0, 1.0, 1.0)), GPU, packaged_coefficients(), host_s=2e-5, source="here")
    path = tmp_path / "calibration.json"
    path.write_text(calibration_json(found, GPU, 700 << 20))
    again = read_coefficients(path)
    assert again.gpu_rates[GPU.gpu_id]["simt"] == pytest.approx(
        found.coefficients.gpu_rates[GPU.gpu_id]["simt"], rel=1e-5
    )
    assert again.source == "here"
    assert load().with_measured(measured_bases(path)).measured[GPU.gpu_id] == 700
    assert json.loads(path.read_text())["measured_gpus"] == [GPU.gpu_id]


@pytest.mark.torch
def test_the_procedure_runs_on_any_device() -> None:
    pytest.importorskip("torch")
    from gpurig.calibrate.measure import measure

    told: list[str] = []
    measured = measure("cpu", seconds=0.2, scale=64, progress=told.append)
    assert len(told) == len(measured.measurements)
    assert all(m.time_s > 0 for m in measured.measurements)
    assert measured.host_s > 0
    assert measured.base_bytes is None
