"""TTL before a write, where a table wants it neither after writes nor by hand alone.

It is done before the write begins, and not beside it: a write must not fail because a partition it
writes to is taken out at that moment. When a partition can expire at the earliest is carried on in
commits, so most writes need not look at partitions at all.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, LakewrightError
from lakewright.model.instant import format_time, parse_time
from lakewright.model.plans import Skip
from lakewright.model.ttl import NEVER, TtlSettings, active_policies, ttl_settings
from lakewright.services.runner import ServiceRunner
from lakewright.services.ttl.partition_age import PartitionAges, partitions_with_rows
from lakewright.services.ttl.planner import PartitionTimes, TtlDecision
from lakewright.services.ttl.service import explain
from lakewright.storage.base import Storage, map_in_threads
from lakewright.table.properties import touch_last_update_time
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import format_epoch_ms
from lakewright.table.transaction import Postponed
from lakewright.write.commit_hooks import NEXT_KEY, next_ttl_check, ttl_settings_or_off
from lakewright.write.writer import Commit


class PreWriteTtl:
    """Runs TTL before a write; `done` tells afterwards what became of it."""

    def __init__(self, runner: ServiceRunner) -> None:
        self._runner = runner
        self.done: tuple[Commit | Skip, ...] = ()

    def before_write(self, snapshot: Snapshot) -> Postponed | None:
        """Postpone the write if TTL is due."""
        settings = ttl_settings_or_off(snapshot.config, self._runner.options)
        if not settings.enabled or settings.run_inline or not active_policies(settings):
            return None
        if not snapshot.timeline.completed_writes:
            return None
        return None if self._is_early(snapshot, settings) else Postponed(self._run)

    def _is_early(self, snapshot: Snapshot, settings: TtlSettings) -> bool:
        until, _, found_for = next_ttl_check(snapshot).partition(" ")
        return found_for == fingerprint(settings) and self._now(snapshot) <= until

    def _now(self, snapshot: Snapshot) -> str:
        return format_epoch_ms(self._runner.clock.now_ms(), zone_of(snapshot.config.timeline_zone))

    def _run(self) -> Mapping[str, str]:
        try:
            self.done = (self._runner.run("ttl"),)
            return self._next()
        except ConflictError as error:
            # Somebody was faster: the next write looks again.
            self.done = (*self.done, Skip(f"ttl: {error}"))
        except LakewrightError as error:
            # The write is what a user waits for, and old data may wait.
            warnings.warn(f"ttl before a write failed: {error}", RuntimeWarning, stacklevel=2)
            self.done = (*self.done, Skip(f"ttl: {error}"))
        return {}

    def _next(self) -> Mapping[str, str]:
        sight = self._runner.planning_context(load_snapshot(self._runner.storage))
        settings = ttl_settings(sight.snapshot.config.properties, sight.options)
        now = parse_time(self._now(sight.snapshot))
        until = next_check_time(explain(sight), settings, now)
        return {NEXT_KEY: f"{until} {fingerprint(settings)}"} if until else {}


def next_check_time(verdicts: Iterable[TtlDecision], settings: TtlSettings, now: datetime) -> str:
    """The time up to which no partition can expire, not even one that appears meanwhile.

    Empty where one is expired already, and must be looked at again soon.
    """
    rules = active_policies(settings)
    earliest = min((rule.policy.expiry(now) for rule in rules), default=NEVER)
    for verdict in verdicts:
        if verdict.expired or verdict.rows_before is not None:
            return ""
        if verdict.expires_at is not None:
            earliest = min(earliest, parse_time(verdict.expires_at))
    return format_time(earliest)


def fingerprint(settings: TtlSettings) -> str:
    """Tells settings from others."""
    return f"{zlib.crc32(repr(settings).encode()):08x}"


# ------------------------------------------------------------------------------------------------
# Fills in the line `lastUpdateTime` of all partitions, once, before TTL is first used.


RefreshProgress = Callable[[int, int], None]

_AT_ONCE = 512


def update_partitions(snapshot: Snapshot, progress: RefreshProgress | None = None) -> int:
    """Write the line where it is missing or older than the last write; gives to how many.

    `progress` is told how many partitions are done, and how many there are. May be repeated after
    a crash: it goes on with those that lack the line.
    """
    ages = PartitionAges.load(snapshot, partitions_with_rows(snapshot))
    unsure = [p for p in ages.activity if _is_unsure(ages.times_of(p))]
    ages = ages.with_history(unsure) if unsure else ages
    times = [(p, _time(ages.times_of(p))) for p in ages.activity]
    done = 0
    renewed = 0
    for start in range(0, len(times), _AT_ONCE):
        part = times[start : start + _AT_ONCE]
        renewed += sum(map_in_threads(partial(_renew, snapshot.storage), part))
        done += len(part)
        if progress is not None:
            progress(done, len(times))
    return renewed


def _is_unsure(known: PartitionTimes) -> bool:
    return known.updated is None or known.bound > known.updated.at


def _time(known: PartitionTimes) -> str:
    """The last write; of a partition that nothing tells of, what its files show."""
    return known.updated.at if known.updated is not None else known.bound


def _renew(storage: Storage, item: tuple[str, str]) -> bool:
    partition, time = item
    return bool(time) and touch_last_update_time(storage, partition, time)
