"""What is believed about the coefficients before end-to-end rows are seen, with how firmly.

Means come from the per-operator fits (scripts/fit/operators.py), from published figures where there are no such
timings, and are 0 (no effect) for terms that only modify another.
"""

from __future__ import annotations

import math

# spread of cards around the regression on their data sheets, by pipe
GPU_RATE_SD = {"simt": 0.2, "tf32": 0.2, "half": 0.2, "memory": 0.12}
SCRIPT_SD = 0.08  # what a benchmark's script adds or spares: input, logging, clocks around the step
# NVIDIA's SQuAD fine-tuning script: its published rates lie 10 to 28 % below the device's own pace, for data loading,
# gradient clipping and start-up are inside its clock (docs/concepts/prediction.md)
SQUAD_SCRIPT = 0.1
GPU_HOST_SD = 0.4  # spread of hosts: desktop and server CPUs, framework versions
KERNEL_PRIOR_S = 2.5e-6
HOST_PRIOR_S = {"forward": 14e-6, "backward": 10e-6, "optimizer": 12e-6, "view": 3e-6, "sync": 12e-6}

_BASES: dict[str, tuple[float, float]] = {
    # share of the sustained peak, spread of its logarithm
    "gemm:simt": (0.95, 0.1),
    "gemm:tf32": (0.75, 0.2),
    "gemm:half": (0.75, 0.2),
    "conv:simt": (0.85, 0.15),
    "conv:tf32": (0.7, 0.25),
    "conv:half": (0.55, 0.25),
    "grouped:simt": (0.4, 0.5),
    "grouped:tf32": (0.25, 0.5),
    "grouped:half": (0.15, 0.5),
    "flash:forward": (0.6, 0.3),
    "flash:backward": (0.45, 0.3),
    "efficient:forward": (0.4, 0.4),
    "efficient:backward": (0.25, 0.4),
    "rnn": (0.4, 0.5),
    "other_compute": (0.3, 0.5),
    "depthwise:forward": (0.3, 0.5),
    "depthwise:input": (0.3, 0.5),
    "depthwise:weight": (0.1, 0.7),
    "bmm:simt": (0.85, 0.15),
    "bmm:tf32": (0.75, 0.3),
    "bmm:half": (0.7, 0.3),
    # share of the sustained bandwidth, elementwise = 1
    "memory:elementwise": (1.0, 0.05),
    "memory:pow": (0.66, 0.1),
    "memory:softmax:forward": (0.75, 0.15),
    "memory:softmax:backward": (0.75, 0.2),
    "memory:layernorm:forward": (0.68, 0.15),
    "memory:layernorm:backward": (0.6, 0.25),
    "memory:batchnorm:forward": (0.85, 0.2),
    "memory:batchnorm:backward": (0.85, 0.2),
    "memory:groupnorm:forward": (0.7, 0.3),
    "memory:groupnorm:backward": (0.6, 0.3),
    "memory:reduction": (0.8, 0.2),
    "memory:pool:forward": (0.7, 0.3),
    "memory:pool:backward": (0.5, 0.4),
    "memory:copy": (0.75, 0.2),
    "memory:embedding:forward": (0.6, 0.3),
    "memory:embedding:backward": (0.3, 0.5),
    "memory:optimizer": (0.85, 0.15),
    "memory:sort": (0.1, 0.7),
    "memory:transfer": (1.0, 0.4),
    "memory:gemm": (0.8, 0.2),
    "memory:conv": (0.7, 0.25),
    "memory:grouped": (0.6, 0.3),
    "memory:depthwise:data": (0.6, 0.4),
    "memory:depthwise:weight": (0.4, 0.5),
    "memory:flash": (0.7, 0.3),
    "memory:efficient": (0.7, 0.3),
    "memory:rnn": (0.5, 0.4),
    "transpose": (0.85, 0.15),
}
_MODIFIER_SD = 0.15
_MODIFIERS: dict[str, tuple[float, float]] = {
    "l2": (0.3, 0.3),
    "gemm:misaligned": (-0.3, 0.3),
    "attention:causal": (0.5, 0.2),  # half of the products are skipped, the diagonal blocks are not
    "depthwise:half_on_simt:data": (-4.0, 1.0),  # FP16 arithmetic at 1/64 of FP32's rate
    "depthwise:half_on_simt:weight": (-4.0, 1.0),
    "half_on_simt:gemm": (-0.1, 0.2),
    "half_on_simt:conv": (-0.25, 0.2),
    # per doubling of the channels per group, below and above 32
    "grouped:narrow:simt": (0.4, 0.2),
    "grouped:narrow:tensor": (0.5, 0.2),
    "grouped:wide:simt": (0.0, 0.2),
    "grouped:wide:tensor": (0.0, 0.3),
    "memory:half:elementwise": (0.0, 0.1),
    "memory:half:copy": (0.0, 0.15),
    "memory:half:reduction": (0.0, 0.2),
}
_RATES: dict[str, tuple[float, float]] = {
    # sustained share of the peak, log; from the per-operator fits: V100 0.93, A100 0.82 to 0.90, T4 0.50, P4 0.52
    "simt:all": (-0.12, 0.1),
    "tf32:all": (-0.15, 0.15),
    "half:all": (-0.20, 0.15),
    # copies reach 0.85 to 0.92 of the bandwidth of most cards, 0.73 to 0.78 on T4 and P4
    "memory:all": (-0.15, 0.08),
    "memory:hbm": (0.03, 0.06),
    "memory:small_server_card": (-0.15, 0.08),
    "memory:consumer": (0.0, 0.05),
    "simt:consumer": (0.08, 0.08),
    "tf32:consumer": (0.08, 0.08),
    "half:consumer": (0.08, 0.08),
    "simt:power": (0.6, 0.2),
    "tf32:power": (0.5, 0.25),
    "half:power": (0.8, 0.25),
    "memory:power": (0.0, 0.1),
}


def prior_of(term: str) -> tuple[float, float]:
    """(mean, standard deviation) of the log-efficiency of a term."""
    base = _BASES.get(term)
    if base is not None:
        return math.log(base[0]), base[1]
    return _MODIFIERS.get(term, (0.0, _MODIFIER_SD))


def script_prior_of(script: str) -> tuple[float, float]:
    """(mean, standard deviation) of what a benchmark script adds, as a logarithm."""
    if not script:
        return 0.0, 1e-6
    squad = script.endswith(": qa") and script.startswith(("NVIDIA/", "lambdal/"))
    return SQUAD_SCRIPT if squad else 0.0, SCRIPT_SD


def known_terms() -> tuple[str, ...]:
    """Terms that have a belief of their own."""
    return (*_BASES, *_MODIFIERS)


def rate_prior_of(name: str) -> tuple[float, float]:
    """(mean, standard deviation) of a weight "PIPE:FEATURE" of the regression on data sheets."""
    return _RATES.get(name, (0.0, 0.12))
