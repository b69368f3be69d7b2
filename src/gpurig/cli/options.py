"""Options that several commands share, and the types of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpurig.catalog.query import GpuFilter

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPE_CHOICES = ("fp16", "bf16", "tf32", "fp8", "int8")
Function = TypeVar("Function", bound="Callable[..., Any]")


class NameList(click.ParamType[tuple[str, ...]]):
    """Names separated by commas; the option may be given several times too."""

    name = "name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """``a,b`` as (a, b)."""
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


class Gigabytes(click.ParamType[float]):
    """Memory as labelled: ``40``, ``40GB``, ``40GB+``."""

    name = "GB"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        text = str(value).strip().lower().rstrip("+").removesuffix("gb").strip()
        try:
            return float(text)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not a memory size like 40 or 40GB", ctx, param) from None


class Capability(click.ParamType[tuple[int, int]]):
    """Compute capability: ``8.0`` or ``sm_80``."""

    name = "X.Y"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """(major, minor)."""
        if isinstance(value, tuple):
            return value
        text = str(value).lower().removeprefix("sm_")
        major, dot, minor = text.partition(".")
        if not dot and len(text) >= 2:
            major, minor = text[:-1], text[-1]
        if major.isdigit() and minor.isdigit():
            return int(major), int(minor)
        raise click.BadParameter(f"{value!r} is not a compute capability like 8.0 or sm_80", ctx, param)


def flat(values: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """All names of an option that was given several times."""
    return tuple(name for value in values for name in value)


_GPU_OPTIONS = (
    click.option("--min-memory", type=Gigabytes(), help="At least this memory per GPU, as labelled."),
    click.option("--max-memory", type=Gigabytes(), help="At most this memory per GPU."),
    click.option("--min-cuda-cores", type=int, metavar="N", help="At least this many CUDA cores."),
    click.option("--compute-capability", type=Capability(), help="At least this compute capability."),
    click.option(
        "--dtype",
        "dtypes",
        type=click.Choice(DTYPE_CHOICES, case_sensitive=False),
        multiple=True,
        help="Computes in this type with hardware of its own; may be given several times.",
    ),
    click.option("--pcie", "min_pcie_gen", type=float, metavar="GEN", help="At least this PCIe generation."),
    click.option("--nvlink", is_flag=True, help="The part has NVLink (or Infinity Fabric)."),
    click.option("--mig", is_flag=True, help="The part can be split by MIG."),
    click.option("--vendor", type=click.Choice(("nvidia", "amd"), case_sensitive=False), help="Maker of the GPU."),
)


def gpu_options(function: Function) -> Function:
    """Add the options that say what a GPU must be."""
    for option in reversed(_GPU_OPTIONS):
        function = option(function)
    return function


def gpu_filter(
    *,
    min_memory: float | None,
    max_memory: float | None,
    min_cuda_cores: int | None,
    compute_capability: tuple[int, int] | None,
    dtypes: tuple[str, ...],
    min_pcie_gen: float | None,
    nvlink: bool,
    mig: bool,
    vendor: str | None,
) -> GpuFilter:
    """The filter that the options of `gpu_options` describe."""
    return GpuFilter(
        min_memory_gb=min_memory,
        max_memory_gb=max_memory,
        min_cuda_cores=min_cuda_cores,
        min_compute_capability=compute_capability,
        dtypes=tuple(dtype.lower() for dtype in dtypes),
        min_pcie_gen=min_pcie_gen,
        nvlink=nvlink,
        mig=mig,
        vendor=vendor,
    )
