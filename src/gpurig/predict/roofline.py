"""Device time of every operator: the longer of arithmetic and memory traffic, layout changes, kernel overhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpurig.predict.features import PIPES, Terms, op_features, split_gradients
from gpurig.predict.priors import prior_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpurig.model.gpu import Gpu
    from gpurig.model.trace import Op
    from gpurig.predict.coefficients import Coefficients
    from gpurig.predict.tiles import Floats

OVERLAP_NORM = 6.0  # arithmetic and traffic overlap nearly fully: (a^6 + b^6)^(1/6)


@dataclass(frozen=True, slots=True)
class OpCosts:
    """Device time of one call of each operator, in seconds, and how much of it is arithmetic or memory traffic."""

    time_s: Floats
    compute_s: Floats
    memory_s: Floats


def op_costs(ops: Sequence[Op], gpu: Gpu, coefficients: Coefficients, *, era: str = "now") -> OpCosts:
    """Device time of one call of each operator.

    t = (compute^6 + memory^6)^(1/6) + layout changes + kernels × overhead, each part an ideal time at the data
    sheet's peak divided by the efficiency of its class and the rate that the card sustains.

    Args:
        ops: Distinct operators of a trace.
        gpu: Card; its multiprocessors, bandwidth and FP32 peak must be known.
        coefficients: Fitted efficiencies.
        era: Age of the kernel libraries, of `features.ERAS`.

    Returns:
        One element per operator; 0 for operators without a kernel.

    Raises:
        ValueError: a fact that the card needs is not known.
    """
    parts, owners = split_gradients(ops)
    features = op_features(parts, gpu, era=era)
    rates = {f"pipe:{pipe}": coefficients.pipe_log_rate(gpu, pipe) for pipe in PIPES}
    compute = features.compute_s * _inefficiency(features.compute_terms, coefficients, rates)
    memory = features.memory_s * _inefficiency(features.memory_terms, coefficients, rates)
    extra = features.extra_s * _inefficiency(features.extra_terms, coefficients, rates)
    both = (compute**OVERLAP_NORM + memory**OVERLAP_NORM) ** (1 / OVERLAP_NORM)
    total = both + extra + features.kernels * coefficients.kernel_s

    def per_op(values: Floats) -> Floats:
        summed: Floats = np.zeros(len(ops))
        np.add.at(summed, np.array(owners, dtype=np.intp), values)
        return summed

    return OpCosts(per_op(total), per_op(compute), per_op(memory + extra))


def _inefficiency(terms: tuple[Terms, ...], coefficients: Coefficients, rates: dict[str, float]) -> Floats:
    """exp(−Σ coefficient·value) per operator; a term that no measurement has touched keeps its prior."""
    known = {**coefficients.terms, **rates}
    logs = [-sum((known[name] if name in known else prior_of(name)[0]) * x for name, x in op) for op in terms]
    factors: Floats = np.exp(np.array(logs, dtype=float))
    return factors
