"""The emulation of CUDA's dispatch equals the real one, operator by operator and byte by byte.

The oracle is PyTorch's own dispatch over a CUDA device that does nothing (oracle/shim.cpp). Both sides trace the same models
in processes of their own.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
DIGEST = HERE / "oracle" / "digest.py"
sys.path.insert(0, str(HERE))
import zoo

Seen = dict[str, dict[str, object]]


def _torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("g++") is None:
        pytest.skip("the oracle is compiled with g++")
    folder = _torch_folder()
    if list((folder / "lib").glob("libtorch_cuda.so")):
        pytest.skip("the oracle needs a PyTorch build without CUDA")
    target = tmp_path_factory.mktemp("oracle") / "shim.so"
    include = folder / "include"
    subprocess.run(
        ["g++", "-O1", "-shared", "-fPIC", "-std=c++20", f"-I{include}", f"-I{include / 'torch/csrc/api/include'}",
         str(HERE / "oracle" / "shim.cpp"), "-o", str(target), f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu"],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(target)


def _digest(shim: str) -> Seen:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(DIGEST), shim], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (json.loads(line) for line in done.stdout.splitlines())
    return {line["case"]: line for line in lines}


@pytest.fixture(scope="module")
def emulated() -> Seen:
    return _digest("none")


@pytest.fixture(scope="module")
def real(shim: str) -> Seen:
    return _digest(shim)


CASES = [f"{name}/{precision}" for name in zoo.ZOO for precision in zoo.PRECISIONS]


@pytest.mark.torch
def test_the_zoo_is_large_enough() -> None:
    assert len(zoo.ZOO) >= 12


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_emulated_equals_real(case: str, emulated: Seen, real: Seen) -> None:
    assert emulated[case]["ops"] == real[case]["ops"]
    assert emulated[case]["allocated"] == real[case]["allocated"]
    assert emulated[case]["reserved"] == real[case]["reserved"]


@pytest.mark.torch
def test_autocast_lists_are_those_of_this_pytorch() -> None:
    """Every operator in the header's lists is in ours: what is missing would silently stay in fp32 or half."""
    import re

    from gpurig.trace import autocast

    header = _torch_folder() / "include" / "ATen" / "autocast_mode.h"
    if not header.exists() or "AT_FORALL_FP32_SET_OPT_DTYPE" not in header.read_text():
        pytest.skip("this PyTorch has its lists elsewhere")
    text = header.read_text()
    lists = {
        "AT_FORALL_LOWER_PRECISION_FP": autocast.LOWER_PRECISION,
        "AT_FORALL_FP32": autocast.FP32,
        "AT_FORALL_FP32_SET_OPT_DTYPE": autocast.FP32_SET_OPT_DTYPE,
        "AT_FORALL_PROMOTE": autocast.PROMOTE,
    }
    for macro, ours in lists.items():
        body = re.search(rf"#define {macro}\(_\)((?:[^\n]*\\\n)*[^\n]*)\n", text)
        assert body is not None
        named = [
            name if not variant else f"{name}.{variant}"
            for name, variant in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", body[1])
        ]
        assert named
        assert set(named) <= set(ours), macro
