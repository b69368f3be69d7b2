"""What scripts do with a GPU works on the planned device, and afterwards nothing of ours is left in PyTorch."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))
from typing import TYPE_CHECKING

from habits import HABITS

from gpurig.trace.card import CardFacts
from gpurig.trace.patches import Patches
from gpurig.trace.script.guards import install_files
from gpurig.trace.script.launch import Launch
from gpurig.trace.script.request import ScriptRequest
from gpurig.trace.session import Session
from gpurig.trace.standins import install as install_standins

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("habit", HABITS, ids=lambda h: h.__name__)
def test_habit(habit: Callable[[], None]) -> None:
    session = Session(CardFacts())
    patches = Patches()
    Launch(session, ScriptRequest(script="train.py")).install(patches)
    install_standins(patches, session)
    install_files(patches, session)
    try:
        with session(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            habit()
    finally:
        patches.restore()


def test_nothing_is_left_behind() -> None:
    names = {
        "torch": vars(torch),
        "cuda": vars(torch.cuda),
        "tensor": vars(torch.Tensor),
        "module": vars(torch.nn.Module),
    }
    before = {where: dict(found) for where, found in names.items()}
    with Session(CardFacts())():
        torch.nn.Linear(4, 4).cuda()(torch.randn(2, 4, device="cuda")).sum().backward()
    for where, found in names.items():
        changed = {k for k in {*found, *before[where]} if found.get(k) is not before[where].get(k)}
        assert not changed, f"{where}: {sorted(changed)}"
