"""What goes wrong is said once, clearly, with the next command; never with a traceback of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.torch

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(64, WIDTH).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = DataLoader(TensorDataset(torch.randn(256, 64)), 32)
for epoch in range(5):
    for (x,) in data:
        loss = model(x.cuda()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


class Ran:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Ran]:
    pytest.importorskip("torch")

    def call(code: str | None, *arguments: str, environment: dict[str, str] | None = None) -> Ran:
        script = tmp_path / "train.py"
        if code is not None:
            script.write_text(textwrap.dedent(code))
        command = [sys.executable, "-m", "gpurig", "plan", str(script), *arguments]
        env = {**os.environ, "GPURIG_HOME": str(tmp_path / "home"), **(environment or {})}
        return Ran(subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False))

    return call


def says(ran: Ran, *wanted: str) -> None:
    assert "gpurig/" not in ran.err.replace("gpurig/issues", ""), "a traceback of ours"
    for text in wanted:
        assert text in ran.err


def test_a_good_script_is_planned(plan) -> None:
    ran = plan(TRAINING.replace("WIDTH", "64"), "--gpu", "T4", "--epochs", "1")
    assert ran.code == 0, ran.err
    assert "T4" in ran.out
    assert "256 samples" in ran.out


def test_script_not_found(plan) -> None:
    ran = plan(None)
    assert ran.code == 2
    says(ran, "train.py", "error:")


def test_a_script_that_crashes_is_shown_as_the_users_error(plan) -> None:
    ran = plan("import torch\ndef load():\n    raise ValueError('no such column: age')\nload()\n")
    assert ran.code == 2
    says(ran, "no such column: age", "train.py:3", "in load")


def test_a_script_that_never_steps(plan) -> None:
    ran = plan("import torch\nprint(torch.randn(3).cuda().sum())\n")
    assert ran.code == 2
    says(ran, "optimizer step", "hint:")


def test_a_script_that_waits_for_ever(plan) -> None:
    ran = plan("import time\nwhile True:\n    time.sleep(0.1)\n", "--time-limit", "6")
    assert ran.code == 2
    says(ran, "6 s", "hint:")


def test_a_script_that_trains_on_the_cpu_is_no_pass(plan) -> None:
    ran = plan(TRAINING.replace("WIDTH", "64").replace(".cuda()", ""))
    assert ran.code == 2
    says(ran, "hint:")


def test_nothing_fits_says_what_would(plan) -> None:
    huge = TRAINING.replace("WIDTH).cuda()", "400_000_000, device='cuda')")
    ran = plan(huge, "--gpu", "T4", "--epochs", "1", "--quick")
    assert ran.code == 1
    says(ran, "needs", "GiB", "has", "hint:")


def test_an_unknown_gpu_is_answered_with_suggestions(plan) -> None:
    ran = plan(TRAINING.replace("WIDTH", "64"), "--gpu", "A1000")
    assert ran.code == 2
    says(ran, "unknown GPU", "did you mean")


def test_a_price_file_with_faults_shows_all_of_them(plan, tmp_path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[[discount]]\nprovider = "aws"\npercent = "ten"\n[[discout]]\n')
    ran = plan(TRAINING.replace("WIDTH", "64"), "--prices", str(prices))
    assert ran.code == 2
    says(ran, "percent", "discout")


def test_a_calibration_that_is_none(plan, tmp_path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text("{}")
    ran = plan(TRAINING.replace("WIDTH", "64"), "--calibration", str(path))
    assert ran.code == 2
    says(ran, "calibration.json")


def test_without_torch_it_says_how_to_install_it(plan, tmp_path) -> None:
    hidden = tmp_path / "hidden"
    (hidden / "torch").mkdir(parents=True)
    (hidden / "torch" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    ran = plan(
        TRAINING.replace("WIDTH", "64"),
        environment={"PYTHONPATH": f"{hidden}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert ran.code == 3
    says(ran, "torch", "pip install torch")


def test_data_that_needs_a_download_is_named(plan) -> None:
    ran = plan(
        """
        import urllib.request
        urllib.request.urlopen("https://data.example.org/train.zip").read()
        """
    )
    assert ran.code == 2
    says(ran, "data.example.org", "hint:")


def test_batch_and_shape_are_for_models_by_name(plan) -> None:
    ran = plan(TRAINING.replace("WIDTH", "64"), "--batch", "3")
    assert ran.code == 2
    says(ran, "--batch", "after --")
