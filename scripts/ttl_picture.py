"""Draw docs/ttl.svg from the results of the load test of TTL, and put its numbers into docs/ttl.md.

    ./dev bench --only ttl_10000 --system lakewright,hudi --scale 1 --rounds 1
    ./dev bench --only ttl_10000 --scale 1 --hdfs
    python scripts/ttl_picture.py            # of the newest results in bench/results

Both runs are needed for all of it; without the second, the cluster is left out.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "ttl.md"
PICTURE = ROOT / "docs" / "ttl.svg"
BEGIN, END = "<!-- load test -->\n", "<!-- load test end -->"

STEPS = {
    "load": "load",
    "update": "`ttl_update_partitions`",
    "find": "find the expired",
    "run": "TTL run, finding included",
    "clean": "clean",
}
SYSTEM_NAMES = {"lakewright": "Lakewright", "hudi": "real Hudi", "cluster": "Lakewright, HDFS"}
COLOURS = {"lakewright": "#0a7", "hudi": "#c40", "cluster": "#07a"}
LEFT, WIDTH, BAR, GAP, TOP = 190, 760, 15, 12, 46

Times = dict[str, dict[str, float]]


def newest(pattern: str) -> dict[str, Any] | None:
    """The last result of a kind, by the date in its name."""
    files = sorted(RESULTS.glob(pattern))
    result: dict[str, Any] | None = json.loads(files[-1].read_text("utf-8")) if files else None
    return result


def times_of(race: Mapping[str, Any], cluster: Mapping[str, Any] | None) -> tuple[str, Times]:
    """The largest workload of a race, and the seconds of each of its steps by each system."""
    name = max(race["parts"], key=lambda part: int(part.rpartition("_")[2]))
    times: Times = {step: dict(race["parts"][name].get(step, {})) for step in STEPS}
    # Another number of partitions is no comparison: it is told by itself.
    if cluster is not None and name == f"ttl_{cluster['partitions']}":
        for step, seconds in cluster["seconds"].items():
            times[step]["cluster"] = seconds
    return name, times


def as_table(times: Times) -> str:
    """The numbers, a row for each step."""
    shown = [system for system in SYSTEM_NAMES if any(system in row for row in times.values())]
    lines = [
        f"| seconds | {' | '.join(SYSTEM_NAMES[system] for system in shown)} |",
        f"|---|{'---:|' * len(shown)}",
    ]
    for step, row in times.items():
        cells = [f"{row[system]:.1f}" if system in row else "" for system in shown]
        lines.append(f"| {STEPS[step]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def as_svg(times: Times, title: str) -> str:
    """Bars on a logarithmic scale."""
    values = [seconds for row in times.values() for seconds in row.values()]
    low = 10 ** math.floor(math.log10(min(values)))
    high = 10 ** math.ceil(math.log10(max(values)))
    body, y = [], TOP
    for step, row in times.items():
        label = STEPS[step].replace("`", "")
        body.append(_text(LEFT - 8, y + BAR * len(row) / 2 + 4, label, "end"))
        for system, seconds in row.items():
            width = max(1.0, _position(seconds, low, high) - LEFT)
            body.append(
                f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" '
                f'fill="{COLOURS[system]}"/>'
            )
            body.append(_text(LEFT + width + 5, y + BAR - 4, f"{seconds:.3g} s"))
            y += BAR
        y += GAP
    grid = []
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        x = _position(10.0**power, low, high)
        grid.append(f'<path d="M{x:.1f} {TOP - 6}V{y}" stroke="#888" stroke-opacity="0.3"/>')
        grid.append(_text(x, y + 14, f"{10.0**power:g} s", "middle"))
    keys = [
        f'<rect x="{LEFT + 150 * n}" y="24" width="10" height="10" fill="{COLOURS[system]}"/>'
        + _text(LEFT + 150 * n + 15, 33, SYSTEM_NAMES[system])
        for n, system in enumerate(
            w for w in SYSTEM_NAMES if any(w in row for row in times.values())
        )
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" role="img" '
            f'aria-label="{title}">',
            "<style>text { font: 12px sans-serif; fill: #777; }</style>",
            _text(LEFT, 14, title),
            *keys,
            *grid,
            *body,
            "</svg>\n",
        ]
    )


def _position(seconds: float, low: float, high: float) -> float:
    share = math.log(max(seconds, low) / low) / math.log(high / low)
    return LEFT + share * (WIDTH - LEFT - 70)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def as_page(race: Mapping[str, Any], cluster: Mapping[str, Any] | None) -> str:
    """What stands between the marks in the page."""
    name, times = times_of(race, cluster)
    find = times["find"]
    lines = [
        f"Made on {race['made'][:10]}: scale {race['size']['scale']:g}, "
        f"{int(name.rpartition('_')[2]):,} partitions, half of them expire. "
        f"{_machine(race['machine'], race.get('load_before'))}",
    ]
    if cluster is not None:
        steps = (f"{STEPS[step]} {duration:.1f}" for step, duration in cluster["seconds"].items())
        seconds = "" if "cluster" in find else f"; in seconds: {', '.join(steps)}"
        lines.append(
            f"On HDFS, {cluster['made'][:10]}: scale {cluster['scale']:g}, "
            f"{cluster['partitions']:,} partitions{seconds}. "
            f"{_machine(cluster['machine'], cluster.get('load_before'))}"
        )
    if "hudi" in find and "lakewright" in find:
        ratio = find["hudi"] / find["lakewright"]
        lines.append(f"Finding the expired takes real Hudi {ratio:.1f} times as long.")
    return "\n\n".join([as_table(times), *lines, "![The load test](ttl.svg)", ""])


def _machine(machine: Mapping[str, Any], load: float | None) -> str:
    gib = machine["memory_bytes"] / 2**30
    busy = "" if load is None else f"; the load average was {load:.1f} before it began"
    return f"{machine['cores']} cores ({machine['processor']}), {gib:.0f} GiB{busy}."


def main() -> int:
    """Write both."""
    race, cluster = newest("ttl-2*.json"), newest("ttl-hdfs-*.json")
    if race is None:
        print("there is no result: run ./dev bench --only ttl first", file=sys.stderr)
        return 2
    name, times = times_of(race, cluster)
    count = int(name.rpartition("_")[2])
    PICTURE.write_text(as_svg(times, f"TTL on {count:,} partitions: seconds of each step"), "utf-8")
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}{as_page(race, cluster)}{END}{tail}", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
