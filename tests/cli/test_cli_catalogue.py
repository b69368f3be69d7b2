"""``gpurig gpus`` and ``gpurig offers``: text, JSON, exit codes, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gpurig.cli.render import MAX_COLUMNS, Column, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

GOLDEN_CALLS = {
    "help": ["--help"],
    "gpus_help": ["gpus", "--help"],
    "offers_help": ["offers", "--help"],
    "offers_refresh_help": ["offers", "refresh", "--help"],
    "gpus": ["gpus"],
    "gpus_a100": ["gpus", "A100"],
    "gpus_sheet_a100_sxm": ["gpus", "a100 80gb sxm"],
    "gpus_sheet_t4": ["gpus", "T4"],
    "gpus_sheet_not_rentable": ["gpus", "TITAN Xp"],
    "gpus_filtered": ["gpus", "--min-memory", "40GB+", "--dtype", "fp8", "--nvlink"],
    "gpus_none": ["gpus", "T4", "--min-memory", "24"],
    "offers_a100": ["offers", "--gpu", "A100"],
    "offers_h100_wired": ["offers", "--gpu", "h100", "--min-gpus", "8", "--wired", "--limit", "5"],
    "offers_t4_cny_to_usd": ["offers", "--gpu", "T4", "--provider", "alibaba", "--currency", "usd", "--rate", "CNY=7.1", "--limit", "3"],
    "offers_two_currencies": ["offers", "--gpu", "V100-SXM2-32GB", "--sort", "price", "--limit", "0"],
    "offers_spot": ["offers", "--gpu", "t4", "--spot", "--limit", "5"],
    "offers_slices": ["offers", "--gpu", "A10", "--max-memory", "8", "--limit", "3"],
    "offers_suspect": ["offers", "--suspect", "--limit", "0"],
    "offers_all_set_aside": ["offers", "--gpu", "K80", "--region", "us-east-1", "--provider", "aws"],
    "error_typo_in_gpu": ["offers", "--gpu", "A10O"],
    "error_no_offer": ["offers", "--gpu", "H100", "--country", "DE", "--max-price", "0.5"],
    "error_provider": ["offers", "--provider", "azur"],
    "error_command": ["ofers"],
    "error_option": ["offers", "--gpuu", "T4"],
    "error_memory": ["gpus", "--min-memory", "lots"],
    "error_capability": ["gpus", "--compute-capability", "eight"],
    "error_rate": ["offers", "--rate", "CNY"],
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN_CALLS)
def test_text_is_as_recorded(name: str, gpurig: Callable[..., Ran], golden: Callable[[str, str], None]) -> None:
    golden(name, gpurig(*GOLDEN_CALLS[name]).text)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["gpus"], 0),
        (["offers", "--gpu", "T4"], 0),
        (["--version"], 0),
        (["gpus", "T4", "--min-memory", "24"], 1),
        (["offers", "--gpu", "T4", "--max-price", "0.01"], 1),
        (["offers", "--suspect", "--gpu", "T4"], 1),
        (["offers", "--gpu", "A10O"], 2),
        (["offers", "--sort", "luck"], 2),
        (["nothing"], 2),
        (["offers", "--prices", "absent.toml"], 2),
        (["offers", "refresh"], 2),
        (["offers", "refresh", "--from", "/nonexistent/aws/vms.csv"], 3),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_exit_codes(arguments: list[str], code: int, gpurig: Callable[..., Ran]) -> None:
    ran = gpurig(*arguments)
    assert ran.code == code
    if code:
        assert ran.out == ""
        assert ran.err.startswith("error: ")
        assert "Traceback" not in ran.err


def test_offers_as_json_hold_every_field(gpurig: Callable[..., Ran]) -> None:
    ran = gpurig("offers", "--gpu", "A100-SXM4-40GB", "--provider", "aws", "--json")
    answer = json.loads(ran.out)
    assert answer["schema_version"] == 1
    offer = answer["offers"][0]
    assert offer["instance_type"] == "p4d.24xlarge"
    assert (offer["currency"], offer["snapshot_date"], offer["network_gbps"]) == ("USD", "2026-07-20", 400)
    assert answer["rates"]["CNY"]["as_of"] == "2024-12-31"
    assert answer["num_searched"] == len(answer["offers"]) + answer["num_set_aside"] + sum(answer["rejected"].values())


def test_gpus_as_json_hold_facts_and_mig_profiles(gpurig: Callable[..., Ran]) -> None:
    answer = json.loads(gpurig("gpus", "A30", "L4", "--json").out)
    a30, l4 = answer["gpus"]
    assert (a30["gpu_id"], a30["compute_capability"], a30["memory_type"]) == ("A30", [8, 0], "HBM2")
    assert a30["usable_memory_origin"].startswith("measured")
    assert next(profile["name"] for profile in a30["mig_profiles"]) == "1g.6gb"
    assert l4["mig_profiles"] == []


def test_an_error_under_json_is_json_too(gpurig: Callable[..., Ran]) -> None:
    ran = gpurig("offers", "--gpu", "A10O", "--json")
    error = json.loads(ran.out)["error"]
    assert (error["code"], error["exit_code"], ran.code) == ("unknown-name", 2, 2)
    assert ran.err.startswith("error: unknown GPU 'A10O'")


def test_a_price_limit_in_the_shown_currency(gpurig: Callable[..., Ran]) -> None:
    answer = json.loads(gpurig("offers", "--gpu", "T4", "--currency", "cny", "--max-price", "5.3", "--json").out)
    rate = answer["rates"]["CNY"]["units_per_usd"]
    paid = [o["price_per_h"] * (rate if o["currency"] == "USD" else 1) for o in answer["offers"]]
    assert paid
    assert max(paid) <= 5.3


def test_own_prices_are_marked(gpurig: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('[[discount]]\nprovider = "aws"\ninstance_type = "p4d*"\npercent = 50\n')
    ran = gpurig("offers", "--gpu", "A100-SXM4-40GB", "--provider", "aws", "--prices", str(path))
    assert "10.98* USD" in ran.out
    assert "own price or discount" in ran.err


def test_faults_of_a_price_file_are_all_shown(gpurig: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('[[discount]]\nprovider = "azur"\npercent = "half"\n')
    ran = gpurig("offers", "--prices", str(path))
    assert ran.code == 2
    assert "did you mean 'azure'?" in ran.err
    assert "percent must be a number, not 'half'" in ran.err


def test_a_refresh_is_reported(gpurig: Callable[..., Ran], tmp_path: Path, user_folder: Path) -> None:
    path = tmp_path / "quotes.csv"
    path.write_text(
        "provider,instance_type,gpu,gpu_count,price_per_h,currency,snapshot_date\nnewcloud,a,T4,1,0.3,USD,2026-11-30\n"
    )
    ran = gpurig("offers", "refresh", "--from", str(path))
    assert ran.out == "newcloud: 1 offers of 2026-11-30 in place of 0\n"
    assert str(user_folder) in ran.err
    assert "newcloud" in gpurig("offers", "--gpu", "T4", "--limit", "1").out


def test_no_colour_unless_asked(gpurig: Callable[..., Ran]) -> None:
    assert "\x1b[" not in gpurig("offers", "--gpu", "T4").text
    assert "\x1b[" in gpurig("offers", "--gpu", "T4", colour=True).text


@pytest.mark.parametrize("value", ["1", "yes"])
def test_no_color_is_honoured(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpurig.cli.session import Session

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Session.of_process().colour
    monkeypatch.setenv("NO_COLOR", value)
    assert not Session.of_process().colour


@pytest.mark.parametrize("name", [name for name in GOLDEN_CALLS if name.startswith(("gpus", "offers"))])
def test_tables_fit_a_terminal(name: str, gpurig: Callable[..., Ran]) -> None:
    width = 190 if name == "offers_suspect" else 140
    lines = [
        line
        for line in gpurig(*GOLDEN_CALLS[name]).out.splitlines()
        if not line.startswith(("note", "source", "cross-check", "memory", "cheapest", "mig source", "NVIDIA/"))
    ]
    lead = 1 if name.startswith("offers") else 0
    assert all(len(line) <= width for line in lines[lead:])


def test_more_than_eight_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        table([Column(str(n)) for n in range(MAX_COLUMNS + 1)], [])


def test_a_long_cell_is_cut() -> None:
    assert table([Column("name", max_width=5), Column("n", right=True)], [["abcdefgh", "1"], ["ab", "22"]]) == (
        "name    n\nabcd…   1\nab     22"
    )


def test_a_closed_pipe_is_no_error() -> None:
    code = "import sys; from gpurig.cli.main import run; sys.exit(run(['offers', '--limit', '0']))"
    reader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert b"Traceback" not in reader.stderr.read()
    reader.stderr.close()
    assert reader.wait() == 0
