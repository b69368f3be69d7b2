from __future__ import annotations

from dataclasses import replace

import pytest

from gpurig.accuracy.traces import Traced, Tracer, sm_class, trace_workload
from gpurig.accuracy.workload import Unanswerable, Workload
from gpurig.model.trace import OpClass, StepTrace

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
NCF = Workload(model="ncf", batch=64, precision="fp32", optimizer="adam", task="recommend")


@pytest.fixture(scope="module")
def tracer(tmp_path_factory):
    with Tracer(tmp_path_factory.mktemp("traces"), timeout_s=120) as tracer:
        yield tracer


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        pytest.param({}, {OpClass.GEMM, OpClass.EMBEDDING}, id="fp32"),
        pytest.param(
            {"precision": "fp16-amp", "grad_scaler": True}, {OpClass.GEMM, OpClass.SYNC}, id="autocast and scaler"
        ),
        pytest.param({"precision": "fp16-masters"}, {OpClass.GEMM, OpClass.OPTIMIZER}, id="fp32 masters"),
        pytest.param({"optimizer": "lamb"}, {OpClass.OPTIMIZER}, id="LAMB"),
        pytest.param({"optimizer": "bert-adam"}, {OpClass.ELEMENTWISE}, id="loop over tensors"),
        pytest.param({"zero_grad": "never", "accumulation": 16}, {OpClass.GEMM}, id="gradients pile up"),
        pytest.param({"optimizer": "none", "hold_outputs": True}, {OpClass.GEMM}, id="no optimizer"),
    ],
)
def test_a_workload_traces(changes, kinds):
    trace = trace_workload(Traced(replace(NCF, **changes), 80))
    assert kinds <= {op.op_class for op in trace.ops}
    assert trace.calls


def test_a_trace_is_kept_and_read_back(tracer):
    traced = Traced(NCF, 80)
    first = tracer.trace(traced)
    assert isinstance(first, StepTrace)
    assert tracer.kept(traced) == first


def test_fewer_steps_are_answered_by_more(tracer):
    assert isinstance(tracer.trace(Traced(NCF, 80)), StepTrace)
    assert tracer.kept(Traced(NCF, 80, steps=2)) is not None


def test_a_model_that_does_not_exist_is_a_reason_and_not_the_end(tracer):
    answer = tracer.trace(Traced(replace(NCF, model="transformers:no-such-model"), 80))
    assert isinstance(answer, Unanswerable)
    assert "no-such-model" in answer.reason
    assert isinstance(tracer.trace(Traced(replace(NCF, batch=65), 80)), StepTrace)


def test_a_trace_that_takes_too_long_is_given_up(tmp_path):
    with Tracer(tmp_path, timeout_s=0.0) as impatient:
        answer = impatient.trace(Traced(NCF, 80))
    assert isinstance(answer, Unanswerable)
    assert "took longer" in answer.reason


def test_a_spoiled_cache_is_made_again(tracer):
    traced = Traced(replace(NCF, batch=66), 80)
    tracer.trace(traced)
    file = tracer._file(traced)
    file.write_bytes(b"spoiled")
    assert tracer.kept(traced) is None
    assert isinstance(tracer.trace(traced), StepTrace)


@pytest.mark.parametrize(
    ("sm", "attention", "expected"),
    [(75, "sdpa", 75), (86, "sdpa", 80), (61, "sdpa", 70), (90, "eager", 80), (None, "sdpa", 80)],
)
def test_class_of_gpu_to_trace_for(sm, attention, expected):
    assert sm_class(sm, replace(NCF, model="transformers:gpt2", attention=attention)) == expected
