from __future__ import annotations

import pytest
from runs import RESNET, write_table

from gpurig.accuracy.table import read_table
from gpurig.errors import BadFile


def test_blank_cells_are_not_known(tmp_path):
    run = read_table(
        write_table(tmp_path / "t.csv", {**RESNET, "channels_last": "", "memory": "", "per_gpu_batch": ""})
    )[0]
    assert run.channels_last is None
    assert run.memory is None
    assert run.batch is None
    assert run.throughput == 500


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    path = write_table(
        tmp_path / "t.csv",
        {**RESNET, "row_id": "a", "throughput": "fast"},
        {**RESNET, "row_id": "b", "kind": "guess", "throughput_unit": "frogs/s"},
        {**RESNET, "row_id": "c", "memory": "5", "memory_unit": "stone"},
        {**RESNET, "row_id": "d", "per_gpu_batch": "-4"},
    )
    with pytest.raises(BadFile) as caught:
        read_table(path)
    text = "\n".join(caught.value.details)
    for part in (
        "line 2: throughput 'fast'",
        "kind 'guess'",
        "frogs/s",
        "line 4: memory_unit 'stone'",
        "line 5: per_gpu_batch",
    ):
        assert part in text


def test_columns_that_are_missing_are_named(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("row_id,gpu\n1,A100\n")
    with pytest.raises(BadFile) as caught:
        read_table(path)
    assert {"column 'model' is missing", "column 'precision' is missing"} <= set(caught.value.details)


@pytest.mark.parametrize(
    "content", [b"", b"row_id,kind,model,gpu,precision,per_gpu_batch,memory\n", b"\xff\xfe\x00"], ids=repr
)
def test_what_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(BadFile):
        read_table(path)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadFile, match="cannot read"):
        read_table(tmp_path / "none.csv")


def test_a_row_id_that_occurs_twice_is_a_fault(tmp_path):
    with pytest.raises(BadFile) as caught:
        read_table(write_table(tmp_path / "t.csv", RESNET, RESNET))
    assert "occurs twice" in caught.value.details[0]
