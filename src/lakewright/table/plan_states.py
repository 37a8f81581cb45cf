"""Plans that wait to be executed: how old, whether somebody is at it, and when they go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from lakewright.clock import zone_of
from lakewright.core.instant import Instant, State, format_time
from lakewright.table.cancelling import age_ms
from lakewright.table.heartbeat import last_beats
from lakewright.table.settings import FailedWrites
from lakewright.table.snapshot import Snapshot
from lakewright.table.transaction import Writer

_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class PlanState:
    """A pending plan; `rolled_back_at` is from when on a clean takes it back, None if never.

    `heartbeat_age_ms` is how long ago who executes it has last shown to be alive, None if nobody
    has.
    """

    instant: Instant
    age_ms: int
    heartbeat_age_ms: int | None
    cancellable: bool
    rolled_back_at: str | None
    operations: int
    partitions: tuple[str, ...]


def load_plan_states(writer: Writer, snapshot: Snapshot) -> tuple[PlanState, ...]:
    """The plans that wait, oldest first, as a writer with these settings sees them."""
    now_ms = writer.clock.now_ms()
    plans = snapshot.pending_plans()
    beats = last_beats(writer.storage) if plans else {}
    found = []
    for instant, plan in plans:
        planned_at = plan.planned_at(instant.requested_at)
        age = age_ms(snapshot, planned_at, now_ms)
        beat = beats.get(instant.requested_at)
        going_ms = None
        if plan.cancellable:
            going_ms = _gone_at(writer, snapshot, instant, now_ms - age, beat)
        zone = zone_of(snapshot.config.timeline_zone)
        found.append(
            PlanState(
                instant,
                age,
                None if beat is None else now_ms - beat,
                plan.cancellable,
                None if going_ms is None else format_time(_moment(going_ms), zone),
                len(plan.operations),
                plan.partitions,
            )
        )
    return tuple(found)


def _gone_at(
    writer: Writer, snapshot: Snapshot, instant: Instant, planned_ms: int, beat: int | None
) -> int | None:
    """From when on a cancellable plan is taken back, if it stays as it is."""
    policy = writer.transaction.failed_writes
    if policy is FailedWrites.NEVER:
        return None
    silent_ms = 0 if beat is None else beat + writer.heartbeat.expires_after_ms
    if instant.state is State.INFLIGHT:
        return max(silent_ms, planned_ms)
    if policy is not FailedWrites.LAZY:
        return None
    delay_ms = writer.plans(snapshot.config).rollback_delay_minutes * _MINUTE_MS
    return max(silent_ms, planned_ms + delay_ms)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
