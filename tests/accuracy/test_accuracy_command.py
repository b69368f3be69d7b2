from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from runs import RESNET, write_table

from gpurig.cli.accuracy import command
from gpurig.cli.session import Session

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
NCF = {
    **RESNET,
    "model": "ncf",
    "task": "recommendation",
    "input_shape": "",
    "optimizer": "Adam",
    "per_gpu_batch": "4096",
}


def run(*arguments: str):
    from datetime import date

    return CliRunner().invoke(command, ["predict", *arguments], obj=Session(today=date(2026, 12, 1)))


@pytest.fixture
def table(tmp_path):
    return write_table(
        tmp_path / "runs.csv",
        {**NCF, "row_id": "fits", "throughput": "3000000", "throughput_unit": "samples/s", "memory": "1.5", "memory_unit": "GiB",
         "memory_measure": "nvidia-smi"},
        {**NCF, "row_id": "other card", "gpu": "T4", "throughput": "900000", "throughput_unit": "samples/s"},
        {**NCF, "row_id": "unknown card", "gpu": "Voodoo 2"},
        {**NCF, "row_id": "unknown model", "model": "mmseg:x"},
    )  # fmt: skip


def test_every_published_value_has_one_row(table, tmp_path):
    result = run(str(table), "--cache", str(tmp_path / "c"), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)["accuracy"]
    rows = {(row["row_id"], row["kind"]): row for row in report["rows"]}
    assert set(rows) == {
        ("fits", "time"),
        ("fits", "memory"),
        ("other card", "time"),
        ("unknown card", "time"),
        ("unknown model", "time"),
    }
    answered = rows["fits", "time"]
    assert {"row_id", "kind", "gpu", "source_repo", "model", "published", "predicted"} <= set(answered)
    assert answered["published"] == 3000000
    assert answered["predicted"] > 0
    assert rows["unknown card", "time"]["predicted"] is None
    assert rows["unknown card", "time"]["reason"] == "GPU not known"
    assert rows["unknown model", "time"]["reason"].startswith("model not public")
    assert report["pairs"]["total"] == 1
    assert report["verdicts"] == 2


def test_text_leads_with_the_answer(table, tmp_path):
    result = run(str(table), "--cache", str(tmp_path / "c"))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("runs.csv: median error step time")
    for part in ("Without an answer", "GPU not known", "Pairs of GPUs", "roofline at peak rates"):
        assert part in result.stdout


def test_a_sample_is_the_same_for_the_same_seed(table, tmp_path):
    first, second, other = (
        json.loads(run(str(table), "--cache", str(tmp_path / "c"), "--sample", "2", "--seed", seed, "--json").stdout)[
            "accuracy"
        ]
        for seed in ("1", "1", "2")
    )
    ids = [[row["row_id"] for row in report["rows"]] for report in (first, second, other)]
    assert ids[0] == ids[1] != ids[2]


def test_no_answer_at_all_is_exit_1(tmp_path):
    path = write_table(tmp_path / "runs.csv", {**NCF, "gpu": "Voodoo 2"})
    assert run(str(path), "--cache", str(tmp_path / "c")).exit_code == 1


def test_too_few_rows_for_cross_validation_are_refused(table, tmp_path):
    result = run(str(table), "--cache", str(tmp_path / "c"), "--cross-validate", "gpu")
    assert result.exit_code != 0
    assert "cross-validation needs" in str(result.exception)
