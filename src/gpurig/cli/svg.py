"""The few fixed charts of gpurig's reports, as SVG text. Pure: numbers in, markup out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PALETTE = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e")
_INK, _GRID = "#1d2433", "#e3e7ee"


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a scatter plot."""

    x: float
    y: float
    title: str
    group: int = 0
    strong: bool = False
    label: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area inside its margins."""

    width: int = 760
    height: int = 360
    left: int = 70
    right: int = 20
    top: int = 16
    bottom: int = 46

    @property
    def inner_width(self) -> int:
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> int:
        return self.height - self.top - self.bottom


class LogScale:
    """Positions on a logarithmic axis that covers `values` with some room."""

    def __init__(self, values: Sequence[float], start: float, length: float) -> None:
        low, high = min(values), max(values)
        self._low = math.log10(low / 1.25)
        self._span = math.log10(high * 1.25) - self._low
        self._start, self._length = start, length

    def at(self, value: float) -> float:
        """Position of a positive value."""
        return self._start + self._length * (math.log10(value) - self._low) / self._span

    def ticks(self) -> list[float]:
        """1, 2 and 5 times powers of ten inside the axis; fewer if there would be many."""
        decades = range(math.floor(self._low), math.ceil(self._low + self._span) + 1)
        steps = (1, 2, 5) if self._span < 2.5 else (1,)
        ticks = [m * 10.0**d for d in decades for m in steps]
        return [t for t in ticks if self._low <= math.log10(t) <= self._low + self._span]


def scatter(
    dots: Sequence[Dot],
    path: Sequence[tuple[float, float]],
    *,
    x_title: str,
    y_title: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> str:
    """A scatter plot on two logarithmic axes with a stepped frontier through `path`."""
    frame = Frame()
    xs = LogScale([d.x for d in dots], frame.left, frame.inner_width)
    ys = LogScale([d.y for d in dots], frame.top + frame.inner_height, -frame.inner_height)
    parts = [_axes(frame, xs, ys, x_title, y_title, x_text, y_text)]
    if len(path) > 1:
        points = " ".join(f"{xs.at(x):.1f},{ys.at(y):.1f}" for x, y in path)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_INK}" stroke-width="1.2" stroke-dasharray="4 3"/>'
        )
    placed: list[tuple[float, float]] = []
    for dot in sorted(dots, key=lambda d: (d.strong, d.y)):
        x, y = xs.at(dot.x), ys.at(dot.y)
        clear = all(abs(x - a) > _LABEL_WIDTH or abs(y - b) > _LABEL_HEIGHT for a, b in placed)
        if dot.label and clear:
            placed.append((x, y))
        parts.append(_dot(dot, x, y, labelled=clear))
    return _svg(frame, parts, f"{y_title} against {x_title}")


_LABEL_WIDTH, _LABEL_HEIGHT = 130, 15  # room that a label wants: of two that would collide, the first stays


def _dot(dot: Dot, x: float, y: float, *, labelled: bool) -> str:
    colour = PALETTE[dot.group % len(PALETTE)]
    radius, opacity = (5.5, 1.0) if dot.strong else (3.0, 0.45)
    text = ""
    if dot.label and labelled:
        anchor = "end" if x > 560 else "start"
        offset = -9 if anchor == "end" else 9
        text = f'<text x="{x + offset:.1f}" y="{y + 4:.1f}" class="label" text-anchor="{anchor}">{escape(dot.label)}</text>'
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}" fill-opacity="{opacity}">'
        f"<title>{escape(dot.title)}</title></circle>{text}"
    )


def _axes(
    frame: Frame, xs: LogScale, ys: LogScale, x_title: str, y_title: str, x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> str:  # fmt: skip
    bottom, right = frame.top + frame.inner_height, frame.left + frame.inner_width
    parts = []
    for tick in xs.ticks():
        x = xs.at(tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{frame.top}" y2="{bottom}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(x_text(tick))}</text>')
    for tick in ys.ticks():
        y = ys.at(tick)
        parts.append(f'<line x1="{frame.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(y_text(tick))}</text>')
    parts.append(_titles(frame, x_title, y_title))
    return "".join(parts)


def _titles(frame: Frame, x_title: str, y_title: str) -> str:
    middle = frame.left + frame.inner_width / 2
    centre = frame.top + frame.inner_height / 2
    return (
        f'<text x="{middle:.0f}" y="{frame.height - 8}" text-anchor="middle" class="title">{escape(x_title)}</text>'
        f'<text x="16" y="{centre:.0f}" text-anchor="middle" class="title" transform="rotate(-90 16 {centre:.0f})">'
        f"{escape(y_title)}</text>"
    )


def stacked(
    layers: Sequence[tuple[str, Sequence[float]]], *, limit: float | None, limit_text: str, x_title: str, y_title: str
) -> str:
    """Layers stacked over a common axis (values in the unit of `y_title`), with a dashed line at `limit`."""
    frame = Frame()
    count = max(len(values) for _, values in layers)
    totals = [sum(values[i] for _, values in layers) for i in range(count)]
    top = 1.05 * max([*totals, limit or 0.0])
    x_of = [frame.left + frame.inner_width * i / max(1, count - 1) for i in range(count)]
    bottom = frame.top + frame.inner_height
    parts = [_linear_axis(frame, top), _titles(frame, x_title, y_title)]
    below = [0.0] * count
    for number, (name, values) in enumerate(layers):
        above = [b + v for b, v in zip(below, values, strict=True)]
        up = [f"{x:.1f},{bottom - frame.inner_height * v / top:.1f}" for x, v in zip(x_of, above, strict=True)]
        down = [f"{x:.1f},{bottom - frame.inner_height * v / top:.1f}" for x, v in zip(x_of, below, strict=True)]
        colour = PALETTE[number % len(PALETTE)]
        area = " ".join([*up, *reversed(down)])
        parts.append(
            f'<polygon points="{area}" fill="{colour}" fill-opacity="0.85"><title>{escape(name)}</title></polygon>'
        )
        below = above
    if limit is not None:
        y = bottom - frame.inner_height * limit / top
        parts.append(
            f'<line x1="{frame.left}" x2="{frame.left + frame.inner_width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c0392b" '
            f'stroke-dasharray="6 4"/><text x="{frame.left + 6}" y="{y - 5:.1f}" fill="#c0392b">{escape(limit_text)}</text>'
        )
    return _svg(frame, parts, y_title)


def _linear_axis(frame: Frame, top: float) -> str:
    step = 10 ** math.floor(math.log10(top / 2)) if top > 0 else 1.0
    while top / step > 7:
        step *= 2
    bottom, right = frame.top + frame.inner_height, frame.left + frame.inner_width
    parts = []
    tick = 0.0
    while tick <= top:
        y = bottom - frame.inner_height * tick / top
        parts.append(f'<line x1="{frame.left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{_GRID}"/>')
        parts.append(f'<text x="{frame.left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
        tick += step
    return "".join(parts)


def bars(values: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars: (name, value, text)."""
    line = 26
    frame = Frame(height=16 + line * len(values), left=130, top=4, bottom=12)
    top = max((v for _, v, _ in values), default=1.0) or 1.0
    parts = []
    for number, (name, value, text) in enumerate(values):
        y = frame.top + line * number
        width = max(1.0, (frame.inner_width - 170) * value / top)
        colour = PALETTE[number % len(PALETTE)]
        parts.append(f'<text x="{frame.left - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{frame.left}" y="{y + 4}" width="{width:.1f}" height="16" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{frame.left + width + 8:.1f}" y="{y + 16}">{escape(text)}</text>')
    return _svg(frame, parts, "shares")


def legend(names: Sequence[str]) -> str:
    """Names with their colours, as HTML."""
    items = "".join(
        f'<span><i style="background:{PALETTE[i % len(PALETTE)]}"></i>{escape(name)}</span>'
        for i, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'


def _svg(frame: Frame, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )
