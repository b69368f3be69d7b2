"""``gpurig plan``: which GPU, how long, how much, for a training script as it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpurig.catalog.files import user_data_dir
from gpurig.catalog.prices import parse_rate
from gpurig.catalog.query import OfferFilter
from gpurig.cli.options import NameList, flat, gpu_filter, gpu_options
from gpurig.errors import InputError, NoOfferFits
from gpurig.model.offer import Currency
from gpurig.model.plan import BatchPolicy, Plan, Reason, SpotPolicy

if TYPE_CHECKING:
    from gpurig.cli.session import Session
    from gpurig.plan.make import Planned, PlanRequest
    from gpurig.trace.script import ScriptRequest

PRECISIONS = ("fp32", "fp16-amp", "bf16-amp")
DEFAULT_LIMIT = 12


class Part(click.ParamType[tuple[str, int]]):
    """A GPU and how many: ``T4:4``, ``A100-40GB``."""

    name = "GPU[:N]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        """(name, count)."""
        name, colon, count = str(value).rpartition(":")
        if not colon:
            return str(value), 1
        if not count.isdigit() or int(count) < 1:
            raise click.BadParameter(f"{value!r} is not a GPU and a count like T4:4", ctx, param)
        return name, int(count)


@click.command("plan")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.option("--python", metavar="PATH", help="Interpreter to run the script with; default: this one.")
@click.option("--time-limit", type=float, default=150.0, show_default=True, metavar="S", help="Limit for one trace.")
@click.option("--network", is_flag=True, help="Let the script reach the network (downloads of weights and data).")
@click.option("--world-size", type=int, metavar="N", help="Start it as rank 0 of N, as torchrun would.")
@click.option("--batch", type=int, metavar="N", help="Batch size, for hf:, timm: and torchvision: models.")
@click.option("--shape", metavar="3x224x224", help="Input of one sample, or the sequence length, for models by name.")
@click.option("--epochs", type=float, metavar="N", help="Length of the run: passes over the data set.")
@click.option("--steps", type=float, metavar="N", help="Length of the run: optimizer steps.")
@click.option("--samples", type=float, metavar="N", help="Length of the run: samples.")
@click.option("--gpu", "names", type=NameList(), multiple=True, help="Only these GPUs, in any spelling.")
@gpu_options
@click.option("--provider", "providers", type=NameList(), multiple=True, help="Only these providers.")
@click.option(
    "--region", "regions", type=NameList(), multiple=True, metavar="GLOB", help="Only regions like us-east-*."
)
@click.option("--country", "countries", type=NameList(), multiple=True, metavar="CODE", help="Only these countries.")
@click.option(
    "--continent", "continents", type=NameList(), multiple=True, metavar="CODE", help="Only AF AS EU NA OC SA."
)
@click.option("--max-gpus", type=int, default=8, show_default=True, metavar="N", help="At most so many GPUs in all.")
@click.option("--max-nodes", type=int, default=1, show_default=True, metavar="N", help="At most so many instances.")
@click.option("--spot", type=click.Choice([p.value for p in SpotPolicy]), default="allow", show_default=True)
@click.option("--budget", type=float, metavar="AMOUNT", help="At most this for the whole run, in --currency.")
@click.option("--deadline", type=float, metavar="HOURS", help="At most so long.")
@click.option("--precision", "precisions", type=click.Choice(PRECISIONS), multiple=True,
              help="Also try the script in this precision.")  # fmt: skip
@click.option("--global-batch", type=click.Choice([p.value for p in BatchPolicy]), default="keep", show_default=True,
              help="On several GPUs: keep the script's batch and share it, or scale it.")  # fmt: skip
@click.option("--quick", is_flag=True, help="One trace only: other batch sizes are not tried.")
@click.option("--compare", "compared", type=Part(), multiple=True, help="Put named choices side by side: T4:4.")
@click.option("--currency", type=click.Choice([c.value for c in Currency], case_sensitive=False), default="USD")
@click.option("--rate", "rates", multiple=True, metavar="CNY=7.1", help="Conversion rate: units for one US dollar.")
@click.option("--prices", type=click.Path(path_type=Path, dir_okay=False), envvar="GPURIG_PRICES",
              help="Own prices and discounts (TOML).")  # fmt: skip
@click.option("--calibration", type=click.Path(path_type=Path, dir_okay=False), envvar="GPURIG_CALIBRATION",
              help="Coefficients of the time model, as gpurig calibrate writes them.")  # fmt: skip
@click.option("--limit", type=int, default=DEFAULT_LIMIT, show_default=True, metavar="N", help="Rows to show; 0: all.")
@click.option("--explain", type=int, metavar="N", help="The arithmetic and the sources of choice N.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT.html", help="Write a report.")
@click.option("--memory-snapshot", type=click.Path(path_type=Path, dir_okay=False), metavar="OUT.pickle",
              help="Write the step's memory in the format of pytorch.org/memory_viz.")  # fmt: skip
@click.option("--json", "as_json_text", is_flag=True, help="The plan as JSON.")
@click.pass_obj
def command(session: Session, /, **options: Any) -> None:
    """Which GPU, how long and how much, for a training script as it is.

    The script is executed without a GPU: its data is real, what it puts on the device is not, and it is stopped after its
    third optimizer step. Give its own arguments after --.

    \b
    Examples:
      gpurig plan train.py -- --batch-size 32
      gpurig plan train.py --epochs 90 --budget 50 --deadline 12
      gpurig plan train.py --compare T4:4 --compare A100-40GB:1
      gpurig plan hf:bert-base-uncased --batch 32 --shape 512 --steps 10000
      gpurig plan -m mypackage.train --report plan.html -- --config small
    """
    from gpurig.plan.make import make_plan

    request = _request(options)
    planned = make_plan(request, progress=_progress(session, quiet=options["as_json_text"]))
    if options["memory_snapshot"] is not None:
        _write_snapshot(planned, options["memory_snapshot"])
    if options["report"] is not None:
        from gpurig.cli.plan_report import render_report

        options["report"].write_text(render_report(planned, session.today), encoding="utf-8")
    if options["as_json_text"]:
        _print_json(planned)
        return
    _print_text(planned, session, options)


def _request(options: dict[str, Any]) -> PlanRequest:
    from gpurig.plan.make import PlanRequest

    gpu = {name: options[name] for name in (
        "min_memory", "max_memory", "min_cuda_cores", "compute_capability", "dtypes", "min_pcie_gen", "nvlink", "mig", "vendor",
    )}  # fmt: skip
    wanted = OfferFilter(
        gpu=gpu_filter(**gpu),
        providers=frozenset(name.lower() for name in flat(options["providers"])),
        regions=flat(options["regions"]),
        countries=frozenset(name.upper() for name in flat(options["countries"])),
        continents=frozenset(name.upper() for name in flat(options["continents"])),
    )
    names = flat(options["names"]) or tuple(name for name, _ in options["compared"])
    return PlanRequest(
        script=_script(options),
        label=options["script"] if _is_by_name(options["script"]) else None,
        names=names,
        wanted=wanted,
        epochs=options["epochs"],
        steps=options["steps"],
        samples=options["samples"],
        precisions=tuple(options["precisions"])[1 if _is_by_name(options["script"]) else 0 :],
        vary_batch=not options["quick"],
        currency=Currency(options["currency"].upper()),
        budget=options["budget"],
        deadline_h=options["deadline"],
        spot=SpotPolicy(options["spot"]),
        batch=BatchPolicy(options["global_batch"]),
        max_gpus=max((options["max_gpus"], *(count for _, count in options["compared"]))),
        max_nodes=options["max_nodes"],
        own_prices=options["prices"],
        calibration=options["calibration"] or own_calibration(),
        rates=tuple(parse_rate(rate) for rate in options["rates"]),
    )


def _is_by_name(script: str) -> bool:
    return script.partition(":")[0] in ("hf", "timm", "torchvision")


def own_calibration() -> Path | None:
    """The file that ``gpurig calibrate`` wrote for this user, if there is one."""
    path = user_data_dir() / "calibration.json"
    return path if path.exists() else None


def _script(options: dict[str, Any]) -> ScriptRequest:
    from gpurig.trace.script import ScriptRequest

    by_name = _is_by_name(options["script"])
    if not by_name and (options["batch"] is not None or options["shape"] is not None):
        raise InputError(
            "--batch and --shape are for models by name (hf:, timm:, torchvision:)",
            hint="give the script's own arguments after --",
        )
    if by_name:
        from gpurig.trace.models import model_request

        return model_request(
            options["script"], batch=options["batch"], shape=options["shape"], python=options["python"],
            time_limit_s=options["time_limit"], precision=(*options["precisions"], "bf16-amp")[0],
        )  # fmt: skip
    return ScriptRequest(
        script=options["script"],
        argv=tuple(options["args"]),
        module=options["module"],
        python=options["python"],
        time_limit_s=options["time_limit"],
        network=options["network"],
        world_size=options["world_size"],
    )


def _progress(session: Session, *, quiet: bool) -> Any:
    def tell(text: str) -> None:
        if not quiet:
            from gpurig.cli.render import note

            note(f"… {text}", colour=session.colour)

    return tell


def _print_text(planned: Planned, session: Session, options: dict[str, Any]) -> None:
    from gpurig.cli import plan_text
    from gpurig.cli.render import note, say

    plan = planned.plan
    if not plan.choices:
        raise _nothing_fits(plan, planned)
    explained = options["explain"]
    if explained is not None:
        if not 1 <= explained <= len(plan.choices):
            raise InputError(f"there is no choice {explained}", details=(f"the plan has {len(plan.choices)} choices",))
        say(plan_text.explain(planned, explained, session.today), colour=session.colour)
        return
    say(plan_text.headline(planned), colour=session.colour, bold=True)
    say(plan_text.workload_lines(planned), colour=session.colour)
    say("", colour=session.colour)
    if options["compared"]:
        from gpurig.plan.make import exact_parts

        wanted = exact_parts(options["compared"], planned)
        say(plan_text.compare_table(planned, wanted), colour=session.colour)
    else:
        say(plan_text.plan_table(plan, options["limit"]), colour=session.colour)
    for line in _notes(planned, session, options):
        note(line, colour=session.colour)


def _notes(planned: Planned, session: Session, options: dict[str, Any]) -> list[str]:
    from gpurig.cli import plan_text

    plan = planned.plan
    hidden = len(plan.choices) - len(plan_text.rows(plan, options["limit"]))
    lines = [
        "* nothing is both cheaper and faster",
        plan_text.rejected_line(plan),
        plan_text.age_line(plan, options["limit"], session.today),
        *dict.fromkeys((*planned.notes, *(a.text for a in planned.trace.assumptions))),
    ]
    if hidden > 0:
        lines.append(f"{hidden:,} more choices: --limit 0;  why: --explain N;  pictures: --report plan.html")
    return [line for line in lines if line]


def _nothing_fits(plan: Plan, planned: Planned) -> NoOfferFits:
    """What was needed, what came closest, and what would help."""
    needed = [
        r for r in plan.rejections if r.reason in (Reason.MEMORY, Reason.MEMORY_UNSURE, Reason.BUDGET, Reason.DEADLINE)
    ]
    details = tuple(f"nearest for {r.reason.value}: {r.nearest}" for r in needed if r.nearest)
    counts = ", ".join(f"{r.reason.value} {r.count}" for r in plan.rejections)
    hint = "leave out a condition, or allow more GPUs with --max-gpus"
    if any(r.reason is Reason.MEMORY for r in needed):
        hint = "a smaller batch, activation checkpointing or --precision bf16-amp needs less memory; --max-gpus N shares it"
    return NoOfferFits(
        f"nothing that can be rented fits {planned.trace.label}",
        details=(*details, f"rejected {plan.considered:,} offers: {counts}"),
        hint=hint,
    )


def _print_json(planned: Planned) -> None:
    """One object; where nothing fits it has an "error" member, and the exit code says no."""
    from gpurig.cli.errors import error_object
    from gpurig.cli.plan_json import plan_object
    from gpurig.cli.render import print_json_object

    members = plan_object(planned)
    if planned.plan.choices:
        print_json_object(members)
        return
    error = _nothing_fits(planned.plan, planned)
    print_json_object({**members, "error": error_object(error)})
    raise click.exceptions.Exit(error.exit_code)


def _write_snapshot(planned: Planned, path: Path) -> None:
    import pickle

    from gpurig.predict.snapshot import memory_snapshot

    path.write_bytes(pickle.dumps(memory_snapshot(planned.trace)))
