"""TTL before a write, where a table wants it neither after writes nor by hand alone.

It is done before the write begins, and not beside it: a write must not fail because a partition it
writes to is taken out at that moment. When a partition can expire at the earliest is carried on in
commits, so most writes need not look at partitions at all.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime

from lakewright.clock import zone_of
from lakewright.core.instant import format_time, parse_time
from lakewright.core.plans import Skip
from lakewright.core.ttl import NEVER
from lakewright.core.ttl_settings import TtlSettings, rules_in_force, ttl_settings
from lakewright.errors import ConflictError, LakewrightError
from lakewright.services.runner import ServiceRunner
from lakewright.services.ttl.plan import Verdict
from lakewright.services.ttl.service import explain
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.times import time_of
from lakewright.write.commit import Preparation
from lakewright.write.finish import Commit
from lakewright.write.renewal import NEXT_KEY, carried_on, settings_for_writes


class BeforeWrite:
    """Runs TTL before a write; `done` tells afterwards what became of it."""

    def __init__(self, runner: ServiceRunner) -> None:
        self._runner = runner
        self.done: tuple[Commit | Skip, ...] = ()

    def __call__(self, snapshot: Snapshot) -> Preparation | None:
        """What is to be done on a table before the write begins, if anything is."""
        settings = settings_for_writes(snapshot.config, self._runner.options)
        if not settings.enabled or settings.run_inline or not rules_in_force(settings):
            return None
        if not snapshot.timeline.completed_writes:
            return None
        return None if self._is_early(snapshot, settings) else self._run

    def _is_early(self, snapshot: Snapshot, settings: TtlSettings) -> bool:
        until, _, found_for = carried_on(snapshot).partition(" ")
        return found_for == fingerprint(settings) and self._now(snapshot) <= until

    def _now(self, snapshot: Snapshot) -> str:
        return time_of(self._runner.clock.now_ms(), zone_of(snapshot.config.timeline_zone))

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
        sight = self._runner.sight(load_snapshot(self._runner.storage))
        settings = ttl_settings(sight.snapshot.config.properties, sight.options)
        now = parse_time(self._now(sight.snapshot))
        until = next_look(explain(sight), settings, now)
        return {NEXT_KEY: f"{until} {fingerprint(settings)}"} if until else {}


def next_look(verdicts: Iterable[Verdict], settings: TtlSettings, now: datetime) -> str:
    """The time up to which no partition can expire, not even one that appears meanwhile.

    Empty where one is expired already, and must be looked at again soon.
    """
    rules = rules_in_force(settings)
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
