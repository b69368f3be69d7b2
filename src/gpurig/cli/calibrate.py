"""``gpurig calibrate``: a minute of measurements, and this card is predicted by its own figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpurig.catalog.files import user_data_dir
from gpurig.errors import InputError, MissingPackage

if TYPE_CHECKING:
    from datetime import date

    from gpurig.calibrate.fit import CardFactors
    from gpurig.calibrate.measure import Measured
    from gpurig.cli.session import Session
    from gpurig.model.gpu import Gpu


@click.command("calibrate")
@click.option("--gpu", "name", metavar="NAME", help="Which card of the catalogue it is; default: by its own name.")
@click.option("--device", default="cuda", show_default=True, help="Device to measure.")
@click.option("--seconds", type=float, default=50.0, show_default=True, metavar="S", help="Time for the measurements.")
@click.option("--scale", type=int, default=4096, show_default=True, metavar="N", help="Edge of the largest matrix.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default: the user's own.")
@click.option("--json", "as_json_text", is_flag=True, help="What was found, as JSON.")
@click.pass_obj
def command(
    session: Session, name: str | None, device: str, seconds: float, scale: int, out: Path | None, as_json_text: bool
) -> None:
    """Measure the GPU of this machine for a minute, so that plans for its kind use its own figures.

    Writes the card's sustained rates per type, issue cost and memory outside the allocator to a file that ``gpurig plan``
    reads by --calibration or GPURIG_CALIBRATION, and by itself where it is in the user's folder.

    \b
    Examples:
      gpurig calibrate
      gpurig calibrate --gpu A100-SXM4-80GB --out a100.json
    """
    from gpurig.calibrate.fit import calibration_json, fit_card
    from gpurig.cli.render import note, print_json_object
    from gpurig.predict.coefficients import packaged_coefficients

    measured = _measure(device, seconds, scale, session)
    gpu = _card(name or measured.device_name)
    source = f"gpurig calibrate, {measured.device_name}, PyTorch {measured.torch_version}, {session.today}"
    factors = fit_card(measured.measurements, gpu, packaged_coefficients(), host_s=measured.host_s, source=source)
    target = out or user_data_dir() / "calibration.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(calibration_json(factors, gpu, measured.base_bytes), encoding="utf-8")
    if as_json_text:
        print_json_object(
            {"gpu": gpu.gpu_id, "change": dict(factors.change), "spread": factors.spread, "file": str(target)}
        )
        return
    click.echo(_summary(gpu, measured, factors, session.today))
    note(f"written to {target}", colour=session.colour)


def _measure(device: str, seconds: float, scale: int, session: Session) -> Measured:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage("PyTorch is not installed here", hint="pip install torch") from error
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(
            "there is no CUDA device here to measure",
            details=(f"PyTorch {torch.__version__} sees none",),
            hint="run it on the machine with the GPU; plans need no calibration",
        )
    from gpurig.calibrate.measure import measure
    from gpurig.cli.render import note

    return measure(device, seconds=seconds, scale=scale, progress=lambda text: note(f"… {text}", colour=session.colour))


def _card(name: str) -> Gpu:
    from gpurig.catalog.gpus import load_gpus
    from gpurig.catalog.names import resolve

    parts = resolve(name, load_gpus())
    if len(parts) > 1:
        raise InputError(
            f"{name!r} may be several parts",
            details=(", ".join(part.gpu_id for part in parts),),
            hint=f"say which with --gpu, for example --gpu {parts[0].gpu_id}",
        )
    return parts[0]


def _summary(gpu: Gpu, measured: Measured, factors: CardFactors, today: date) -> str:
    from gpurig.cli.render import pairs

    names = {"simt": "fp32", "tf32": "TF32", "half": "fp16 and bf16", "memory": "memory bandwidth"}
    rows = [
        (names[pipe], f"{change:.2f} × the time predicted before")
        for pipe, change in factors.change.items()
        if change != 1
    ]
    rows.append(("issue of an operator", f"{measured.host_s * 1e6:.1f} µs"))
    if measured.base_bytes is not None:
        rows.append(("outside the allocator", f"{measured.base_bytes / (1 << 20):.0f} MiB"))
    rows.append(("left after the fit", f"at most {100 * factors.spread:.0f} % on a single operator"))
    return f"{gpu.gpu_id} measured on {today}\n{pairs(rows)}"
