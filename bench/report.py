"""From single measurements to ratios, and from these to JSON and Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from bench.plan import DELTA, HUDI, ICEBERG, LAKEWRIGHT, LIMIT, SYSTEMS, WORKLOADS
from bench.results import Measurement, Outcome
from bench.targets import TARGETS

PEERS = (DELTA, ICEBERG)
ENDS = 10  # commits at the beginning and at the end that the slope compares
MEMORY = "memory"
JUDGED_PARTS = ("incremental", "find", "clean")

Table = dict[str, dict[str, float]]


def medians(measurements: Iterable[Measurement]) -> Table:
    """Seconds of each workload and system: the median of all its measurements."""
    seconds: dict[str, dict[str, list[float]]] = {}
    for measurement in measurements:
        seconds.setdefault(measurement.workload, {}).setdefault(measurement.system, []).extend(
            measurement.seconds
        )
    return _medians(seconds)


def part_medians(measurements: Iterable[Measurement]) -> dict[str, Table]:
    """The same for the parts of a workload, such as the queries of a scan."""
    seconds_by_part: dict[str, dict[str, dict[str, list[float]]]] = {}
    for measurement in measurements:
        for part, seconds in measurement.parts.items():
            systems = seconds_by_part.setdefault(measurement.workload, {}).setdefault(part, {})
            systems.setdefault(measurement.system, []).extend(seconds)
    return {workload: _medians(parts) for workload, parts in seconds_by_part.items()}


def _medians(values_by_system: Mapping[str, Mapping[str, Sequence[float]]]) -> Table:
    return {
        name: {system: median(seconds) for system, seconds in systems.items()}
        for name, systems in values_by_system.items()
    }


def peaks(measurements: Iterable[Measurement]) -> Table:
    """Bytes of each workload and system: the median over the rounds of the peak."""
    peak_bytes: dict[str, dict[str, list[float]]] = {}
    for measurement in measurements:
        if measurement.peak_bytes is not None:
            systems = peak_bytes.setdefault(measurement.workload, {})
            systems.setdefault(measurement.system, []).append(measurement.peak_bytes)
    return _medians(peak_bytes)


def greatest(peak: Table) -> dict[str, float]:
    """The greatest peak of each system, over the workloads that all of them went through."""
    if not peak:
        return {}
    everyone = set().union(*peak.values())
    shared = [systems for systems in peak.values() if set(systems) == everyone]
    return {system: max(systems[system] for systems in shared) for system in everyone if shared}


def slopes(measurements: Iterable[Measurement]) -> dict[str, float]:
    """How much slower the last commits of a system are than its first ones."""
    seconds_by_system: dict[str, list[float]] = {}
    for measurement in sorted(measurements, key=lambda m: m.round):
        if measurement.workload == "tiny_commit":
            seconds_by_system.setdefault(measurement.system, []).extend(measurement.seconds)
    return {
        system: median(seconds[-ENDS:]) / median(seconds[:ENDS])
        for system, seconds in seconds_by_system.items()
        if len(seconds) >= 2 * ENDS
    }


def ratios_of(systems: Mapping[str, float]) -> dict[str, float]:
    """Theirs over ours, so that above 1 we are better; and ours over the limit."""
    ours = systems.get(LAKEWRIGHT)
    if not ours:
        return {}
    ratios = {}
    if HUDI in systems:
        ratios["hudi"] = systems[HUDI] / ours
    if peers := [systems[peer] for peer in PEERS if peer in systems]:
        ratios["best_peer"] = min(peers) / ours
    if LIMIT in systems:
        ratios["limit"] = ours / systems[LIMIT]
    return ratios


def all_ratios(measurements: Sequence[Measurement]) -> Table:
    """The ratios of every workload, and of memory."""
    by_workload = {name: ratios_of(systems) for name, systems in medians(measurements).items()}
    for name, parts in part_medians(measurements).items():
        for part in JUDGED_PARTS:
            times = parts.get(part, {})
            if LAKEWRIGHT in times and HUDI in times:
                by_workload[name][f"hudi_{part}"] = times[HUDI] / times[LAKEWRIGHT]
    by_workload[MEMORY] = ratios_of(greatest(peaks(measurements)))
    ours = slopes(measurements).get(LAKEWRIGHT)
    if ours is not None:
        by_workload["tiny_commit"]["slope"] = ours
    return {name: ratios for name, ratios in by_workload.items() if ratios}


def targets_with_results(ratios: Table) -> list[dict[str, Any]]:
    """Every target with its ratio and whether it is met; None where it was not measured."""
    results = []
    for target in TARGETS:
        ratio = ratios.get(target.workload, {}).get(target.against)
        is_met = None if ratio is None else target.is_met(ratio)
        results.append({**asdict(target), "ratio": ratio, "met": is_met})
    return results


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole outcome as it is stored."""
    ratios = all_ratios(outcome.measurements)
    return {
        **outcome.facts,
        "ratios": _rounded(ratios),
        "targets": _rounded(targets_with_results(ratios)),
        "medians": _rounded(medians(outcome.measurements)),
        "parts": _rounded(part_medians(outcome.measurements)),
        "slopes": _rounded(slopes(outcome.measurements)),
        "peak_bytes": peaks(outcome.measurements),
        "checks": [{**asdict(check), "agrees": check.agrees} for check in outcome.checks],
        "failures": [asdict(failure) for failure in outcome.failures],
        "measurements": [_rounded(asdict(measurement)) for measurement in outcome.measurements],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def as_markdown(result: Mapping[str, Any]) -> str:
    """The stored outcome as a page."""
    facts, size = result["machine"], result["size"]
    return "\n".join(
        [
            f"# Race of {result['made'][:10]}",
            "",
            f"{result['rows']:,} rows of TPC-H lineitem (scale {size['scale']:g}), "
            f"{size['rounds']} rounds, {facts['cores']} cores ({facts['processor']}), "
            f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['driver_memory']} for each driver.",
            "",
            *(f"- {name}: {version}" for name, version in sorted(result["versions"].items())),
            "",
            "Seconds are medians. Ratios to Hudi and to the best of Delta and Iceberg are their",
            "time over ours: above 1 Lakewright is faster. The last one is ours over the limit.",
            "",
            *_times(result),
            "",
            *_memory(result),
            *_targets(result),
            *_problems(result),
        ]
    )


