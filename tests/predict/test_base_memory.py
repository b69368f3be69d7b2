"""Base memory by GPU and software, and the bands of memory figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from steps import MIB, StepBuilder, addition, convolution

from gpurig.catalog.gpus import load_gpus
from gpurig.model.prediction import Method
from gpurig.predict.base_memory import BaseConstant, MemoryCalibration, Spread, load, torch_version

if TYPE_CHECKING:
    from gpurig.model.trace import StepTrace

GPUS = load_gpus()


def constant(architecture: str, torch_from: tuple[int, int], mib: float, rows: int = 5) -> BaseConstant:
    return BaseConstant(
        architecture=architecture, torch_from=torch_from, context_mib=mib, convolution_mib=100.0, spread_mib=200.0, rows=rows,
        source="a table",
    )  # fmt: skip


CALIBRATION = MemoryCalibration(
    bases=(
        constant("ampere", (2, 0), 800),
        constant("ampere", (1, 7), 1100),
        constant("turing", (0, 0), 980),
        constant("*", (2, 0), 700, rows=0),
        constant("*", (0, 0), 1000, rows=0),
    ),
    allocated=Spread(low=0.98, high=1.02, rows=10),
    reserved=Spread(low=0.95, high=1.06, rows=20),
)


def step(version: str, *, conv: bool = False) -> StepTrace:
    built = StepBuilder(version)
    built.call(convolution(MIB) if conv else addition())
    return built.trace()


@pytest.mark.parametrize(
    ("gpu_id", "version", "conv", "mib", "method"),
    [
        pytest.param("A100-SXM4-80GB", "2.6.0", False, 800, Method.CALIBRATED, id="its architecture and version"),
        pytest.param("A100-SXM4-80GB", "2.6.0", True, 900, Method.CALIBRATED, id="a convolution net loads cuDNN"),
        pytest.param("A100-SXM4-80GB", "1.13.1", False, 1100, Method.CALIBRATED, id="an older version"),
        pytest.param("A100-SXM4-80GB", "1.4.0", False, 1000, Method.GUESSED, id="older than all of its architecture"),
        pytest.param("T4", "2.6.0", False, 700, Method.GUESSED, id="its architecture was read only on older software"),
        pytest.param("T4", "1.4.0", False, 980, Method.CALIBRATED, id="and on that it holds"),
        pytest.param("H100-SXM5-80GB", "2.6.0", False, 700, Method.GUESSED, id="another architecture"),
        pytest.param("V100-SXM2-16GB", "1.13", False, 1000, Method.GUESSED, id="another architecture, older"),
    ],
)
def test_which_constant_holds(gpu_id: str, version: str, conv: bool, mib: int, method: Method) -> None:
    base = CALIBRATION.base(GPUS[gpu_id], step(version, conv=conv))
    assert (base.num_bytes, base.method) == (mib * MIB, method)
    assert ("guess" in base.reason) == (method is Method.GUESSED)


def test_a_known_stack_goes_first() -> None:
    known = replace(CALIBRATION, stack=constant("hopper", (2, 0), 1500))
    assert known.base(GPUS["T4"], step("1.4")).num_bytes == 1500 * MIB


def test_no_constant_for_the_version_is_an_error_not_a_zero() -> None:
    with pytest.raises(LookupError):
        replace(CALIBRATION, bases=(constant("ampere", (2, 0), 800),)).base(GPUS["T4"], step("2.6"))


def test_the_device_band_joins_both_uncertainties() -> None:
    trace, gpu = step("2.6"), GPUS["A100-SXM4-80GB"]
    band = CALIBRATION.device_band(gpu, trace, 7200 * MIB)
    assert band.low == pytest.approx((0.95 * 7200 + 600) / 8000)
    assert band.high == pytest.approx((1.06 * 7200 + 1000) / 8000)
    assert CALIBRATION.device_band(gpu, trace, 0).low < band.low  # of a small program, the base is all


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.13.0+cpu", (2, 13)), ("1.4.0a0+a5b4d78", (1, 4)), ("", (2, 6)), ("nightly", (2, 6))],
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert torch_version(text) == version


def test_the_packaged_constants_cover_every_card() -> None:
    packaged = load()
    for gpu in GPUS.values():
        for version in ("2.13.0", "1.4.0"):
            assert 0 < packaged.base(gpu, step(version)).num_bytes < 2500 * MIB
    assert packaged.allocated.low <= 1 <= packaged.allocated.high
    assert packaged.reserved.low <= 1 <= packaged.reserved.high
    assert all(base.source for base in packaged.bases)
