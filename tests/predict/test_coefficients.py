from __future__ import annotations

import math

import pytest
from cards import card

from gpurig.errors import BadFile
from gpurig.predict.coefficients import (
    coefficients_from_json,
    coefficients_to_json,
    packaged_coefficients,
    read_coefficients,
)

PACKAGED = packaged_coefficients()


def test_json_form_gives_the_same_coefficients_back():
    text = coefficients_to_json(PACKAGED)
    assert coefficients_from_json(text, "test") == PACKAGED
    assert coefficients_to_json(coefficients_from_json(text, "test")) == text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1, "terms": {}}'], ids=repr
)
def test_another_file_is_refused(text):
    with pytest.raises(BadFile):
        coefficients_from_json(text, "test")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(BadFile, match="cannot read"):
        read_coefficients(tmp_path / "none.json")


# consumer cards clock up to a quarter above the boost clock of their data sheet, which the peaks are for
CONSUMER = 1.25


def clock_of(gpu_id: str) -> float:
    return CONSUMER if gpu_id.startswith(("GTX", "RTX20", "RTX30", "TITAN")) else 1.0


@pytest.mark.parametrize("pipe", ["simt", "tf32", "half", "memory"])
def test_rates_of_cards_are_shares_of_their_peaks(pipe):
    for gpu_id in PACKAGED.gpu_rates:
        assert 0.3 < math.exp(PACKAGED.pipe_log_rate(card(gpu_id), pipe)) < 1.1 * clock_of(gpu_id), gpu_id


@pytest.mark.parametrize(
    ("term", "pipe"),
    [("gemm:simt", "simt"), ("gemm:tf32", "tf32"), ("gemm:half", "half"), ("conv:half", "half"), ("conv:simt", "simt")],
)
def test_no_class_is_more_efficient_than_what_the_chip_can_clock(term, pipe):
    for gpu_id in PACKAGED.gpu_rates:
        share = math.exp(PACKAGED.terms[term] + PACKAGED.pipe_log_rate(card(gpu_id), pipe))
        assert share < clock_of(gpu_id), gpu_id


def test_a_card_of_70_watts_is_not_expected_to_hold_its_clock():
    t4, large = (PACKAGED.prior_log_rate(card(g), "simt") for g in ("T4", "RTX6000"))
    assert t4 < large - 0.2


def test_bands_hold_their_own_median_and_widen_with_ignorance():
    bands = PACKAGED.bands
    assert set(bands) == {f"gpu:{g} model:{m}" for g in ("yes", "no") for m in ("yes", "no")}
    for band in bands.values():
        assert 0 < band.low < band.median < band.high
    known, unknown = bands["gpu:yes model:yes"], bands["gpu:no model:no"]
    assert unknown.high - unknown.low > known.high - known.low
