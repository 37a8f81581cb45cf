"""The hook that runs TTL beside a write, and the initial update of `lastUpdateTime`.

Commits record the earliest time at which a partition can expire, so most writes need not evaluate
the partitions at all.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

from lakewright.errors import LakewrightError
from lakewright.model.instant import format_time, parse_time
from lakewright.model.plans import Skip
from lakewright.model.ttl import NEVER, TtlSettings, active_policies, ttl_zone
from lakewright.services.asynchronous import AsyncServices, attempt
from lakewright.services.maintenance_loop import ServiceOutcome
from lakewright.services.runner import ServiceRunner
from lakewright.services.ttl.partition_age import PartitionAges, partitions_with_rows
from lakewright.services.ttl.planner import PartitionTimes, TtlDecision, plan_ttl
from lakewright.services.ttl.service import explain
from lakewright.storage.base import Storage, map_in_threads
from lakewright.table.properties import touch_last_update_time
from lakewright.table.snapshot import Snapshot
from lakewright.table.time_generator import format_epoch_ms
from lakewright.write.commit_hooks import NEXT_KEY, next_ttl_check, ttl_settings_or_off

_TTL = "ttl"


class TtlBesideWrite:
    """Runs TTL beside one write, where it is not inline.

    When the write begins, a thread of the writer evaluates the partitions. Those that are expired
    are deleted after the commit of the write: the write must not fail because TTL deletes a
    partition that it writes to, and a partition that it has written to is not expired any more.
    """

    def __init__(self, runner: ServiceRunner, services: AsyncServices) -> None:
        self._runner = runner
        self._services = services
        self._evaluated: threading.Event | None = None
        self._next_check: Mapping[str, str] = {}

    def before_write(self, snapshot: Snapshot) -> None:
        """Start TTL if a partition can have expired."""
        settings = ttl_settings_or_off(snapshot.config, self._runner.options)
        if not settings.enabled or settings.run_inline or not active_policies(settings):
            return
        if self._evaluated is not None:
            # Another attempt of the write: commits since the first are not evaluated.
            self._evaluated, self._next_check = threading.Event(), {}
            self._evaluated.set()
            return
        if not snapshot.timeline.completed_writes or self._is_early(snapshot, settings):
            return
        # The caches of a snapshot are for one thread.
        own = Snapshot(snapshot.storage, snapshot.config, snapshot.timeline)
        evaluated = threading.Event()
        if self._services.start(_TTL, partial(self._run, own, settings, evaluated)):
            self._evaluated = evaluated

    def extra_metadata(self) -> Mapping[str, str]:
        """Return what the commit records: until when no partition expires, if none has."""
        if self._evaluated is not None:
            self._evaluated.wait()
        return self._next_check

    def _is_early(self, snapshot: Snapshot, settings: TtlSettings) -> bool:
        until, _, recorded = next_ttl_check(snapshot).partition(" ")
        return recorded == fingerprint(settings) and self._now(snapshot, settings) <= until

    def _now(self, snapshot: Snapshot, settings: TtlSettings) -> str:
        zone = ttl_zone(snapshot.config.timeline_zone, settings)
        return format_epoch_ms(self._runner.clock.now_ms(), zone)

    def _run(
        self, snapshot: Snapshot, settings: TtlSettings, evaluated: threading.Event
    ) -> Iterator[ServiceOutcome]:
        try:
            decisions = explain(self._runner.planning_context(snapshot))
            until = next_check_time(decisions, settings, parse_time(self._now(snapshot, settings)))
            if until and self._evaluated in (None, evaluated):
                self._next_check = {NEXT_KEY: f"{until} {fingerprint(settings)}"}
        except LakewrightError as error:
            yield ServiceOutcome(_TTL, error)
            return
        finally:
            evaluated.set()
        plan = plan_ttl(decisions, settings)
        if isinstance(plan, Skip):
            yield ServiceOutcome(_TTL, plan)
            return
        with self._services.turns.taken():
            yield attempt(_TTL, partial(self._runner.run, _TTL))


def next_check_time(decisions: Iterable[TtlDecision], settings: TtlSettings, now: datetime) -> str:
    """The time up to which no partition can expire, not even one created from now on.

    Empty if a partition is expired already, or a policy deletes rows: then the next write runs TTL.
    """
    policies = active_policies(settings)
    earliest = min((active.policy.expiry(now) for active in policies), default=NEVER)
    for decision in decisions:
        if decision.expired or decision.rows_before is not None:
            return ""
        if decision.expires_at is not None:
            earliest = min(earliest, parse_time(decision.expires_at))
    return format_time(earliest)


def fingerprint(settings: TtlSettings) -> str:
    """A checksum of the settings, to detect that they have changed."""
    return f"{zlib.crc32(repr(settings).encode()):08x}"


# The update of `lastUpdateTime` in the metadata of all partitions, before TTL is first used.


RefreshProgress = Callable[[int, int], None]

_BATCH_SIZE = 512


def update_partitions(snapshot: Snapshot, progress: RefreshProgress | None = None) -> int:
    """Write `lastUpdateTime` where it is missing or older than the last write; return how often.

    `progress` is called with the number of processed partitions and the number of all. Can be
    repeated after a crash: it then updates the remaining partitions.
    """
    ages = PartitionAges.load(snapshot, partitions_with_rows(snapshot))
    unsure = [p for p in ages.activity if _is_unsure(ages.times_of(p))]
    ages = ages.with_history(unsure) if unsure else ages
    times = [(p, _last_write(ages.times_of(p))) for p in ages.activity]
    processed = 0
    updated = 0
    for start in range(0, len(times), _BATCH_SIZE):
        batch = times[start : start + _BATCH_SIZE]
        updated += sum(map_in_threads(partial(_update, snapshot.storage), batch))
        processed += len(batch)
        if progress is not None:
            progress(processed, len(times))
    return updated


def _is_unsure(times: PartitionTimes) -> bool:
    """Whether the archived timeline may have a later write than those found."""
    return times.updated is None or times.bound > times.updated.at


def _last_write(times: PartitionTimes) -> str:
    """The time of the last write; if none is found, the latest one that file names allow."""
    return times.updated.at if times.updated is not None else times.bound


def _update(storage: Storage, item: tuple[str, str]) -> bool:
    partition, time = item
    return bool(time) and touch_last_update_time(storage, partition, time)
