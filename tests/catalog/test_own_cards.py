"""A card file is read whole or refused with all its faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gpurig.catalog.gpus import load_gpus
from gpurig.catalog.own_cards import read_own_cards
from gpurig.errors import BadFile

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
[[gpu]]
gpu_id = "RTX4090-48GB"
like = "RTX4090"
memory_gb = 48
compute_capability = "8.9"
"""
BAD = """
speed = 3
[[gpu]]
gpu_id = 5
like = "RTX409"
memmory_gb = 48
sm_count = 12.5
tdp_w = -1
compute_capability = 89
"""


def test_a_card_takes_what_it_does_not_say_from_another(tmp_path: Path) -> None:
    path = tmp_path / "cards.toml"
    path.write_text(GOOD)
    (card,) = read_own_cards(path, load_gpus()).values()
    model = load_gpus()["RTX4090"]
    assert (card.memory_gb, card.usable_memory_gib) == (48, pytest.approx(47.04))
    assert card.memory_bandwidth_gb_per_s == model.memory_bandwidth_gb_per_s
    assert card.source == str(path)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cards.toml"
    path.write_text(BAD)
    with pytest.raises(BadFile) as caught:
        read_own_cards(path, load_gpus())
    text = "\n".join(caught.value.details)
    for expected in (
        "speed",
        "RTX4090",
        "memory_gb?",
        "sm_count is a whole",
        "tdp_w is a positive",
        '"8.9"',
        "gpu_id is a text",
    ):
        assert expected in text


@pytest.mark.parametrize("text", ["", "[[gpu", "gpu = 3"], ids=["empty", "no TOML", "no table"])
def test_a_file_without_cards_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cards.toml"
    path.write_text(text)
    with pytest.raises(BadFile):
        read_own_cards(path, load_gpus())


def test_the_users_file_is_part_of_the_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cards.toml"
    path.write_text(GOOD)
    monkeypatch.setenv("GPURIG_CARDS", str(path))
    load_gpus.cache_clear()
    try:
        assert "RTX4090-48GB" in load_gpus()
    finally:
        monkeypatch.delenv("GPURIG_CARDS")
        load_gpus.cache_clear()
