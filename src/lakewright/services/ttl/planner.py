"""Which partitions are expired, by which policy, and which of them go now. Pure."""

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

_FEW = 5


class ReferenceSource(StrEnum):
    """Where the time that the age of a partition is counted from was found."""

    LINE = "lastUpdateTime"
    TIMELINE = "timeline"
    HISTORY = "history"
    FILES = "file names"
    CREATED = "commitTime"
    PATH = "path"


@dataclass(frozen=True, slots=True, order=True)
class TimeReference:
    """A time, in 17 digits, that an age is counted from."""

    at: str
    source: ReferenceSource


@dataclass(frozen=True, slots=True)
class PartitionTimes:
    """What is known of the age of one partition.

    `bound` is the latest time at which history may have recorded a write of rows; empty if it
    cannot know more. `path` is what the path tells of the time of its rows.
    """

    updated: TimeReference | None = None
    created: TimeReference | None = None
    bound: str = ""
    path: TimeReference | None = None

    def since(self, keep: RetentionBasis) -> TimeReference | None:
        """What an age is counted from, if anything is known."""
        if keep is RetentionBasis.BY_EVENT_TIME:
            return self.path
        return self.created if keep is RetentionBasis.BY_CREATION_TIME else self.updated


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlDecision:
    """What becomes of one partition, and why.

    `policy` has decided, or is None if none is for this partition. The age is counted from
    `reference`, found in `source`. Times have 17 digits, in the table's zone. `blocked_by` tells
    who must be done with the partition first, and `files_gone_at` when its files are deleted, which
    stay for readers of older states.

    By a policy of level RECORD no partition expires: `rows_before` is the time before which its
    rows do.
    """

    partition: str
    policy: TtlPolicy | None = None
    reference: str | None = None
    source: ReferenceSource | None = None
    expires_at: str | None = None
    expired: bool = False
    blocked_by: str = ""
    files_gone_at: str = ""
    rows_before: str | None = None

    @property
    def affects_partition(self) -> bool:
        """Whether the partition goes, or rows of it may go."""
        return self.expired or self.rows_before is not None

    @property
    def is_due(self) -> bool:
        """Whether the partition can go now."""
        return self.expired and not self.blocked_by


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPlan:
    """The partitions that go, oldest first, and the verdicts on all.

    Of the partitions in `records` rows go; which of them have such rows, their files must tell.
    `settings` were in force, and `seen` are the completed writes that were looked at: whoever
    carries the plan out makes sure that neither has changed.
    """

    operations: tuple[TtlDecision, ...]
    records: tuple[TtlDecision, ...] = ()
    decisions: tuple[TtlDecision, ...] = field(default=(), repr=False)
    missing_reasons: Mapping[str, str] = field(default_factory=dict, hash=False)
    settings: TtlSettings = field(default_factory=TtlSettings, repr=False)
    seen: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The paths of those that go."""
        return tuple(verdict.partition for verdict in self.operations)

    @property
    def missing_partitions(self) -> tuple[str, ...]:
        """The expired ones that stay for now."""
        return tuple(sorted(self.missing_reasons))


def evaluate_partition(
    partition: str,
    rules: Sequence[ActivePolicy],
    known: PartitionTimes,
    *,
    by: ConflictRule,
    now: datetime,
) -> TtlDecision:
    """Judge a partition by the rules that cover it.

    The rules are put in the order of the moments at which the partition expires by them, as how
    long a month is depends on when it begins: the last first for MAX_TTL, the first for MIN_TTL.
    The one in front decides. What no time is known of never expires.
    """
    if not rules:
        return TtlDecision(partition=partition)
    judged = [_judged(rule, known) for rule in rules]
    pick = max if by is ConflictRule.MAX_TTL else min
    expires_at, reference, policy = pick(judged, key=_order)
    if policy.level is TtlLevel.RECORD:
        before = format_time(policy.cutoff(now))
        return TtlDecision(partition=partition, policy=policy, rows_before=before)
    if reference is None:
        return TtlDecision(partition=partition, policy=policy)
    return TtlDecision(
        partition=partition,
        policy=policy,
        reference=reference.at,
        source=reference.source,
        expires_at=_shown(expires_at),
        expired=now > expires_at,
    )


def _judged(
    rule: ActivePolicy, known: PartitionTimes
) -> tuple[datetime, TimeReference | None, TtlPolicy]:
    reference = known.since(rule.basis)
    since = moment(reference.at) if reference is not None else None
    if since is None:
        return NEVER, None, rule.policy
    return rule.policy.expiry(since), reference, rule.policy


def _order(judged: tuple[datetime, TimeReference | None, TtlPolicy]) -> tuple[datetime, float, str]:
    expires_at, _, policy = judged
    return expires_at, policy.usual_days, policy.spec


@lru_cache(maxsize=4096)
def moment(time: str) -> datetime | None:
    """The time that an instant time shows on the wall, see `core.ttl`; None if it is no date."""
    try:
        return parse_time(time)
    except (InvalidError, OverflowError):
        return None


_shown = lru_cache(maxsize=4096)(format_time)


def is_doubtful(verdict: TtlDecision, known: PartitionTimes, start: str) -> bool:
    """Whether history may know of a later write than the verdict goes by.

    It need not be asked about what lives on, as it only makes partitions live longer. `start` is
    where the active timeline begins.
    """
    if verdict.policy is None or verdict.rows_before is not None:
        return False
    if verdict.reference is None:
        return known.updated is None
    if not verdict.expired or verdict.source is ReferenceSource.PATH:
        return False
    if verdict.source is ReferenceSource.CREATED:
        return known.created is not None and known.created.at < start
    return known.bound > verdict.reference


def plan_ttl(
    verdicts: Sequence[TtlDecision], settings: TtlSettings, seen: frozenset[str] = frozenset()
) -> TtlPlan | Skip:
    """Take the expired partitions that nobody holds, oldest first, as many as one run may."""
    expired, most = [v for v in verdicts if v.affects_partition], settings.most_partitions
    left = {v.partition: f"held by {v.blocked_by}" for v in expired if v.blocked_by}
    if len(left) == len(expired):
        return Skip(_why_none(verdicts, left))
    due = sorted((v for v in expired if v.is_due), key=_age)
    for verdict in due[most:]:
        left[verdict.partition] = f"beyond the {most} partitions of one run"
    return TtlPlan(
        operations=tuple(due[:most]),
        records=tuple(v for v in expired if v.rows_before is not None and not v.blocked_by),
        decisions=tuple(verdicts),
        missing_reasons=left,
        settings=settings,
        seen=seen,
    )


def _age(verdict: TtlDecision) -> tuple[str, str]:
    return verdict.reference or "", verdict.partition


def _why_none(verdicts: Iterable[TtlDecision], left: Mapping[str, str]) -> str:
    if left:
        named = ", ".join(f"{partition} is {why}" for partition, why in sorted(left.items())[:_FEW])
        more = f", and {len(left) - _FEW} more" if len(left) > _FEW else ""
        return f"all that is expired is in use: {named}{more}"
    ahead = [v.expires_at for v in verdicts if v.expires_at is not None]
    if not ahead:
        return "no policy is for a partition that the table has"
    return f"nothing is expired, the next will be at {min(ahead)}"
