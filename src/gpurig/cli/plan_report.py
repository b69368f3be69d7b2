"""``gpurig plan --report``: one self-contained HTML file, without scripts, that prints well."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpurig.cli import plan_text
from gpurig.cli.svg import Dot, bars, legend, scatter, stacked
from gpurig.model.trace import StorageKind
from gpurig.model.units import GIB, format_bytes, format_duration
from gpurig.predict.memory import Moment, allocator_usage, contributors, timeline

if TYPE_CHECKING:
    from datetime import date

    from gpurig.model.plan import Choice
    from gpurig.plan.make import Planned

_MOMENTS = 400
_ROWS = 25
_STYLE = """
:root{color-scheme:light}
body{font:15px/1.5 system-ui,sans-serif;color:#1d2433;background:#fff;max-width:860px;margin:2.5rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2.2rem 0 .4rem}
p{margin:.35rem 0}.quiet{color:#5b6577}
table{border-collapse:collapse;width:100%;font-size:13px}th{text-align:left;font-weight:600;border-bottom:2px solid #c9d0dc}
td,th{padding:.28rem .5rem;vertical-align:top}td{border-bottom:1px solid #e9ecf2}.n{text-align:right;white-space:nowrap}
tr.best td{background:#eef4ff}
svg{width:100%;height:auto;font:12px system-ui,sans-serif;fill:#1d2433}svg .title{fill:#5b6577}svg .label{font-weight:600}
.legend span{margin-right:1rem;white-space:nowrap}.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
pre{background:#f6f8fb;padding:.8rem;overflow:auto;font-size:12.5px}
@media print{body{margin:0;max-width:none}}
"""


def render_report(planned: Planned, today: date) -> str:
    """The report. The plan must have at least one choice for the charts of memory and time."""
    plan = planned.plan
    best = plan.best
    body = [
        f"<h1>{escape(plan_text.headline(planned))}</h1>",
        *(f"<p>{escape(line)}</p>" for line in plan_text.workload_lines(planned).splitlines()),
    ]
    if best is not None:
        body += [
            _cost_and_time(planned),
            _choices(planned),
            _memory(planned, best),
            _time(best),
        ]
    body += [_rejections(planned)]
    if best is not None:
        body.append(f"<h2>The arithmetic of choice 1</h2><pre>{escape(plan_text.explain(planned, 1, today))}</pre>")
    body.append(f'<p class="quiet">{escape(plan_text.age_line(plan, _ROWS, today))}. Written by gpurig on {today}.</p>')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(planned.trace.label)}: plan</title><style>{_STYLE}</style><body>{''.join(body)}</body></html>\n"
    )


def _cost_and_time(planned: Planned) -> str:
    plan = planned.plan
    shown = [(i, c) for i, c, _ in plan_text.rows(plan, 0)]
    providers = sorted({c.offer.provider for _, c in shown})
    frontier = set(plan.frontier)
    labelled: set[str] = set()
    dots = []
    for index, choice in shown:
        strong = index in frontier
        cell = plan_text.gpu_cell(choice)
        label = cell if strong and cell not in labelled else ""
        labelled.add(cell)
        title = f"{cell}, {choice.offer.provider} {choice.offer.instance_type}{' spot' if choice.spot else ''}: "
        title += f"{format_duration(choice.hours * 3600)}, {plan_text.amount(choice.cost, plan.goal.currency)}"
        dots.append(Dot(choice.hours, choice.cost, title, providers.index(choice.offer.provider), strong, label))
    path = sorted((plan.choices[i].hours, plan.choices[i].cost) for i in plan.frontier)
    chart = scatter(
        dots, path, x_title="hours for the run", y_title=f"cost of the run, {plan.goal.currency}",
        x_text=lambda h: format_duration(h * 3600), y_text=lambda c: f"{c:g}",
    )  # fmt: skip
    return (
        "<h2>Cost and time</h2><p>Each dot is an instance type at its cheapest region. The dashed line joins those that "
        f"nothing beats in both.</p>{chart}{legend(providers) if len(providers) <= 8 else ''}"
    )


def _choices(planned: Planned) -> str:
    plan = planned.plan
    lines = []
    for index, choice, regions in plan_text.rows(plan, _ROWS):
        cells = plan_text.row(index, choice, regions, plan)
        numeric = (True, False, False, True, True, True, True, False)
        html = "".join(f"<td{' class=n' if n else ''}>{escape(c)}</td>" for c, n in zip(cells, numeric, strict=True))
        lines.append(f"<tr{' class=best' if index == 0 else ''}>{html}</tr>")
    titles = ("#", "instance", "GPU", "step", "run", "per hour", "run costs", "where, how")
    head = "".join(f"<th>{t}</th>" for t in titles)
    return f"<h2>Choices</h2><table><tr>{head}</tr>{''.join(lines)}</table><p class=quiet>* nothing is both cheaper and faster</p>"


def _memory(planned: Planned, best: Choice) -> str:
    gpu = planned.gpus[best.gpu_id]
    found = planned.workload.trace_for(best.recipe, gpu)
    assert found is not None
    trace = found[1]
    usage = allocator_usage(trace, gpu.sm)
    outside = best.prediction.memory.base + best.prediction.memory.communication
    moments = _thinned(timeline(trace))
    layers = [("outside the allocator", [outside / GIB] * len(moments))]
    for number, kind in enumerate(StorageKind):
        values = [m.by_kind[number] / GIB for m in moments]
        if max(values, default=0.0) > 0.001:
            layers.append((kind.value, values))
    usable = best.prediction.usable_memory / GIB
    chart = stacked(
        layers, limit=usable, limit_text=f"usable on {best.gpu_id}: {usable:.1f} GiB", x_title="the step, event by event",
        y_title="memory, GiB",
    )  # fmt: skip
    lines = "".join(
        f"<tr><td class=n>{format_bytes(c.num_bytes)}</td><td class=n>{c.count}</td><td>{escape(c.kind.value)}</td>"
        f"<td>{escape(plan_text.site_text(trace, c.site)) or 'not known'}</td></tr>"
        for c in contributors(trace, usage)
    )
    return (
        f"<h2>Memory over the step</h2>{chart}{legend([name for name, _ in layers])}"
        "<p>What holds it at the peak, by the line that asked for it:</p><table><tr><th>memory<th>blocks<th>kind<th>line</tr>"
        f"{lines}</table>"
    )


def _thinned(moments: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """At most a few hundred moments; of each run of them the largest is kept, so that peaks stay."""
    size = -(-len(moments) // _MOMENTS) or 1
    return tuple(max(moments[i : i + size], key=lambda m: m.total) for i in range(0, len(moments), size))


def _time(best: Choice) -> str:
    time = best.prediction.time
    total = sum(c.time_s for c in time.by_class) or 1.0
    ranked = sorted(time.by_class, key=lambda c: -c.time_s)
    values = [
        (c.op_class, c.time_s, f"{format_duration(c.time_s)}, {100 * c.time_s / total:.0f} %, {c.calls} calls")
        for c in ranked[:10]
        if c.time_s > 0
    ]
    return (
        f"<h2>Where the time of a step goes on {escape(best.gpu_id)}</h2>"
        f"<p>{format_duration(time.step_time_s)} {escape(plan_text.band(time.band))}, bound by {escape(time.bottleneck)}.</p>"
        f"{bars(values)}"
    )


def _rejections(planned: Planned) -> str:
    lines = "".join(
        f"<tr><td class=n>{r.count:,}</td><td>{escape(r.reason.value)}</td><td>{escape(r.nearest)}</td></tr>"
        for r in planned.plan.rejections
    )
    if not lines:
        return ""
    return f"<h2>Rejected</h2><table><tr><th class=n>offers<th>reason<th>the nearest of them</tr>{lines}</table>"
