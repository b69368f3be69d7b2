"""Coefficients of the time predictor: fitted numbers as data, and what a card that was never measured gets instead."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from gpurig.errors import BadFile

if TYPE_CHECKING:
    from pathlib import Path

    from gpurig.model.gpu import Gpu

HOST_CLASSES = ("forward", "backward", "optimizer", "view", "sync")
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Quantiles of measured/predicted of held-out rows: the error band of one class of knowledge."""

    low: float  # 5 %
    median: float
    high: float  # 95 %
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Everything fitted that `predict_time` uses. Rates are natural logarithms, times are seconds.

    Attributes:
        terms: Term of `features` -> log-efficiency.
        pipe_prior: "PIPE:FEATURE" -> weight, for the sustained rate of a card from its data sheet.
        gpu_rates: GPU id -> pipe -> log of the sustained share of the peak; only cards that were measured.
        gpu_host: GPU id -> log of how much slower than usual the hosts of its measurements issue work.
        host_s: `HOST_CLASSES` -> host time per operator.
        kernel_s: Device time per kernel beside its work: ramp-up and gap.
        scripts: Benchmark script -> log of what it adds to a step; of use only to compare with that benchmark.
        host_old: log of how much slower frameworks of the "old" era issue work.
        bands: "GPU calibrated? model class calibrated?" -> residuals.
    """

    terms: Mapping[str, float]
    pipe_prior: Mapping[str, float]
    gpu_rates: Mapping[str, Mapping[str, float]]
    gpu_host: Mapping[str, float]
    host_s: Mapping[str, float]
    kernel_s: float
    host_old: float = 0.0
    scripts: Mapping[str, float] = field(default_factory=dict)
    bands: Mapping[str, Residuals] = field(default_factory=dict)
    source: str = ""

    def pipe_log_rate(self, gpu: Gpu, pipe: str) -> float:
        """log(sustained share of the peak) of a pipe: as measured, else from the data sheet."""
        measured = self.gpu_rates.get(gpu.gpu_id, {}).get(pipe)
        return measured if measured is not None else self.prior_log_rate(gpu, pipe)

    def prior_log_rate(self, gpu: Gpu, pipe: str) -> float:
        """What a card that was never measured gets: a regression on its architecture and power limit."""
        return sum(self.pipe_prior.get(f"{pipe}:{name}", 0.0) * x for name, x in card_features(gpu))

    def host_factor(self, gpu: Gpu, era: str) -> float:
        """How much slower than usual work is issued: by the hosts of a card's measurements, by old frameworks."""
        return math.exp(self.gpu_host.get(gpu.gpu_id, 0.0) + (self.host_old if era == "old" else 0.0))


# Watts per fp32 TFLOP/s with which cards of an architecture hold their boost clock. Turing and Pascal from the cards
# that do (2080 Ti, 1080 Ti), later ones from the largest card of the generation.
_WATTS_PER_TFLOP = {
    "Kepler": 60.0,
    "Maxwell": 36.0,
    "Pascal": 22.0,
    "Volta": 19.0,
    "Turing": 18.0,
    "Ampere": 10.0,
    "Ada": 5.5,
    "Hopper": 10.5,
    "Blackwell": 5.5,
}


@cache
def card_features(gpu: Gpu) -> tuple[tuple[str, float], ...]:
    """Named numbers of a card that explain the share of its peak which it sustains.

    "power" is log(power limit / power wanted at boost clock), at most 0: cards of 70 W cannot hold their clock.
    """
    features: list[tuple[str, float]] = [("all", 1.0), (f"architecture:{_architecture(gpu)}", 1.0)]
    wanted = _WATTS_PER_TFLOP.get(gpu.architecture.split()[0])
    if gpu.tdp_w and gpu.fp32_tflops and wanted:
        features.append(("power", min(0.0, math.log(gpu.tdp_w / (wanted * gpu.fp32_tflops)))))
    elif gpu.tdp_w is None:
        features.append(("no_power_figure", 1.0))
    memory = gpu.memory_type or ""
    if memory.startswith("HBM"):
        features.append(("hbm", 1.0))
    elif _is_consumer(gpu):
        features.append(("consumer", 1.0))
    elif gpu.tdp_w is not None and gpu.tdp_w <= SMALL_SERVER_CARD_W:
        features.append(("small_server_card", 1.0))
    return tuple(features)


SMALL_SERVER_CARD_W = 80.0  # T4, P4, L4, A2: GDDR with error correction in its own bandwidth, and a slot's power


def _is_consumer(gpu: Gpu) -> bool:
    """GeForce and TITAN cards, which clock above the boost clock of their data sheet while they are cool."""
    return gpu.gpu_id.startswith(("GTX", "RTX20", "RTX30", "RTX40", "RTX50", "TITAN")) and not gpu.gpu_id.endswith(
        "Ada"
    )


def _architecture(gpu: Gpu) -> str:
    if gpu.architecture.startswith("Ampere"):
        return "Ampere-server" if gpu.chip == "GA100" else "Ampere"
    return gpu.architecture.split()[0]


@cache
def packaged_coefficients() -> Coefficients:
    """The coefficients that ship with gpurig."""
    file = resources.files("gpurig") / "data" / "calibration" / "time.json"
    return coefficients_from_json(file.read_text(encoding="utf-8"), "the packaged calibration")


def read_coefficients(path: Path) -> Coefficients:
    """Coefficients from a file that the fit wrote.

    Raises:
        BadFile: not such a file.
    """
    try:
        return coefficients_from_json(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise BadFile(f"cannot read coefficients from {path}", details=(str(error),)) from error


def coefficients_from_json(text: str, name: str) -> Coefficients:
    """Coefficients from their JSON form; `name` is what an error calls the text.

    Raises:
        BadFile: not JSON, another schema, or fields missing.
    """
    try:
        data = json.loads(text)
        if data["schema_version"] != SCHEMA_VERSION:
            raise BadFile(f"{name} has schema {data['schema_version']}, expected {SCHEMA_VERSION}")
        return Coefficients(
            terms=data["terms"],
            pipe_prior=data["pipe_prior"],
            gpu_rates=data["gpu_rates"],
            gpu_host=data["gpu_host"],
            host_s=data["host_s"],
            kernel_s=data["kernel_s"],
            host_old=data.get("host_old", 0.0),
            scripts=data.get("scripts", {}),
            bands={key: Residuals(**value) for key, value in data["bands"].items()},
            source=data["source"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{name} does not hold coefficients", details=(repr(error),)) from error


def coefficients_to_json(coefficients: Coefficients) -> str:
    """JSON form: sorted keys, six significant digits, so that equal fits are equal files."""
    rounded = _round(asdict(coefficients))
    return json.dumps({"schema_version": SCHEMA_VERSION, **rounded}, indent=1, sort_keys=True) + "\n"  # type: ignore[dict-item]


def _round(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _round(item) for key, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
