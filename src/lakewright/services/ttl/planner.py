"""Decides which partitions are expired, by which policy, and which of them to delete. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache

from lakewright.errors import InvalidError
from lakewright.model.instant import format_time, parse_time
from lakewright.model.plans import Skip
from lakewright.model.ttl import (
    NEVER,
    ActivePolicy,
    ConflictRule,
    RetentionBasis,
    TtlLevel,
    TtlPolicy,
    TtlSettings,
)

_MAX_LISTED = 5


class ReferenceSource(StrEnum):
    """The source of the time from which the age of a partition is counted."""

    LINE = "lastUpdateTime"
    TIMELINE = "timeline"
    HISTORY = "history"
    FILES = "file names"
    CREATED = "commitTime"
    PATH = "path"


@dataclass(frozen=True, slots=True, order=True)
class TimeReference:
    """An instant time of 17 digits from which an age is counted."""

    at: str
    source: ReferenceSource


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """The times of one partition, as far as they are known.

    `updated` is the last write of rows, `created` the first one, `path` the time that the partition
    path names. `bound` is the latest time of a write that the archived timeline may have; empty if
    it has none.
    """

    updated: TimeReference | None = None
    created: TimeReference | None = None
    bound: str = ""
    path: TimeReference | None = None

    def since(self, keep: RetentionBasis) -> TimeReference | None:
        """The time from which an age is counted, if it is known."""
        if keep is RetentionBasis.BY_EVENT_TIME:
            return self.path
        return self.created if keep is RetentionBasis.BY_CREATION_TIME else self.updated


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlDecision:
    """Whether one partition is expired, and why.

    `policy` is the policy that decides, None if none covers the partition. The age is counted from
    `reference`, which comes from `source`. Times have 17 digits, in the table's time zone.
    `blocked_by` is the pending operation that must complete first, and `files_deleted_at` says when
    a clean deletes the files, which stay for queries on older snapshots.

    With a policy of level RECORD no partition expires: `rows_before` is the time before which its
    rows do.
    """

    partition: str
    policy: TtlPolicy | None = None
    reference: str | None = None
    source: ReferenceSource | None = None
    expires_at: str | None = None
    expired: bool = False
    blocked_by: str = ""
    files_deleted_at: str = ""
    rows_before: str | None = None

    @property
    def affects_partition(self) -> bool:
        """Whether the partition, or rows of it, are to be deleted."""
        return self.expired or self.rows_before is not None

    @property
    def is_due(self) -> bool:
        """Whether the partition can be deleted now."""
        return self.expired and not self.blocked_by


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPlan:
    """The partitions to delete, oldest first, and the decisions on all partitions.

    `records` are the partitions of which old rows are to be deleted; only reading their files shows
    which of them have such rows. `settings` are the settings used for planning, and
    `considered_writes` the completed writes that were considered: the execution checks that neither
    has changed.
    """

    operations: tuple[TtlDecision, ...]
    records: tuple[TtlDecision, ...] = ()
    decisions: tuple[TtlDecision, ...] = field(default=(), repr=False)
    missing_reasons: Mapping[str, str] = field(default_factory=dict, hash=False)
    settings: TtlSettings = field(default_factory=TtlSettings, repr=False)
    considered_writes: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The paths of the partitions to delete."""
        return tuple(decision.partition for decision in self.operations)

    @property
    def missing_partitions(self) -> tuple[str, ...]:
        """The expired partitions that this plan does not delete."""
        return tuple(sorted(self.missing_reasons))


