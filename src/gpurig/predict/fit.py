"""Fit of the time coefficients: robust least squares in log time with priors, on end-to-end step times.

The model is linear in its terms inside an exponential per operator (`features`), so the Jacobian is exact and cheap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpurig.model.gpu import Gpu
from gpurig.predict.coefficients import HOST_CLASSES, Coefficients, card_features
from gpurig.predict.features import PIPES, OpFeatures, Terms
from gpurig.predict.priors import GPU_HOST_SD, GPU_RATE_SD, HOST_PRIOR_S, KERNEL_PRIOR_S, prior_of, rate_prior_of
from gpurig.predict.roofline import HOST_NORM, OVERLAP_NORM
from gpurig.predict.tiles import Floats

if TYPE_CHECKING:
    from scipy import sparse

ROBUST_SCALE = 0.12  # residuals beyond this (in log time) pull with constant force
NOISE = 0.10  # spread of two published numbers for the same thing, in log time


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured step: features of its distinct operators on its GPU, how often each runs, and the measured time."""

    gpu: Gpu
    features: OpFeatures
    counts: Floats  # calls per operator
    host_counts: Mapping[str, float]  # `HOST_CLASSES` -> operators issued
    step_time_s: float
    group: str  # samples of a group share its weight
    extra_s: float = 0.0  # time that no coefficient explains


