from __future__ import annotations

from dataclasses import replace

import pytest
from cards import SYNC, VIEW, add, card, convolution, gemm, plain_step, trace_of

from gpurig.model.prediction import Method
from gpurig.model.recipe import Recipe
from gpurig.model.trace import InputProfile, Op, OpClass, Phase
from gpurig.predict.predict import at_precision, predict_time


def recipe(**options: object) -> Recipe:
    return Recipe(**{"precision": "fp32", "micro_batch": 8, **options})  # type: ignore[arg-type]


A100 = card("A100-SXM4-80GB")


def test_a_step_of_known_flops_takes_about_flops_over_peak():
    found = predict_time(plain_step(), recipe(), card("V100-SXM2-16GB"))
    ideal = 30 * 2 * 4096**3 / 15.7e12
    assert ideal < found.step_time_s < 1.6 * ideal
    assert found.mfu == pytest.approx(ideal / found.step_time_s, rel=0.1)
    assert found.forward_s + found.backward_s + found.optimizer_s == pytest.approx(found.step_time_s, rel=0.1)


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        pytest.param("T4", "A100-SXM4-40GB", id="T4 < A100"),
        pytest.param("V100-SXM2-16GB", "H100-SXM5-80GB", id="V100 < H100"),
        pytest.param("RTX3070", "RTX3090", id="3070 < 3090"),
        pytest.param("L4", "L40S", id="never measured: L4 < L40S"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_a_larger_card_is_faster(slow, fast, precision):
    times = [predict_time(plain_step(), recipe(precision=precision), card(g)).step_time_s for g in (slow, fast)]
    assert times[0] > times[1]


def test_tf32_is_faster_where_the_chip_has_it_and_the_same_where_not():
    step = plain_step()
    assert (
        predict_time(step, recipe(precision="tf32"), A100).step_time_s
        < 0.4 * predict_time(step, recipe(), A100).step_time_s
    )
    volta = card("V100-SXM2-16GB")
    assert predict_time(step, recipe(precision="tf32"), volta) == predict_time(step, recipe(), volta)


def test_another_precision_needs_another_trace():
    with pytest.raises(ValueError, match="trace again"):
        predict_time(plain_step(), recipe(precision="fp16-amp"), A100)


def test_bf16_has_the_operators_of_fp16():
    step = trace_of((gemm(dtype="fp16"), Phase.FORWARD, 1), precision="fp16-amp")
    assert [op.dtype for op in at_precision(step, "bf16-amp")] == ["bf16"]


def test_accumulation_repeats_all_but_the_update():
    step = plain_step()
    one, four = (predict_time(step, recipe(accumulation=n), A100) for n in (1, 4))
    update = one.optimizer_s
    assert four.step_time_s == pytest.approx(4 * (one.step_time_s - update) + update, rel=0.02)


SLOW_INPUT = InputProfile(30.0, 2, 1 << 20, 8, 1000, 125)


@pytest.mark.parametrize(
    ("step", "options", "expected"),
    [
        pytest.param(plain_step(), {}, "compute", id="products"),
        pytest.param(trace_of((add(), Phase.FORWARD, 50)), {}, "memory bandwidth", id="elementwise"),
        pytest.param(
            trace_of((add(64), Phase.FORWARD, 500), (VIEW, Phase.FORWARD, 500)), {}, "launch", id="tiny operators"
        ),
        pytest.param(plain_step(profile=SLOW_INPUT), {}, "input", id="a slow loader"),
        pytest.param(
            plain_step(times=1, gradients=(100 << 20,) * 20),
            {"num_gpus": 16, "num_nodes": 2},
            "communication",
            id="a slow network",
        ),
    ],
)
def test_bottleneck(step, options, expected):
    assert predict_time(step, recipe(**options), A100).bottleneck == expected


def test_the_input_pipeline_sets_the_pace_when_it_is_slower():
    found = predict_time(plain_step(profile=SLOW_INPUT), recipe(), A100)
    assert found.step_time_s == found.input_s == 15.0
    assert predict_time(plain_step(profile=replace(SLOW_INPUT, num_workers=0)), recipe(), A100).step_time_s > 30.0


def test_waiting_for_a_value_costs_time():
    busy = ((gemm(1024, 1024, 1024), Phase.FORWARD, 40), (add(64), Phase.FORWARD, 200))
    free = predict_time(trace_of(*busy), recipe(), A100).step_time_s
    waiting = predict_time(trace_of(*busy, (SYNC, Phase.FORWARD, 1)), recipe(), A100).step_time_s
    assert waiting > free


def test_more_gpus_take_longer_for_one_step_and_less_for_the_same_samples():
    step = plain_step()
    one = predict_time(step, recipe(), A100)
    eight = predict_time(step, recipe(num_gpus=8), A100)
    assert one.step_time_s < eight.step_time_s < 2 * one.step_time_s
    assert eight.exposed_communication_s == pytest.approx(eight.step_time_s - one.step_time_s)


def test_compiled_steps_issue_less_and_move_less():
    step = trace_of((add(), Phase.FORWARD, 50))
    eager, compiled = (predict_time(step, recipe(compiled=yes), A100) for yes in (False, True))
    assert compiled.step_time_s < eager.step_time_s
    assert compiled.band.method is Method.DERIVED


def test_the_band_says_how_much_is_known():
    step = plain_step()
    measured = predict_time(step, recipe(), A100).band
    unseen = predict_time(step, recipe(), card("H100-SXM5-80GB")).band
    assert measured.method is Method.CALIBRATED
    assert unseen.method is Method.DERIVED
    assert measured.low < 1 < measured.high
    assert unseen.percent > measured.percent
    assert "not measured" in unseen.reason


def test_a_recurrent_network_is_not_calibrated():
    rnn = Op("_cudnn_rnn", OpClass.RNN, "fp32", 10**12, 1 << 26, 1 << 26, 100, (100, 32, 512, 512, 2, 1, 4))
    band = predict_time(trace_of((rnn, Phase.FORWARD, 4)), recipe(), A100).band
    assert band.method is Method.DERIVED


def test_facts_that_the_data_sheet_leaves_open_are_assumed_and_named():
    found = predict_time(plain_step(), recipe(), card("RTX3080-Laptop"))
    assert "assumed: FP32 peak" in found.band.reason


def test_a_card_of_which_nothing_is_known_is_refused():
    unknown = replace(card("T4"), fp32_tflops=None, cuda_cores=None, sm_count=None)
    with pytest.raises(ValueError, match="not known"):
        predict_time(plain_step(), recipe(), unknown)


def test_time_by_class_adds_up_to_the_busy_device():
    found = predict_time(plain_step(), recipe(), A100)
    assert sum(part.time_s for part in found.by_class) == pytest.approx(found.device_busy_s)
    assert found.by_class[0].op_class == "gemm"


def test_depthwise_convolution_is_slower_per_flop_than_plain():
    plain, depthwise = convolution(), convolution(groups=128)
    times = [predict_time(trace_of((op, Phase.FORWARD, 10)), recipe(), A100) for op in (plain, depthwise)]
    rates = [t.by_class[0].flops / t.by_class[0].time_s for t in times]
    assert rates[1] < 0.5 * rates[0]
