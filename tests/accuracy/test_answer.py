from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import BERT, RESNET, changed, run_of

from gpurig.accuracy.answer import in_unit_of, is_trusted, memory_bytes, memory_measure, step_time_s
from gpurig.accuracy.table import THROUGHPUT_UNITS
from gpurig.accuracy.workload import Workload, rebuild


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        pytest.param({"throughput": "160", "throughput_unit": "images/s"}, 0.1, id="rate"),
        pytest.param(
            {"throughput": "160", "throughput_unit": "images/s", "gpu_count": "4"}, 0.4, id="rate of four GPUs"
        ),
        pytest.param({"throughput": "160", "throughput_unit": "images/s", "grad_accum": "8"}, 0.8, id="accumulated"),
        pytest.param({"throughput": "25", "throughput_unit": "ms/iter"}, 0.025, id="milliseconds"),
        pytest.param({"throughput": "0.5", "throughput_unit": "s/iter"}, 0.5, id="seconds"),
        pytest.param({"throughput": "4", "throughput_unit": "steps/s"}, 0.25, id="steps"),
        pytest.param({"throughput": "64", "throughput_unit": "s for 1024 samples"}, 1.0, id="time of many"),
        pytest.param({"throughput": "10", "throughput_unit": "mel-frames/s"}, None, id="a unit that does not say"),
    ],
)
def test_published_step_time(tmp_path, cells, seconds):
    run = run_of(tmp_path, RESNET, **cells)
    workload = rebuild(run)
    assert isinstance(workload, Workload)
    assert step_time_s(run, workload) == pytest.approx(seconds)


def test_tokens_per_second(tmp_path):
    run = run_of(tmp_path, BERT, throughput="20480", throughput_unit="tokens/s")
    workload = rebuild(run)
    assert isinstance(workload, Workload)
    assert step_time_s(run, workload) == pytest.approx(16 * 128 / 20480)


@given(st.sampled_from([u for u in THROUGHPUT_UNITS if "mel" not in u and "audio" not in u]), st.floats(0.01, 100))
def test_a_step_predicted_exactly_gives_the_published_value(unit, value):
    run = changed(_RUN, throughput=value, throughput_unit=unit)
    workload = rebuild(run)
    assert isinstance(workload, Workload)
    published = step_time_s(run, workload)
    assert published is not None
    assert in_unit_of(run, published, published) == pytest.approx(value)
    # twice the time is half the rate, or twice the time
    assert in_unit_of(run, published, 2 * published) in (pytest.approx(value / 2), pytest.approx(value * 2))


@pytest.fixture(scope="module", autouse=True)
def _one_run(tmp_path_factory):
    global _RUN  # noqa: PLW0603
    _RUN = run_of(tmp_path_factory.mktemp("run"), BERT)


@pytest.mark.parametrize(
    ("words", "measure"),
    [
        ("torch max_memory_allocated (bytes x 1e-6)", "allocated"),
        ("peak memory active (torch)", "allocated"),
        ("torch max reserved over the run", "reserved"),
        ("NVML device used, peak over the run", "device"),
        ("nvidia-smi steady state (context and cached blocks included)", "device"),
    ],
)
def test_kind_of_memory(tmp_path, words, measure):
    assert memory_measure(run_of(tmp_path, RESNET, memory="1", memory_unit="GB", memory_measure=words)) == measure


@pytest.mark.parametrize(("unit", "num_bytes"), [("GB", 1e9), ("GiB", 2**30), ("MiB", 2**20), ("MB", 1e6)])
def test_units_of_memory(tmp_path, unit, num_bytes):
    assert memory_bytes(run_of(tmp_path, RESNET, memory="2", memory_unit=unit)) == 2 * num_bytes


@pytest.mark.parametrize(
    ("cells", "kind", "trusted"),
    [
        pytest.param({"core": "1", "core_kind": "throughput"}, "time", True, id="core time"),
        pytest.param({"core": "1", "core_kind": "throughput"}, "memory", False, id="its memory is not core"),
        pytest.param({"core": "1", "core_kind": "both"}, "memory", True, id="both"),
        pytest.param({"core": "0"}, "time", False, id="not core"),
        pytest.param({"core": "1", "core_kind": "both", "notes": "SUSPECT: odd"}, "time", False, id="suspect"),
        pytest.param(
            {"core": "1", "core_kind": "both", "notes": "NEAR CAPACITY"}, "memory", False, id="bounded by the card"
        ),
    ],
)
def test_what_counts_in_the_headline(tmp_path, cells, kind, trusted):
    assert is_trusted(run_of(tmp_path, RESNET, **cells), kind, table_has_core=True) is trusted


def test_in_a_table_without_core_rows_every_row_counts(tmp_path):
    assert is_trusted(run_of(tmp_path), "time", table_has_core=False)