class Problem:
    """The least-squares problem: an index of parameters, a design matrix per kind of time, and priors as residuals."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = tuple(samples)
        self.gpus = {s.gpu.gpu_id: s.gpu for s in samples}
        self.names = self._parameter_names()
        self.index = {name: i for i, name in enumerate(self.names)}
        self.priors = [self._prior(name) for name in self.names]
        self.start = np.array([mean for mean, _ in self.priors])
        self._stack()
        groups = [s.group for s in samples]
        sizes = {g: groups.count(g) for g in set(groups)}
        self.group_weights = np.array([1 / sizes[g] for g in groups])
        self._weights = np.array([sizes[g] ** -0.25 for g in groups])
        self.measured = np.array([s.step_time_s for s in samples])
        self._targets = np.log(self.measured)
        self._rate_rows = self._make_rate_rows()

    def solve(self, *, without: NDArray[np.bool_] | None = None, start: Floats | None = None) -> Floats:
        """The parameters of least robust error.

        Args:
            without: Samples to leave out. What only they say something about falls back to its prior.
            start: Where to begin; it shortens the way and does not change the end beyond the tolerance.
        """
        from scipy.optimize import least_squares

        weights = self._weights if without is None else np.where(without, 0.0, self._weights)
        solution = least_squares(
            self._residuals,
            self.start if start is None else start,
            jac=self._jacobian,
            max_nfev=60,
            xtol=1e-6,
            ftol=1e-7,
            args=(weights,),
        )
        found: Floats = solution.x
        return found

    # parameters

    def _parameter_names(self) -> list[str]:
        terms = {
            name
            for sample in self.samples
            for kind in (sample.features.compute_terms, sample.features.memory_terms, sample.features.extra_terms)
            for operator in kind
            for name, _ in operator
            if not name.startswith("pipe:")
        }
        rates = {
            f"rate:{sample.gpu.gpu_id}:{pipe}"
            for sample in self.samples
            for pipe in {*sample.features.pipes, "memory", "simt"}
        }
        prior = {f"prior:{pipe}:{name}" for g in self.gpus.values() for pipe in PIPES for name, _ in card_features(g)}
        hosts = {f"gpuhost:{gpu_id}" for gpu_id in self.gpus}
        return [
            *sorted(terms),
            *sorted(rates),
            *sorted(prior),
            *sorted(hosts),
            *(f"host:{h}" for h in HOST_CLASSES),
            "kernel",
        ]

    def _prior(self, name: str) -> tuple[float, float]:
        kind, _, rest = name.partition(":")
        if kind == "rate":
            return 0.0, math.inf  # tied to the card's prior by its own rows
        if kind == "prior":
            return rate_prior_of(rest)
        if kind == "gpuhost":
            return 0.0, GPU_HOST_SD
        if kind == "host":
            return math.log(HOST_PRIOR_S[rest]), 0.3
        if name == "kernel":
            return math.log(KERNEL_PRIOR_S), 0.3
        return prior_of(name)

    def _make_rate_rows(self) -> sparse.csr_matrix:
        """One row per measured rate: (rate − prior of the card) / its spread."""
        from scipy import sparse

        rows, columns, values = [], [], []
        rates = [name for name in self.names if name.startswith("rate:")]
        for row, name in enumerate(rates):
            _, gpu_id, pipe = name.split(":")
            rows.append(row), columns.append(self.index[name]), values.append(1 / GPU_RATE_SD)
            for feature, x in card_features(self.gpus[gpu_id]):
                rows.append(row), columns.append(self.index[f"prior:{pipe}:{feature}"]), values.append(-x / GPU_RATE_SD)
        return sparse.csr_matrix((values, (rows, columns)), shape=(len(rates), len(self.names)))

    # stacked operators

    def _stack(self) -> None:
        from scipy import sparse

        features = [s.features for s in self.samples]
        self.compute = np.concatenate([f.compute_s for f in features])
        self.memory = np.concatenate([f.memory_s for f in features])
        self.extra = np.concatenate([f.extra_s for f in features])
        self.kernels = np.concatenate([f.kernels for f in features])
        self.a_compute = self._design([(s.gpu, f.compute_terms) for s, f in zip(self.samples, features, strict=True)])
        self.a_memory = self._design([(s.gpu, f.memory_terms) for s, f in zip(self.samples, features, strict=True)])
        self.a_extra = self._design([(s.gpu, f.extra_terms) for s, f in zip(self.samples, features, strict=True)])
        counts = np.concatenate([s.counts for s in self.samples])
        row_of = np.repeat(np.arange(len(features)), [len(f.compute_s) for f in features])
        self.sums = sparse.csr_matrix((counts, (row_of, np.arange(len(counts)))), shape=(len(features), len(counts)))
        self.host_counts = np.array([[s.host_counts.get(h, 0.0) for h in HOST_CLASSES] for s in self.samples])
        self.host_index = [self.index[f"host:{h}"] for h in HOST_CLASSES]
        self.gpu_host_index = np.array([self.index[f"gpuhost:{s.gpu.gpu_id}"] for s in self.samples])
        self.fixed = np.array([s.extra_s for s in self.samples])

    def _design(self, operators: list[tuple[Gpu, tuple[Terms, ...]]]) -> sparse.csr_matrix:
        from scipy import sparse

        columns: list[int] = []
        values: list[float] = []
        starts = [0]
        for gpu, terms_of_ops in operators:
            for terms in terms_of_ops:
                for name, x in terms:
                    if name.startswith("pipe:"):
                        name = f"rate:{gpu.gpu_id}:{name[5:]}"  # noqa: PLW2901
                    columns.append(self.index[name])
                    values.append(x)
                starts.append(len(columns))
        return sparse.csr_matrix((values, columns, starts), shape=(len(starts) - 1, len(self.names)))

    # model

    def _forward(self, x: Floats) -> tuple[Floats, ...]:
        compute = self.compute * np.exp(-(self.a_compute @ x))
        memory = self.memory * np.exp(-(self.a_memory @ x))
        extra = self.extra * np.exp(-(self.a_extra @ x))
        both = (compute**OVERLAP_NORM + memory**OVERLAP_NORM) ** (1 / OVERLAP_NORM)
        gaps = self.kernels * math.exp(x[self.index["kernel"]])
        device = self.sums @ (both + extra + gaps)
        host = (self.host_counts @ np.exp(x[self.host_index])) * np.exp(x[self.gpu_host_index])
        total = (device**HOST_NORM + host**HOST_NORM) ** (1 / HOST_NORM) + self.fixed
        return compute, memory, extra, both, gaps, device, host, total

    def predictions(self, x: Floats) -> Floats:
        return self._forward(x)[-1]

    def _errors(self, x: Floats) -> Floats:
        errors: Floats = np.log(self.predictions(x)) - self._targets
        return errors

    def _residuals(self, x: Floats, weights: Floats) -> Floats:
        """Data residuals through a soft absolute value, then priors."""
        errors = self._errors(x)
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + (errors / ROBUST_SCALE) ** 2) - 1)) * ROBUST_SCALE
        own = np.array([(value - mean) / sd for value, (mean, sd) in zip(x, self.priors, strict=True)])
        return np.concatenate([soft * weights / NOISE, own, self._rate_rows @ x])

    def _jacobian(self, x: Floats, weights: Floats) -> Floats:
        from scipy import sparse

        compute, memory, extra, both, gaps, device, host, total = self._forward(x)
        safe = np.where(both > 0, both, 1.0)
        d_compute = -compute * (compute / safe) ** (OVERLAP_NORM - 1)
        d_memory = -memory * (memory / safe) ** (OVERLAP_NORM - 1)
        d_device = (
            self.sums @ sparse.diags(d_compute) @ self.a_compute
            + self.sums @ sparse.diags(d_memory) @ self.a_memory
            - self.sums @ sparse.diags(extra) @ self.a_extra
        ).toarray()
        d_device[:, self.index["kernel"]] += self.sums @ gaps
        inner = np.maximum(total - self.fixed, 1e-12)
        jacobian = d_device * ((device / inner) ** (HOST_NORM - 1))[:, None]
        host_share = (host / inner) ** (HOST_NORM - 1)
        factor = np.exp(x[self.gpu_host_index]) * host_share
        for column, name_index in enumerate(self.host_index):
            jacobian[:, name_index] += self.host_counts[:, column] * math.exp(x[name_index]) * factor
        jacobian[np.arange(len(total)), self.gpu_host_index] += host * host_share
        errors = np.log(total) - self._targets
        scaled = errors / ROBUST_SCALE
        root = np.sqrt(1 + scaled**2)
        soft_slope = np.where(np.abs(scaled) < 1e-6, 1.0, np.abs(scaled) / (root * np.sqrt(2 * (root - 1)) + 1e-300))
        jacobian *= (soft_slope * weights / NOISE / total)[:, None]
        own = np.diag([1 / sd for _, sd in self.priors])
        stacked: Floats = np.vstack([jacobian, own, self._rate_rows.toarray()])
        return stacked

    # in and out

    def coefficients(self, x: Floats) -> Coefficients:
        values = {name: float(x[i]) for name, i in self.index.items()}

        def under(prefix: str) -> dict[str, float]:
            return {name[len(prefix) :]: v for name, v in values.items() if name.startswith(prefix)}

        rates: dict[str, dict[str, float]] = {}
        for name, value in under("rate:").items():
            gpu_id, pipe = name.rsplit(":", 1)
            rates.setdefault(gpu_id, {})[pipe] = value
        structural = ("rate:", "prior:", "gpuhost:", "host:")
        return Coefficients(
            terms={n: v for n, v in values.items() if not n.startswith(structural) and n != "kernel"},
            pipe_prior=under("prior:"),
            gpu_rates=rates,
            gpu_host=under("gpuhost:"),
            host_s={name: math.exp(v) for name, v in under("host:").items()},
            kernel_s=math.exp(values["kernel"]),
        )
