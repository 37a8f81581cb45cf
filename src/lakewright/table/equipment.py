"""What a writer works with, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from lakewright.clock import Clock, zone_of
from lakewright.core.table_config import TableConfig
from lakewright.core.timeline import Timeline
from lakewright.errors import ConflictError, UnavailableError
from lakewright.settings import settings_from
from lakewright.storage.base import Storage
from lakewright.table.heartbeat import Heartbeat, alive
from lakewright.table.locks import Lock, lock_for
from lakewright.table.meanwhile import latest_time
from lakewright.table.settings import (
    PLAN_KEYS,
    FailedWrites,
    HeartbeatSettings,
    LockSettings,
    PlanSettings,
    TransactionSettings,
    plan_settings,
)
from lakewright.table.times import TimeSource

_ALONE_WAIT_MS = 1


@dataclass(frozen=True, slots=True)
class Equipment:
    """The table's storage, a clock, and how the writers of the table get along."""

    storage: Storage
    clock: Clock
    transaction: TransactionSettings = field(default_factory=TransactionSettings)
    lock: LockSettings = field(default_factory=LockSettings)
    heartbeat: HeartbeatSettings = field(default_factory=HeartbeatSettings)
    plan_options: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def from_options(cls, storage: Storage, clock: Clock, options: Mapping[str, str]) -> Self:
        """A writer with the settings that Hudi's options name."""
        settings_from(PlanSettings, options)
        return cls(
            storage,
            clock,
            settings_from(TransactionSettings, options),
            settings_from(LockSettings, options),
            settings_from(HeartbeatSettings, options),
            {key: options[key] for key in PLAN_KEYS if key in options},
        )

    def new_lock(self) -> Lock:
        """The lock of the table, not yet taken."""
        several = self.transaction.several_writers
        return lock_for(self.storage, self.lock, self.clock, several_writers=several)

    def times(
        self, config: TableConfig, timeline: Timeline, lock: Lock | None = None
    ) -> TimeSource:
        """New times for the timeline, above all that are there; the lock must be held.

        With `lock` none is given once it was lost.
        """
        several = self.transaction.several_writers
        wait_ms = self.transaction.clock_skew_ms if several else _ALONE_WAIT_MS
        zone = zone_of(config.timeline_zone)
        return TimeSource(self.clock, zone, wait_ms, after=latest_time(timeline), lock=lock)

    def kept(self, lock: Lock) -> bool:
        """Whether a lock that all others take has been ours up to now; else, or unknown, no."""
        if not self.transaction.several_writers:
            return False
        try:
            lock.verify()
        except (ConflictError, UnavailableError):
            return False
        return True

    def living(self, instants: Iterable[str]) -> frozenset[str]:
        """Those of some instants that have a heartbeat which beats; asked if there are any."""
        asked = frozenset(instants)
        if not asked:
            return asked
        return alive(self.storage, asked, self.heartbeat, self.clock.now_ms())

    def new_heartbeat(self, instant: str, inheritable: bool) -> Heartbeat:
        """The heartbeat of a write, not yet started; `inheritable` if others may go on with it."""
        return Heartbeat(self.storage, instant, self.heartbeat, self.clock, inheritable=inheritable)

    @property
    def beats(self) -> bool:
        """Whether others decide by a heartbeat that this writer is alive."""
        lazy = self.transaction.failed_writes is FailedWrites.LAZY
        return lazy or self.transaction.several_writers

    def plans(self, config: TableConfig) -> PlanSettings:
        """What becomes of plans: what options say, else what the table does."""
        return plan_settings(config, self.plan_options)

    def guards(self, config: TableConfig) -> bool:
        """Whether executions of plans show that they live, and leave the living alone."""
        guard = self.plans(config).guard
        return self.beats if guard is None else guard
