"""Curves as people and programs read them: a table of text, JSON and a drawing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

from bench.scale.curves import Curve
from bench.scale.meter import Point

_HEADS = ("subject", "size", "calls", "read", "seconds", "us/item", "peak", "bytes/item")
_COLOURS = (
    "#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910",
    "#16a085", "#7f8c8d", "#2c3e50", "#a0522d", "#ff69b4",
)  # fmt: skip
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 230, 20, 50


def as_text(curves: Iterable[Curve]) -> str:
    """A table with a row for each point, and a line with the exponents below each curve."""
    lines = [_row(_HEADS)]
    for curve in curves:
        lines += [_row(_cells(curve, point)) for point in curve.points]
        kind = "must be flat" if curve.flat else f"by {curve.unit}"
        lines.append(
            f"  {kind}: time n^{_number(curve.time_exponent)}, "
            f"calls n^{_number(curve.call_exponent)}"
        )
    return "\n".join(lines)


def as_json(curves: Iterable[Curve]) -> str:
    """The same as data."""
    return json.dumps(
        [
            {
                **asdict(curve),
                "time_exponent": curve.time_exponent,
                "call_exponent": curve.call_exponent,
            }
            for curve in curves
        ],
        indent=2,
    )


def as_svg(curves: Sequence[Curve]) -> str:
    """Seconds over size, both logarithmic, with a line for each curve."""
    points = [(p.size, p.seconds) for curve in curves for p in curve.points]
    sizes = _decades([size for size, _ in points])
    times = _decades([seconds for _, seconds in points])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *_grid(sizes, times),
    ]
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        positions = [(_x(p.size, sizes), _y(p.seconds, times)) for p in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        label = escape(f"{curve.name}  n^{_number(curve.time_exponent)}")
        height = _TOP + 18 * number + 12
        parts += [
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in positions),
            f'<text x="{_WIDTH - _RIGHT + 15}" y="{height}" fill="{colour}">{label}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _cells(curve: Curve, point: Point) -> tuple[str, ...]:
    # What every run costs is no matter of the items: with the smallest size it is taken off.
    first = curve.points[0]
    items = point.size - first.size
    return (
        curve.name,
        f"{point.size:,}",
        f"{point.calls:,}",
        _bytes(point.bytes_read),
        f"{point.seconds:.4f}",
        f"{(point.seconds - first.seconds) / items * 1e6:.2f}" if items else "",
        "" if point.peak is None else _bytes(point.peak),
        f"{((point.peak or 0) - (first.peak or 0)) / items:.0f}" if items else "",
    )


def _row(cells: Sequence[str]) -> str:
    name, *numbers = cells
    return f"{name:<24}" + "".join(f"{cell:>12}" for cell in numbers)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values, default=1)))
    return low, max(low + 1, math.ceil(math.log10(max(values, default=10))))


def _x(size: float, decades: tuple[int, int]) -> float:
    low, high = decades
    return _LEFT + (math.log10(size) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)


def _y(seconds: float, decades: tuple[int, int]) -> float:
    low, high = decades
    room = _HEIGHT - _TOP - _BOTTOM
    return _TOP + room - (math.log10(seconds) - low) / (high - low) * room


def _grid(sizes: tuple[int, int], times: tuple[int, int]) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    lines = []
    for power in range(sizes[0], sizes[1] + 1):
        x = _x(10.0**power, sizes)
        lines += [
            f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>',
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{10**power:,}</text>',
        ]
    for power in range(times[0], times[1] + 1):
        y = _y(10.0**power, times)
        lines += [
            f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>',
        ]
    return lines
