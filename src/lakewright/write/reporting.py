"""Figures of commits, told to whoever wants to hear them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from lakewright.clock import zone_of
from lakewright.core.commits import CommitMetadata
from lakewright.core.freshness import Marks, greatest, is_ingest
from lakewright.core.instant import Instant, parse_time
from lakewright.write.freshness_settings import call_others
from lakewright.write.metrics.meter import listen
from lakewright.write.metrics.metric import MetricReporter


@runtime_checkable
class Reporter(Protocol):
    """Takes figures to some system of metrics."""

    def report(self, table: str, at_ms: int, values: Mapping[str, float]) -> None:
        """Take the figures of one commit of a table, which completed at `at_ms`."""
        ...


_reporters: list[Reporter] = []


def report_to(reporter: Reporter | MetricReporter) -> Callable[[], None]:
    """Tell a reporter of what this process does to tables; gives a function that ends it.

    One with a method `take` gets all metrics as values, one with `report` the figures of commits
    on tables that track event times.
    """
    if not isinstance(reporter, Reporter):
        return listen(reporter)
    _reporters.append(reporter)

    def end() -> None:
        if reporter in _reporters:
            _reporters.remove(reporter)

    return end


def report(
    table: str,
    at_ms: int,
    values: Mapping[str, float],
    also: Callable[[str, int, Mapping[str, float]], object] | None,
) -> None:
    """Tell all reporters, and one that an option names; who fails is warned of, and no more."""
    for tell in (*(each.report for each in _reporters), *((also,) if also else ())):
        failure = call_others(tell, table, at_ms, values)
        if failure is not None:
            warnings.warn(f"a reporter failed: {failure}", RuntimeWarning, stacklevel=3)


def commit_figures(
    instant: Instant, commit: CommitMetadata, marks: Marks | None, zone: str
) -> tuple[int, dict[str, float]]:
    """When a commit completed, and its figures; of completion and freshness where it keeps them.

    `commitLatencyInMs` and `commitFreshnessInMs` are how long after its oldest and its newest
    event a commit that brought rows completed.
    """
    at_ms = round(parse_time(instant.completed_at or "", zone_of(zone)).timestamp() * 1000)
    figures: dict[str, float] = {}
    stats = commit.write_stats() if is_ingest(commit) else ()
    oldest = min((s.min_event_time for s in stats if s.min_event_time is not None), default=None)
    newest = greatest(*(s.max_event_time for s in stats))
    if oldest is not None and newest is not None:
        figures["commitLatencyInMs"] = at_ms - oldest
        figures["commitFreshnessInMs"] = at_ms - newest
    if marks is not None:
        figures |= {name: time for name, time in view_times(marks).items() if time is not None}
    return at_ms, figures


def view_times(marks: Marks) -> dict[str, int | None]:
    """Completion and freshness of both views, by the names under which they are published."""
    return {
        "snapshot.completion": marks.rt_completion,
        "snapshot.freshness": marks.rt_freshness,
        "read_optimized.completion": marks.ro_completion,
        "read_optimized.freshness": marks.ro_freshness,
    }
