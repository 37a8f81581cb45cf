"""The picture of a race, written by hand as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.plan import WORKLOADS

LEFT, RIGHT, TOP = 210, 70, 64
WIDTH, BAR, GAP = 900, 14, 16
AGAINST = {"hudi": "Hudi", "best_peer": "best of Delta and Iceberg"}

STYLE = """
  svg { background: #ffffff; color: #1f2328; }
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 11px; fill: #57606a; }
  .grid { stroke: #d0d7de; } .one { stroke: #1f2328; stroke-width: 1.5; }
  .hudi { fill: #0969da; } .best_peer { fill: #1a7f37; } .loss { fill: #cf222e; }
  .target { stroke: #1f2328; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; color: #e6edf3; }
    text { fill: #e6edf3; } .small { fill: #9198a1; }
    .grid { stroke: #30363d; } .one, .target { stroke: #e6edf3; }
    .hudi { fill: #4493f8; } .best_peer { fill: #3fb950; } .loss { fill: #f85149; }
  }
"""


def as_svg(result: Mapping[str, Any]) -> str:
    """Bars of how many times faster Lakewright is, on a logarithmic scale; losses in red."""
    rows = shown_ratios(result)
    low, high = scale_of([value for _, ratios in rows for value in ratios.values()])
    targets = {
        (target["workload"], target["against"]): target["bound"] for target in result["targets"]
    }
    body: list[str] = []
    y = TOP
    for name, ratios in rows:
        middle = y + len(ratios) * BAR / 2 + 4
        body.append(_text(LEFT - 12, middle, name, anchor="end"))
        for against, value in ratios.items():
            body += _bar(y, against, value, low, high)
            body += _target(y, targets.get((name, against)), low, high)
            y += BAR
        y += GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 30}" role="img" '
            'aria-label="How many times faster Lakewright is">',
            f"<style>{STYLE}</style>",
            *_heading(result),
            *_grid(low, high, y),
            *body,
            "</svg>\n",
        ]
    )


def shown_ratios(result: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """The rows of the picture: workloads in their usual order, then memory."""
    rows = []
    for name in (*(workload.name for workload in WORKLOADS), "memory"):
        ratios = result["ratios"].get(name, {})
        bars = {against: ratios[against] for against in AGAINST if against in ratios}
        if bars:
            rows.append((name, bars))
    return rows


def scale_of(values: list[float]) -> tuple[float, float]:
    """The ends of the scale: powers of two that hold 1/2, 2 and every value."""
    low = min([0.5, *values])
    high = max([2.0, *values])
    return 2.0 ** math.floor(math.log2(low)), 2.0 ** math.ceil(math.log2(high))


def position(value: float, low: float, high: float) -> float:
    """Where a ratio stands, from left to right."""
    share = math.log(value / low) / math.log(high / low)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _heading(result: Mapping[str, Any]) -> list[str]:
    size, machine = result["size"], result["machine"]
    subtitle = f"scale {size['scale']:g}, {result['rows']:,} rows, {machine['cores']} cores"
    keys = [
        f'<rect class="{against}" x="{x}" y="30" width="10" height="10"/>'
        + _text(x + 15, 39, f"against {label}", style="small")
        for (against, label), x in zip(AGAINST.items(), (LEFT, LEFT + 110), strict=True)
    ]
    loss_key = f'<rect class="loss" x="{LEFT + 330}" y="30" width="10" height="10"/>'
    return [
        _text(LEFT, 20, f"Lakewright: times faster (right) or slower (left); {subtitle}"),
        *keys,
        loss_key + _text(LEFT + 345, 39, "slower; | target", style="small"),
    ]


def _grid(low: float, high: float, bottom: float) -> list[str]:
    lines = []
    for power in range(round(math.log2(low)), round(math.log2(high)) + 1):
        value = 2.0**power
        x = position(value, low, high)
        style = "one" if power == 0 else "grid"
        lines.append(f'<path class="{style}" d="M{x} {TOP - 8}V{bottom}"/>')
        label = f"{value:g}x" if power >= 0 else f"1/{2**-power}"
        lines.append(_text(x, bottom + 16, label, anchor="middle", style="small"))
    return lines


def _bar(y: float, against: str, value: float, low: float, high: float) -> list[str]:
    start, end = sorted((position(1.0, low, high), position(value, low, high)))
    style = against if value >= 1 else "loss"
    width = max(round(end - start, 1), 1)
    bar = f'<rect class="{style}" x="{start}" y="{y + 1}" width="{width}" height="{BAR - 2}"/>'
    mark = f"{value:.2f}x {AGAINST[against] if value < 1 else ''}".rstrip()
    right = position(1.0, low, high) if value < 1 else end
    return [bar, _text(right + 5, y + BAR - 3, mark, style="small")]


def _target(y: float, bound: float | None, low: float, high: float) -> list[str]:
    if bound is None or not low <= bound <= high:
        return []
    return [f'<path class="target" d="M{position(bound, low, high)} {y}v{BAR}"/>']


def _text(x: float, y: float, text: str, *, anchor: str = "start", style: str = "") -> str:
    class_attribute = f' class="{style}"' if style else ""
    safe = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{class_attribute}>{safe}</text>'
