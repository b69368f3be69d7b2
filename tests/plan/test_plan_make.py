"""From a script to a plan: which variants are traced, and how the run's length is found."""

from __future__ import annotations

import pytest
from plan_steps import step

from gpurig.catalog.query import OfferFilter
from gpurig.errors import InputError, UnknownName
from gpurig.model.plan import Reason
from gpurig.plan.make import PlanRequest, make_plan
from gpurig.plan.run_length import run_length
from gpurig.trace.script import ScriptRequest

SCRIPT = ScriptRequest(script="train.py")


def request(**changes) -> PlanRequest:
    return PlanRequest(**{"script": SCRIPT, "names": ("A100",), "epochs": 1.0, **changes})


def test_a_second_batch_size_is_traced_if_the_loader_can_be_told(tracer) -> None:
    door = tracer()
    planned = make_plan(request(), tracer=door)
    assert [r.batch_scale for r in door.asked] == [1.0, 0.5]
    assert planned.workload.batch.adjustable


def test_one_trace_is_enough_if_asked_for(tracer) -> None:
    door = tracer()
    planned = make_plan(request(vary_batch=False), tracer=door)
    assert len(door.asked) == 1
    assert all(c.recipe.micro_batch == 16 for c in planned.plan.choices)


def test_without_a_knob_the_scripts_batch_stays(tracer) -> None:
    planned = make_plan(request(), tracer=tracer(batch_knob=False))
    assert not planned.workload.batch.adjustable


def test_other_precisions_are_traced_on_request(tracer) -> None:
    door = tracer()
    planned = make_plan(request(precisions=("fp32",), vary_batch=False), tracer=door)
    assert [r.precision for r in door.asked] == [None, "fp32"]
    assert planned.workload.precisions == ("bf16-amp", "fp32")


def test_a_gpu_without_the_precision_is_rejected_for_it(tracer) -> None:
    planned = make_plan(request(names=("T4",)), tracer=tracer())
    assert not planned.plan.choices
    assert Reason.PRECISION in {r.reason for r in planned.plan.rejections}


def test_less_micro_batch_and_more_accumulation_make_it_fit(tracer) -> None:
    planned = make_plan(request(names=("L4",)), tracer=tracer(activation_mib_per_sample=2048))
    best = planned.plan.best
    assert best is not None
    assert best.recipe.micro_batch * best.recipe.accumulation * best.recipe.num_gpus == 16
    assert best.recipe.micro_batch < 16


def test_nothing_fits_names_the_nearest(tracer) -> None:
    planned = make_plan(request(names=("T4", "L4")), tracer=tracer(weights_mib=200_000))
    (memory,) = [r for r in planned.plan.rejections if r.reason is Reason.MEMORY]
    assert memory.nearest.startswith("L4: needs")


def test_wishes_are_checked_before_the_script_is_executed(tracer) -> None:
    door = tracer()
    with pytest.raises(UnknownName):
        make_plan(request(names=("A1000000",)), tracer=door)
    with pytest.raises(UnknownName):
        make_plan(request(wanted=OfferFilter(providers=frozenset({"awss"}))), tracer=door)
    assert not door.asked


@pytest.mark.parametrize(
    ("argv", "given", "samples", "assumed"),
    [
        pytest.param((), {"epochs": 3.0}, 150_000, False, id="epochs"),
        pytest.param((), {"steps": 100.0}, 1_600, False, id="steps"),
        pytest.param((), {"samples": 42.0}, 42, False, id="samples"),
        pytest.param((), {}, 50_000, True, id="one epoch assumed"),
        pytest.param(("--epochs", "90"), {}, 4_500_000, True, id="read from the arguments"),
        pytest.param(("--num-epochs=2",), {}, 100_000, True, id="with equals and dashes"),
        pytest.param(("--max_steps", "10"), {}, 160, True, id="steps of the arguments"),
        pytest.param(("--epochs", "many"), {}, 50_000, True, id="not a number"),
        pytest.param(("--epochs",), {}, 50_000, True, id="no value"),
    ],
)
def test_length_of_the_run(argv, given, samples, assumed) -> None:
    length = run_length(step(16), argv, **given)
    assert (length.samples, length.assumed) == (samples, assumed)


def test_steps_are_assumed_where_the_data_has_no_length() -> None:
    length = run_length(step(16, dataset=None))
    assert length.assumed
    assert "assumed" in length.text


@pytest.mark.parametrize(
    ("dataset", "given"),
    [
        pytest.param(50_000, {"epochs": 1.0, "steps": 1.0}, id="twice"),
        pytest.param(None, {"epochs": 1.0}, id="epochs of no data set"),
    ],
)
def test_a_length_that_makes_no_sense_is_refused(dataset, given) -> None:
    with pytest.raises(InputError):
        run_length(step(16, dataset=dataset), (), **given)