def _times(result: Mapping[str, Any]) -> list[str]:
    systems = [name for name in SYSTEMS if any(name in row for row in result["medians"].values())]
    head = ["workload", *systems, "to Hudi", "to best peer", "over limit"]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 1)])]
    for workload in WORKLOADS:
        if workload.name not in result["medians"]:
            continue
        seconds = result["medians"][workload.name]
        ratios = result["ratios"].get(workload.name, {})
        cells = [f"{seconds[name]:.2f}" if name in seconds else "" for name in systems]
        shown = [_ratio(ratios.get(name)) for name in ("hudi", "best_peer", "limit")]
        lines.append(_row([f"`{workload.name}`", *cells, *shown]))
    return lines


def _memory(result: Mapping[str, Any]) -> list[str]:
    peak = result["peak_bytes"]
    if not peak:
        return []
    systems = [name for name in SYSTEMS if any(name in row for row in peak.values())]
    lines = ["Peak memory of driver and workers, MiB:", "", _row(["workload", *systems])]
    lines.append(_row(["---", *["---:"] * len(systems)]))
    for name, row in peak.items():
        cells = [f"{row[system] / 2**20:.0f}" if system in row else "" for system in systems]
        lines.append(_row([f"`{name}`", *cells]))
    return [*lines, ""]


def _targets(result: Mapping[str, Any]) -> list[str]:
    lines = [_row(["target", "against", "bound", "measured", "met"])]
    lines.append(_row(["---", "---", "---:", "---:", "---"]))
    for target in result["targets"]:
        sign = "≤" if target["at_most"] else "≥"
        met = {True: "yes", False: "**no**", None: "not measured"}[target["met"]]
        bound = f"{sign} {target['bound']:g}"
        cells = [f"`{target['workload']}`", target["against"], bound, _ratio(target["ratio"]), met]
        lines.append(_row(cells))
    return [*lines, ""]


def _problems(result: Mapping[str, Any]) -> list[str]:
    failed = [check for check in result["checks"] if not check["agrees"]]
    lines = [
        f"- {check['system']} holds other rows after `{check['workload']}`: "
        f"{check['found']}, expected {check['expected']}"
        for check in failed
    ]
    lines += [
        f"- {failure['system']} failed in `{failure['workload']}`: {failure['error'][:200]!r}"
        for failure in result["failures"]
    ]
    if not lines:
        return [f"All {len(result['checks'])} checks of rows agree.", ""]
    return ["What went wrong:", "", *lines, ""]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
