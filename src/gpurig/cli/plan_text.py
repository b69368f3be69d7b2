"""A plan as text: the answer line, the table, what was rejected, and the arithmetic of one choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpurig.catalog.prices import age_text
from gpurig.cli.render import Column, money, pairs, table
from gpurig.model.prediction import Band, Method
from gpurig.model.units import GIB, format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from gpurig.model.plan import Choice, Plan
    from gpurig.model.trace import StepTrace
    from gpurig.plan.make import Planned

_COLUMNS = (
    Column("#", right=True),
    Column("instance", max_width=30),
    Column("GPU", max_width=26),
    Column("step", right=True),
    Column("run", right=True),
    Column("per hour", right=True),
    Column("run costs", right=True),
    Column("where, how", max_width=44),
)
_SYMBOLS = {"USD": "$", "EUR": "€", "CNY": "¥"}


def headline(planned: Planned) -> str:
    """The answer in one line."""
    best = planned.plan.best
    name = planned.trace.label
    if best is None:
        return f"{name}: nothing that can be rented fits"
    total = amount(best.cost, planned.plan.goal.currency)
    kind = "spot" if best.spot else "on demand"
    return (
        f"{name}: cheapest is {gpu_cell(best)} on {best.offer.provider} {best.offer.instance_type} ({kind}): "
        f"~{format_duration(best.hours * 3600)}, ~{total}"
    )


def workload_lines(planned: Planned) -> str:
    """What the script is and what it needs."""
    trace = planned.trace
    lines = [describe(trace)]
    best = planned.plan.best
    if best is not None:
        memory = best.prediction.memory
        parts = (
            ("activations", memory.activations + memory.temporaries),
            ("weights", memory.parameters),
            ("gradients", memory.gradients),
            ("optimizer", memory.optimizer),
            ("context", memory.base),
        )
        inner = ", ".join(f"{name} {value / GIB:.1f}" for name, value in parts if value >= 0.05 * GIB)
        at = f" at micro-batch {best.recipe.micro_batch}" if best.recipe.micro_batch else ""
        lines.append(f"needs {memory.peak_device / GIB:.1f} GiB per GPU{at} ({inner})  {band(memory.band)}")
    lines.append(f"run: {planned.plan.goal.run.text}")
    return "\n".join(lines)


def describe(trace: StepTrace) -> str:
    """The script in a line: parameters, precision, optimizer, batch."""
    optimizer = " + ".join(trace.optimizers) or "no torch optimizer"
    batch = "" if trace.micro_batch is None else f", micro-batch {trace.micro_batch}"
    if trace.accumulation > 1:
        batch += f" × {trace.accumulation} accumulated"
    trained = "" if trace.num_trainable == trace.num_parameters else f" ({format_count(trace.num_trainable)} trained)"
    extra = "".join(f", {word}" for word in (trace.data_parallel,) if word != "none") + (
        ", compiled" if trace.compiled else ""
    )
    return f"{format_count(trace.num_parameters)} parameters{trained}, {trace.precision}, {optimizer}{batch}{extra}"


def rows(plan: Plan, limit: int) -> list[tuple[int, Choice, int]]:
    """The choices to show: the cheapest region of each instance type and way of paying, with how many regions it has."""
    seen: dict[tuple[str, str, bool, int], int] = {}
    kept: list[tuple[int, Choice]] = []
    for index, choice in enumerate(plan.choices):
        key = (choice.offer.provider, choice.offer.instance_type, choice.spot, choice.num_nodes)
        if key not in seen:
            kept.append((index, choice))
        seen[key] = seen.get(key, 0) + 1
    shown = kept[: limit or None]
    return [(i, c, seen[(c.offer.provider, c.offer.instance_type, c.spot, c.num_nodes)]) for i, c in shown]


def plan_table(plan: Plan, limit: int) -> str:
    """Choices by total cost."""
    return table(_COLUMNS, [row(index, choice, regions, plan) for index, choice, regions in rows(plan, limit)])


def row(index: int, choice: Choice, regions: int, plan: Plan) -> tuple[str, ...]:
    """One line of the table."""
    nodes = f" ×{choice.num_nodes}" if choice.num_nodes > 1 else ""
    guessed = choice.prediction.time.band.method in (Method.GUESSED, Method.DERIVED)
    tilde = "~" if guessed else ""
    where = f"{choice.offer.provider} {(choice.offer.region or '').strip(' ,')}".strip()
    where += f" +{regions - 1}" if regions > 1 else ""
    mark = "*" if index in plan.frontier else ""
    return (
        f"{index + 1}{mark}",
        f"{choice.offer.instance_type}{nodes}{' spot' if choice.spot else ''}",
        gpu_cell(choice),
        f"{tilde}{format_duration(choice.prediction.time.step_time_s)}",
        f"{tilde}{format_duration(choice.hours * 3600)}",
        f"{money(choice.price_per_h)} {choice.offer.currency}",
        f"{tilde}{amount(choice.cost, plan.goal.currency)}",
        ", ".join(part for part in (where, recipe_change(choice)) if part),
    )


def gpu_cell(choice: Choice) -> str:
    """``A100-SXM4-80GB:8``, all nodes together."""
    return f"{choice.gpu_id}:{choice.recipe.num_gpus}"


def recipe_change(choice: Choice) -> str:
    """What has to be changed in the script for this choice, if anything."""
    recipe = choice.recipe
    if recipe.num_gpus == 1 and recipe.accumulation == 1:
        return ""
    batch = f"{recipe.micro_batch}" if recipe.micro_batch else "as is"
    return (
        f"batch {batch}"
        + (f"×{recipe.accumulation}" if recipe.accumulation > 1 else "")
        + (f"×{recipe.num_gpus} GPUs" if recipe.num_gpus > 1 else "")
    )


def amount(value: float, currency: str) -> str:
    """Money for a whole run: ``$12.40``."""
    symbol = _SYMBOLS.get(currency, f"{currency} ")
    return f"{symbol}{value:,.2f}" if value < 1000 else f"{symbol}{value:,.0f}"


def band(value: Band) -> str:
    """``±8 %``, marked where the GPU or the kind of model was not calibrated."""
    mark = "" if value.method in (Method.CALIBRATED, Method.MEASURED) else "~"
    return f"{mark}±{value.percent:.0f} %"


def rejected_line(plan: Plan) -> str:
    """How many offers were rejected, by reason."""
    total = sum(r.count for r in plan.rejections)
    if not total:
        return ""
    reasons = ", ".join(f"{r.reason.value} {r.count}" for r in plan.rejections)
    return f"rejected {total:,} of {plan.considered:,} offers: {reasons}"


def age_line(plan: Plan, limit: int, today: date) -> str:
    """How old the prices shown are."""
    days = sorted({c.offer.snapshot_date for _, c, _ in rows(plan, limit) if c.offer.snapshot_date})
    if not days:
        return "the prices shown carry no date"
    oldest, newest = days[0], days[-1]
    span = f"{oldest}" if oldest == newest else f"{oldest} to {newest}"
    return f"prices of {span} (the oldest {age_text(oldest, today)}); quota and capacity are not checked"


def explain(planned: Planned, number: int, today: date) -> str:
    """The arithmetic of choice `number` (from 1), and where each figure comes from."""
    choice = planned.plan.choices[number - 1]
    blocks = (
        _title(number, choice),
        _time_block(choice),
        _memory_block(choice),
        _cost_block(planned, choice, today),
    )
    notes = [*choice.notes, *planned.notes, *(a.text for a in planned.trace.assumptions)]
    lines = "\n\n".join(blocks)
    return lines + ("\n\nassumed\n" + "\n".join(f"  {note}" for note in dict.fromkeys(notes)) if notes else "")


def _title(number: int, choice: Choice) -> str:
    offer = choice.offer
    where = (offer.region or "no stated region").strip(" ,")
    spot = ", spot" if choice.spot else ""
    return f"#{number}: {gpu_cell(choice)} on {offer.provider} {offer.instance_type}, {where}{spot}"


def _time_block(choice: Choice) -> str:
    time = choice.prediction.time
    total = sum(c.time_s for c in time.by_class) or 1.0
    classes = [
        (
            c.op_class,
            format_duration(c.time_s),
            f"{100 * c.time_s / total:.0f} %",
            f"{c.flops / c.time_s / 1e12:.1f}" if c.flops and c.time_s else "",
            f"{c.num_bytes / c.time_s / 1e9:.0f}" if c.time_s else "",
            f"{c.calls}",
        )
        for c in sorted(time.by_class, key=lambda c: -c.time_s)
        if c.time_s > 0
    ]
    columns = (
        Column("kind of operator"), Column("time", right=True), Column("share", right=True),
        Column("TFLOP/s", right=True), Column("GB/s", right=True), Column("calls", right=True),
    )  # fmt: skip
    facts = pairs(
        (
            ("step", f"{format_duration(time.step_time_s)} {band(time.band)} ({time.band.reason})"),
            ("bottleneck", time.bottleneck),
            ("forward, backward, optimizer", " + ".join(
                format_duration(s) for s in (time.forward_s, time.backward_s, time.optimizer_s)
            )),
            ("device busy", format_duration(time.device_busy_s)),
            ("host issues the step in", format_duration(time.host_issue_s)),
            ("communication not hidden", format_duration(time.exposed_communication_s)),
            ("input pipeline delivers every", "not known" if time.input_s is None else format_duration(time.input_s)),
            ("model FLOP utilisation", "" if time.mfu is None else f"{100 * time.mfu:.0f} %"),
        )
    )  # fmt: skip
    return f"time\n{_indent(facts)}\n{_indent(table(columns, classes))}"


def _memory_block(choice: Choice) -> str:
    memory = choice.prediction.memory
    named = (
        ("weights", memory.parameters), ("gradients", memory.gradients), ("optimizer", memory.optimizer),
        ("activations", memory.activations), ("temporaries", memory.temporaries), ("inputs", memory.inputs),
        ("library workspace", memory.workspace), ("= allocated peak", memory.peak_allocated),
        ("reserved by the allocator", memory.peak_reserved), ("outside the allocator", memory.base),
        ("communication", memory.communication), ("= device", memory.peak_device),
        ("usable on the GPU", choice.prediction.usable_memory),
    )  # fmt: skip
    facts = pairs([(name, format_bytes(value) if value else "") for name, value in named])
    return f"memory of one GPU  {band(memory.band)}\n{_indent(facts)}\n  {memory.base_reason}"


def _cost_block(planned: Planned, choice: Choice, today: date) -> str:
    goal, offer = planned.plan.goal, choice.offer
    recipe = choice.recipe
    per_step = (recipe.micro_batch or 1) * recipe.accumulation * recipe.num_gpus
    training_h = choice.steps * choice.prediction.time.step_time_s / 3600
    lines = [
        f"{goal.run.text}: {goal.run.samples:,.0f} samples / {per_step:,} a step = {choice.steps:,.0f} steps",
        f"{choice.steps:,.0f} steps × {format_duration(choice.prediction.time.step_time_s)} = {training_h:.2f} h",
    ]
    if choice.spot_cost is not None:
        spot = choice.spot_cost
        assumed = "~" if spot.hazard_assumed else ""
        lines.append(
            f"+ {100 * spot.overhead:.1f} % for interruptions ({assumed}{spot.expected_interruptions:.1f} expected: "
            f"{spot.hazard_source}; checkpoint of {format_duration(spot.save_s)} every "
            f"{format_duration(spot.checkpoint_every_s)}, restart {format_duration(spot.restart_s)})"
        )
    lines.append(f"+ {goal.startup_s / 60:.0f} min to start = {choice.hours:.2f} h")
    price = f"{choice.price_per_h:.4g} {offer.currency}/h"
    lines.append(f"{choice.hours:.2f} h × {price} = {choice.cost_native:,.2f} {offer.currency}")
    if offer.currency != goal.currency:
        converted = f"= {amount(choice.cost, goal.currency)} at {planned.rates.describe(offer.currency)}"
        lines.append(converted)
    lines.append(f"price: {offer.source}, {age_text(offer.snapshot_date, today)}; {offer.price_basis}")
    return "cost\n" + _indent("\n".join(lines))


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def site_text(trace: StepTrace, site: int) -> str:
    """``train.py:42 in forward``; empty where not known."""
    if site < 0:
        return ""
    found = trace.sites[site]
    return f"{Path(found.file).name}:{found.line} in {found.function.rpartition('.')[2]}"


def compare_table(planned: Planned, wanted: Sequence[tuple[str, int]], limit_each: int = 1) -> str:
    """Named GPUs side by side, each at its cheapest offer."""
    lines: list[tuple[str, ...]] = []
    for name, count in wanted:
        found = [(i, c) for i, c in enumerate(planned.plan.choices) if c.gpu_id == name and c.recipe.num_gpus == count][
            :limit_each
        ]
        lines += [row(i, c, 1, planned.plan) for i, c in found]
        if not found:
            lines.append(("–", "no offer fits", f"{name}:{count}", "", "", "", "", ""))
    return table(_COLUMNS, lines)
