"""What the guide promises is so: its price file is valid, its Python runs, its commands succeed, its counts are true."""

from __future__ import annotations

import re
import shlex
from datetime import date
from pathlib import Path

import pytest

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.mig import load_mig_profiles
from gpurig.catalog.offers import load_offers, provider_names
from gpurig.catalog.own_prices import read_own_prices
from gpurig.cli.main import run
from gpurig.cli.session import Session

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "catalogue.md").read_text(encoding="utf-8")
COMMANDS = [
    line.removeprefix("$ gpurig ").split("  #")[0].strip()
    for line in GUIDE.splitlines()
    if line.startswith("$ gpurig ") and "refresh" not in line
]


def _block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)
    assert found
    return found.group(1)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_succeeds(command: str) -> None:
    assert run(shlex.split(command), Session(today=date(2026, 12, 1))) == 0


def test_the_price_file_of_the_guide_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(_block("toml"), encoding="utf-8")
    own = read_own_prices(path, load_offers(), load_gpus())
    assert (len(own.rates), len(own.discounts), len(own.overrides), len(own.offers)) == (1, 1, 1, 1)


def test_the_python_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(_block("python"), "guide", "exec"), {})
    assert "Price(" in capsys.readouterr().out


def test_the_counts_of_the_guide_are_true() -> None:
    offers = load_offers()
    suspect = sum(offer.suspect is not None for offer in offers)
    for text in (
        f"({len(load_gpus())} parts)",
        f"({len(offers):,} offers of {len(provider_names(offers))} providers",
        f"({len(load_mig_profiles())} MIG profiles)",
        f"{suspect} in the packaged list",
    ):
        assert text in GUIDE
