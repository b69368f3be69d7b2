"""A card's own factors from measurements. Pure."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from gpurig.predict.coefficients import Coefficients, coefficients_to_json
from gpurig.predict.features import PIPES, pipe_of
from gpurig.predict.roofline import op_costs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurig.calibrate.samples import Sample
    from gpurig.model.gpu import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFactors:
    """What was found of a card.

    Attributes:
        coefficients: The packaged ones with this card's own rates.
        change: Pipe -> measured time over predicted time before; 1 where nothing was measured.
        spread: The same after, largest distance from 1 over the measured operators.
    """

    coefficients: Coefficients
    change: dict[str, float]
    spread: float


def fit_card(
    samples: Sequence[Sample], gpu: Gpu, base: Coefficients, *, host_s: float | None = None, source: str = ""
) -> CardFactors:
    """Rates of a card such that its measured operators are predicted, in the median of each pipe.

    Args:
        samples: Operators with the seconds that a call took.
        gpu: The card's data-sheet facts.
        base: Coefficients to start from; the efficiencies of operator classes are theirs.
        host_s: Measured host time to issue an operator; None: not measured.
        source: Where and when it was measured.
    """
    rates = dict(base.gpu_rates.get(gpu.gpu_id, {}))
    logs = _logs(samples, gpu, base)
    change: dict[str, float] = {}
    for pipe in PIPES:
        found = [value for value, which in logs if which == pipe]
        shift = median(found) if found else 0.0
        rates[pipe] = base.pipe_log_rate(gpu, pipe) - shift
        change[pipe] = math.exp(shift)
    hosts = dict(base.gpu_host)
    if host_s is not None:
        hosts[gpu.gpu_id] = math.log(host_s / base.host_s["forward"])
    fitted = replace(
        base, gpu_rates={**base.gpu_rates, gpu.gpu_id: rates}, gpu_host=hosts, source=source or base.source
    )
    after = [abs(math.exp(value) - 1) for value, _ in _logs(samples, gpu, fitted)]
    return CardFactors(coefficients=fitted, change=change, spread=max(after, default=0.0))


def _logs(samples: Sequence[Sample], gpu: Gpu, coefficients: Coefficients) -> list[tuple[float, str]]:
    """log(measured / predicted) of each sample, with the pipe that limits it."""
    costs = op_costs([s.op for s in samples], gpu, coefficients)
    result = []
    for sample, time_s, compute_s, memory_s in zip(samples, costs.time_s, costs.compute_s, costs.memory_s, strict=True):
        if time_s > 0:
            pipe = pipe_of(sample.op, gpu) if compute_s >= memory_s else "memory"
            result.append((math.log(sample.time_s / float(time_s)), pipe))
    return result


def calibration_json(factors: CardFactors, gpu: Gpu, base_bytes: int | None) -> str:
    """The file that ``gpurig plan --calibration`` reads: coefficients, and the card's memory outside the allocator."""
    data = json.loads(coefficients_to_json(factors.coefficients))
    data["measured_gpus"] = [gpu.gpu_id]
    if base_bytes is not None:
        data["base_mib"] = {gpu.gpu_id: round(base_bytes / (1 << 20), 1)}
    return json.dumps(data, indent=1, sort_keys=True) + "\n"
