"""Run a command in this process on a fixed day, and compare its text with a golden file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpurig.cli.main import run
from gpurig.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "cli"
TODAY = date(2026, 12, 1)


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """What a person sees, with the exit code: the form of the golden files."""
        return f"{self.out}--- stderr\n{self.err}--- exit {self.code}\n"


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("GPURIG_HOME", str(home))
    monkeypatch.delenv("GPURIG_PRICES", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    return home


@pytest.fixture
def gpurig(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run ``gpurig ARGUMENTS``."""

    def call(*arguments: str, colour: bool = False) -> Ran:
        code = run(list(arguments), Session(today=TODAY, colour=colour))
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare with tests/golden/cli/NAME.txt; GPURIG_UPDATE_GOLDEN=1 writes it instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if os.environ.get("GPURIG_UPDATE_GOLDEN"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path} differs; GPURIG_UPDATE_GOLDEN=1 rewrites it"

    return compare