def evaluate_partition(
    partition: str,
    rules: Sequence[ActivePolicy],
    times: PartitionTimes,
    *,
    by: ConflictRule,
    now: datetime,
) -> TtlDecision:
    """Decide on a partition by the policies that cover it.

    With MAX_TTL the policy decides by which the partition expires last, with MIN_TTL the one by
    which it expires first. The expiry times are compared, not the durations, as the length of a
    month depends on its start. A partition whose time is not known never expires.
    """
    if not rules:
        return TtlDecision(partition=partition)
    expiries = [_expiry(active, times) for active in rules]
    pick = max if by is ConflictRule.MAX_TTL else min
    expires_at, reference, policy = pick(expiries, key=_order)
    if policy.level is TtlLevel.RECORD:
        cutoff = format_time(policy.cutoff(now))
        return TtlDecision(partition=partition, policy=policy, rows_before=cutoff)
    if reference is None:
        return TtlDecision(partition=partition, policy=policy)
    return TtlDecision(
        partition=partition,
        policy=policy,
        reference=reference.at,
        source=reference.source,
        expires_at=_formatted(expires_at),
        expired=now > expires_at,
    )


def _expiry(
    active: ActivePolicy, times: PartitionTimes
) -> tuple[datetime, TimeReference | None, TtlPolicy]:
    reference = times.since(active.basis)
    since = local_time(reference.at) if reference is not None else None
    if since is None:
        return NEVER, None, active.policy
    return active.policy.expiry(since), reference, active.policy


def _order(expiry: tuple[datetime, TimeReference | None, TtlPolicy]) -> tuple[datetime, float, str]:
    expires_at, _, policy = expiry
    return expires_at, policy.usual_days, policy.spec


@lru_cache(maxsize=4096)
def local_time(time: str) -> datetime | None:
    """The local time of an instant time, see `model.ttl`; None if it is no valid date."""
    try:
        return parse_time(time)
    except (InvalidError, OverflowError):
        return None


_formatted = lru_cache(maxsize=4096)(format_time)


def is_doubtful(decision: TtlDecision, times: PartitionTimes, start: str) -> bool:
    """Whether the archived timeline may have a later write than the one that the decision is from.

    A partition that is not expired is never doubtful, as a later write could only make it expire
    later. `start` is the start of the active timeline.
    """
    if decision.policy is None or decision.rows_before is not None:
        return False
    if decision.reference is None:
        return times.updated is None
    if not decision.expired or decision.source is ReferenceSource.PATH:
        return False
    if decision.source is ReferenceSource.CREATED:
        return times.created is not None and times.created.at < start
    return times.bound > decision.reference


def plan_ttl(
    ttl_decisions: Sequence[TtlDecision],
    settings: TtlSettings,
    completed_writes: frozenset[str] = frozenset(),
) -> TtlPlan | Skip:
    """Plan to delete the expired partitions that are not blocked, oldest first, up to the limit."""
    expired, limit = [d for d in ttl_decisions if d.affects_partition], settings.most_partitions
    missing = {d.partition: f"held by {d.blocked_by}" for d in expired if d.blocked_by}
    if len(missing) == len(expired):
        return Skip(_why_none(ttl_decisions, missing), skipped=dict(sorted(missing.items())))
    deletable = sorted((d for d in expired if d.is_due), key=_age)
    for decision in deletable[limit:]:
        missing[decision.partition] = beyond_limit(limit)
    return TtlPlan(
        operations=tuple(deletable[:limit]),
        records=tuple(d for d in expired if d.rows_before is not None and not d.blocked_by),
        decisions=tuple(ttl_decisions),
        missing_reasons=dict(sorted(missing.items())),
        settings=settings,
        considered_writes=completed_writes,
    )


def beyond_limit(limit: int) -> str:
    """Why a run leaves an expired partition for the next one."""
    return f"beyond the {limit} partitions of one run"


def _age(decision: TtlDecision) -> tuple[str, str]:
    return decision.reference or "", decision.partition


def _why_none(decisions: Iterable[TtlDecision], blocked: Mapping[str, str]) -> str:
    if blocked:
        listed = ", ".join(
            f"{partition} is {reason}"
            for partition, reason in sorted(blocked.items())[:_MAX_LISTED]
        )
        more = f", and {len(blocked) - _MAX_LISTED} more" if len(blocked) > _MAX_LISTED else ""
        return f"all that is expired is in use: {listed}{more}"
    expiries = [d.expires_at for d in decisions if d.expires_at is not None]
    if not expiries:
        return "no policy is for a partition that the table has"
    return f"nothing is expired, the next will be at {min(expiries)}"
