"""A user folder of its own for every test, and offers to build tables from."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from gpurig.catalog.gpus import load_gpus
from gpurig.model.offer import Currency, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpurig.model.gpu import Gpu


settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("GPURIG_HOME", str(home))
    monkeypatch.delenv("GPURIG_PRICES", raising=False)
    return home


@pytest.fixture(scope="session")
def gpus() -> dict[str, Gpu]:
    return load_gpus()


@pytest.fixture(scope="session")
def make_offer() -> Callable[..., Offer]:
    def make(**changes: Any) -> Offer:
        facts: dict[str, Any] = {
            "provider": "cloud",
            "instance_type": "t4.small",
            "region": "r-1",
            "gpu_id": "T4",
            "gpu_family": "T4",
            "gpu_count": 1.0,
            "gpu_memory_gb_each": 16.0,
            "vgpu": False,
            "vcpus": 4.0,
            "memory_gb": 16.0,
            "price_per_h": 1.0,
            "spot_price_per_h": None,
            "currency": Currency.USD,
            "price_basis": "instance",
            "source": "a list",
            "snapshot_date": date(2026, 1, 1),
        }
        return Offer(**{**facts, **changes})

    return make


@pytest.fixture(scope="session")
def raw_data() -> Path:
    """Folder with the raw data that the packaged tables were made from; tests that need it skip without it."""
    beside = Path(__file__).resolve().parents[2].parent / "shared"
    folder = Path(os.environ.get("GPURIG_SHARED", beside)) / "data"
    if not folder.is_dir():
        pytest.skip("raw data not here: set GPURIG_SHARED")
    return folder
