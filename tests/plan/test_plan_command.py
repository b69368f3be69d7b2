"""``gpurig plan`` as a person and as a program see it."""

from __future__ import annotations

import json
import pickle
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpurig.cli.main import run
from gpurig.cli.session import Session
from gpurig.plan import make

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "plan"
COEFFICIENTS = HERE / "coefficients.json"


@pytest.fixture
def gpurig(tracer, monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run ``gpurig plan`` over a made-up script, on a fixed day, with frozen coefficients."""
    monkeypatch.setenv("GPURIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("GPURIG_PRICES", raising=False)

    def call(*arguments: str, **step: int) -> tuple[int, str, str]:
        door = tracer(**step)
        monkeypatch.setattr(make, "trace_script", door)
        monkeypatch.setattr(make.make_plan, "__kwdefaults__", {**make.make_plan.__kwdefaults__, "tracer": door})
        code = run(
            ["plan", "train.py", "--calibration", str(COEFFICIENTS), *arguments], Session(today=date(2026, 12, 1))
        )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def compare(name: str, text: str) -> None:
    import os

    path = GOLDEN / name
    if os.environ.get("GPURIG_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; GPURIG_UPDATE_GOLDEN=1 rewrites it"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("table", ["--epochs", "2", "--provider", "aws"]),
        ("wide", ["--epochs", "2", "--gpu", "L4", "--limit", "3"]),
        ("compare", ["--epochs", "2", "--compare", "L4:4", "--compare", "A100-40GB", "--compare", "T4:2"]),
        ("explain", ["--epochs", "2", "--provider", "aws", "--explain", "1"]),
        ("explain-spot", ["--epochs", "2", "--provider", "gcp", "--spot", "only", "--explain", "1"]),
        ("explain-cny", ["--epochs", "2", "--provider", "alibaba", "--gpu", "A10", "--explain", "1"]),
        ("nothing-fits", ["--epochs", "2", "--budget", "0.0001"]),
        ("unknown-gpu", ["--gpu", "A1000"]),
        ("two-lengths", ["--epochs", "2", "--steps", "5"]),
        ("no-such-choice", ["--epochs", "2", "--provider", "aws", "--explain", "99999"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_text_is_as_recorded(gpurig, name, arguments) -> None:
    code, out, err = gpurig(*arguments)
    compare(f"{name}.txt", f"{out}--- stderr\n{err}--- exit {code}\n")


def test_json_has_what_other_tools_read(gpurig) -> None:
    code, out, err = gpurig("--epochs", "2", "--provider", "aws", "--json")
    plan = json.loads(out)
    assert code == 0
    assert err == ""
    assert plan["steps_traced"] == 3
    assert plan["peak_memory_bytes"] > 0
    assert plan["choices"][0]["cost"] == min(c["cost"] for c in plan["choices"])
    assert plan["choices"][0]["prediction"]["time"]["band"]["low"] < 1
    assert sum(r["count"] for r in plan["rejections"]) <= plan["considered"]


def test_json_says_no_with_its_exit_code(gpurig) -> None:
    code, out, _ = gpurig("--epochs", "2", "--budget", "0.0001", "--json")
    assert code == 1
    assert json.loads(out)["choices"] == []


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] = self.seen.get(tag, 0) + 1
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]


def test_the_report_is_one_file_with_its_pictures(gpurig, tmp_path) -> None:
    target = tmp_path / "plan.html"
    code, _, _ = gpurig("--epochs", "2", "--provider", "aws", "--report", str(target))
    text = target.read_text(encoding="utf-8")
    tags = _Tags()
    tags.feed(text)
    assert code == 0
    assert tags.seen["svg"] == 3
    assert "script" not in tags.seen
    assert not tags.links
    compare("report.html", text)


def test_the_memory_snapshot_is_in_pytorchs_format(gpurig, tmp_path) -> None:
    target = tmp_path / "memory.pickle"
    gpurig("--epochs", "2", "--provider", "aws", "--memory-snapshot", str(target))
    snapshot = pickle.loads(target.read_bytes())
    history = snapshot["device_traces"][0]
    assert {"alloc", "free_completed"} == {event["action"] for event in history}
    assert all(event["size"] > 0 and event["frames"] for event in history)
    live = sum(e["size"] if e["action"] == "alloc" else -e["size"] for e in history)
    assert live == sum(b["requested_size"] for s in snapshot["segments"] for b in s["blocks"])
