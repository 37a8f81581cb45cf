"""What services do in the demo, one after the other: compaction by event time, and TTL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import lakewright as lw
from lakewright.demo.stage import SEVERAL_WRITERS, Stage
from lakewright.demo.story import Compacted, Expired, moment
from lakewright.model.instant import Action
from lakewright.services.planning import find_window

TTL = {
    "hoodie.partition.ttl.management.strategy.type": "KEEP_BY_EVENT_TIME",
    "hoodie.partition.ttl.strategy.days.retain": "14",
    **SEVERAL_WRITERS,
}


def compact(stage: Stage, until: int) -> None:
    """Fold what the fast view lacks up to an event time, and no more."""
    stage.update(doing=f"compaction by event time, up to {moment(until)}")
    table = stage.table
    partitions = len(stage.table.ttl.explain())
    window = find_window(table.services().planning_context(table.snapshot()), Action.COMPACTION)
    looked_at = partitions if window.partitions is None else len(window.partitions)
    before = table.debt().log_files
    done = table.run("compaction", by_event_time(until))
    told = Compacted(looked_at, partitions, until)
    if isinstance(done, lw.Skip):
        told = replace(told, left=before, skipped=done.reason)
        said = f"compaction: {done}"
    else:
        left = table.debt().log_files
        told = replace(told, folded=before - left, left=left)
        said = f"compaction: {told.folded} log files folded, {left} left"
    said = f"{said}; planning looked at {looked_at} of {partitions} partitions"
    stage.look(said, compactions=(*stage.story.compactions, told))


def by_event_time(until: int) -> Mapping[str, str]:
    """The options of a compaction up to an event time."""
    threshold = datetime.fromtimestamp(until / 1000, UTC).isoformat()
    return {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.threshold": threshold,
        **SEVERAL_WRITERS,
    }


def expire(stage: Stage) -> None:
    """Take out the days that are older than two weeks, by the day that their paths name."""
    stage.update(doing="TTL: looking for days older than 14 days")
    done = stage.table.run("ttl", TTL)
    if isinstance(done, lw.Skip):
        stage.update(f"ttl: {done}")
        return
    told = stage.consumer.follow()
    stage.look(
        f"ttl: {', '.join(done.partitions)} taken out, {told:,} rows",
        expired=Expired(done.partitions, told),
        consumed=stage.consumer.consumed,
    )
