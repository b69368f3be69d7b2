"""Published timings of single operators, as samples of the fit: what a kernel of a shape takes on a card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gpurig.accuracy.cards import card_named
from gpurig.errors import MissingPackage
from gpurig.model.trace import Op, OpClass
from gpurig.predict.facts import with_assumed_facts
from gpurig.predict.features import op_features
from gpurig.predict.fit import Sample

if TYPE_CHECKING:
    from pathlib import Path

    from gpurig.model.gpu import Gpu

FLOOR_MS = 0.3  # shorter timings are the floor of CUDA events, 0.01 to 0.05 ms, as much as the kernel
CONV_FLOOR_MS = 2.0  # small convolutions have about 0.3 ms of algorithm choice in them: there was no warm-up
PER_OPERATOR = 20  # samples per GPU and operator; the spread of shapes is wide enough with these
_ELEMENTWISE = {"add": 3, "mul": 3, "div": 3, "pow": 3, "add_scalar": 2, "mul_scalar": 2, "div_scalar": 2, "gelu": 2, "relu": 2,
                "tanh": 2, "pow_scalar": 2}  # fmt: skip

Row = Mapping[str, float | str | None]


def operator_samples(path: Path) -> tuple[Sample, ...]:
    """Samples from a Parquet file of single-operator timings (op, gpu, shape columns, ms), fp32.

    Of each GPU and operator, timings spread evenly over the file's order are taken, so that equal files give equal
    samples.

    Raises:
        MissingPackage: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise MissingPackage(
            "pyarrow is needed to read operator timings", hint="pip install gpurig[calibrate]"
        ) from error
    rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in parquet.read_table(path).to_pylist():
        if row["ms"] is not None and row["ms"] >= (CONV_FLOOR_MS if row["op"] == "conv" else FLOOR_MS):
            rows[row["gpu"], row["op"]].append(row)
    samples: list[Sample] = []
    for (gpu_name, _), of_kind in sorted(rows.items()):
        gpu = card_named(gpu_name)
        if gpu is None or gpu.vendor != "NVIDIA":
            continue
        step = max(1, len(of_kind) // PER_OPERATOR)
        samples += [s for row in of_kind[::step][:PER_OPERATOR] if (s := _sample(row, gpu)) is not None]
    return tuple(samples)


def _sample(row: Row, gpu: Gpu) -> Sample | None:
    op = _operator(row)
    if op is None:
        return None
    known, _ = with_assumed_facts(gpu)
    return Sample(
        gpu=known,
        features=op_features((op,), known),
        counts=np.ones(1),
        host_counts={},
        step_time_s=float(row["ms"] or 0.0) * 1e-3,
        group=f"operators | {gpu.gpu_id}",
    )


def _operator(row: Row) -> Op | None:
    name = str(row["op"])

    def size(column: str) -> int:
        return int(row[column] or 0)

    if name in ("bmm", "linear"):
        batch, m, n, k = size("batch"), size("m"), size("n"), size("k")
        if name == "linear":
            batch, m = 1, batch * m
        read, write = 4 * batch * (m * k + k * n), 4 * batch * m * n
        return Op("bmm" if name == "bmm" else "addmm", OpClass.GEMM, "fp32", 2 * batch * m * n * k, read, write, 1,
                  (batch, m, n, k))  # fmt: skip
    if name == "conv":
        return _convolution(
            size("batch"), size("c_in"), size("c_out"), size("ksize"), size("img"), size("stride"), size("pad")
        )
    elements = size("rows") * size("cols")
    if name in _ELEMENTWISE:
        reads = _ELEMENTWISE[name] - 1
        short = name.removesuffix("_scalar")
        return Op(short, OpClass.ELEMENTWISE, "fp32", 0, 4 * reads * elements, 4 * elements, 1)
    dims = (size("rows"), size("cols"))
    if name == "softmax":
        return Op("_softmax", OpClass.REDUCTION, "fp32", 0, 4 * elements, 4 * elements, 1, dims)
    if name == "layer_norm":
        return Op("native_layer_norm", OpClass.NORM, "fp32", 0, 4 * elements, 4 * elements, 1, dims)
    return None


def _convolution(images: int, c_in: int, c_out: int, kernel: int, size: int, stride: int, pad: int) -> Op:
    out = (size + 2 * pad - kernel) // stride + 1
    taps = kernel * kernel
    dims = (images, c_in, size, size, c_out, kernel, kernel, stride, 1, 1, out, out, 0, 0)
    read = 4 * (images * c_in * size * size + c_in * c_out * taps)
    flops = 2 * images * out * out * c_in * c_out * taps
    return Op("convolution", OpClass.CONV, "fp32", flops, read, 4 * images * c_out * out * out, 1, dims)
