"""Base memory and spreads from readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurig.accuracy.memory_fit import (
    Reading,
    StackKey,
    calibration_to_json,
    fit_stack,
    fit_stacks,
    spreads,
    stack_of,
    stacks_to_json,
)
from gpurig.accuracy.table import MeasuredRun
from gpurig.predict.base_memory import MIB, BaseConstant, MemoryCalibration, Spread, from_json

RUN = MeasuredRun(
    row_id="1", kind="train", source="a/source", task="", model="timm:resnet50", family="", input_shape="", seq_len="",
    optimizer="", framework="pytorch", framework_version="2.1.0", gpu="A100", num_gpus=1, precision="fp32", batch=8,
    grad_accum="", checkpointing=False, compiled=False, channels_last=None, throughput=None, throughput_unit="", memory=1.0,
    memory_unit="MiB", memory_measure="", out_of_memory="", core=True, core_kind="memory", notes="",
)  # fmt: skip
KEY = StackKey("a/source", "ampere", (2, 0))


def reading(reserved_mib: float, outside_mib: float, *, conv: bool = False, measure: str = "device") -> Reading:
    return Reading(
        run=RUN, measure=measure, published=(reserved_mib + outside_mib) * MIB, allocated=int(0.9 * reserved_mib * MIB),
        reserved=int(reserved_mib * MIB), convolutions=conv,
    )  # fmt: skip


def test_a_stack_without_convolutions_has_one_constant() -> None:
    stack = fit_stack(KEY, [reading(1000 * n, 800) for n in range(1, 6)])
    assert (stack.constant.context_mib, stack.constant.convolution_mib) == (800, 0)
    assert (stack.constant.rows, stack.constant.spread_mib) == (5, 0)


def test_convolution_nets_lie_higher_by_a_constant_of_their_own() -> None:
    seen = [reading(1000 * n, 800) for n in range(1, 6)] + [reading(1000 * n, 950, conv=True) for n in range(1, 6)]
    stack = fit_stack(KEY, seen)
    assert (stack.constant.context_mib, stack.constant.convolution_mib) == (800, 150)


def test_small_runs_decide_since_errors_are_relative() -> None:
    small = [reading(500, 800) for _ in range(3)]
    large = [reading(50_000, 3000) for _ in range(3)]
    assert fit_stack(KEY, [*small, *large]).constant.context_mib == pytest.approx(800, abs=5)


def test_no_reading_is_an_error() -> None:
    with pytest.raises(ValueError, match="a/source"):
        fit_stack(KEY, [])


@pytest.mark.parametrize(
    ("version", "expected"), [("2.1.0", (2, 0)), ("1.9.0a0+df837d0", (1, 7)), ("1.4.0a0+a5b4d78", (0, 0))]
)
def test_a_run_belongs_to_the_newest_stack_that_is_not_newer(version: str, expected: tuple[int, int]) -> None:
    keys = [StackKey("a/source", "ampere", start) for start in ((0, 0), (1, 7), (2, 0))]
    found = stack_of(replace(RUN, framework_version=version), keys)
    assert found is not None
    assert found.torch_from == expected
    assert stack_of(replace(RUN, source="another"), keys) is None


def test_spreads_know_the_base_of_the_stack() -> None:
    seen = [reading(1000, 800), reading(1000, 850), reading(1000, 750), reading(1000, 0, measure="allocated")]
    stacks = fit_stacks(seen, [KEY])
    allocated, reserved = spreads(seen, stacks)
    assert (allocated.rows, reserved.rows) == (1, 3)
    assert 0.94 <= reserved.low <= 1 <= reserved.high <= 1.06
    assert allocated.high == pytest.approx(1 / 0.9, abs=1e-3)


def test_files_are_read_back_as_written() -> None:
    constant = BaseConstant(
        architecture="*",
        torch_from=(0, 0),
        context_mib=700.0,
        convolution_mib=0.0,
        spread_mib=400.0,
        rows=0,
        source="said",
    )
    spread = Spread(low=0.97, high=1.03, rows=12)
    calibration = MemoryCalibration(bases=(constant,), allocated=spread, reserved=spread)
    assert from_json(calibration_to_json(calibration)) == calibration
    assert '"a/source"' in stacks_to_json([fit_stack(KEY, [reading(1000, 800)])])
