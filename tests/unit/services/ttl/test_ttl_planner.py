"""Verdicts on partitions: which policy decides, when they expire, and which of them go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Action, Instant, parse_time
from lakewright.model.plans import Skip
from lakewright.model.ttl import (
    ActivePolicy,
    ConflictRule,
    RetentionBasis,
    TtlPolicy,
    TtlSettings,
    TtlUnit,
)
from lakewright.services.ttl.partition_age import CommittedWrite, writes_of
from lakewright.services.ttl.planner import (
    PartitionTimes,
    ReferenceSource,
    TimeReference,
    TtlDecision,
    TtlPlan,
    evaluate_partition,
    is_doubtful,
    plan_ttl,
)

P1 = TtlPolicy(spec="*", units=TtlUnit.YEARS, value=1)
P2 = TtlPolicy(spec="country=US/*", units=TtlUnit.MONTHS, value=2)
JANUARY = "20260101000000000"
LATE = "20260601000000000"


def judged(
    partition: str, policies: Sequence[TtlPolicy], by: str, *, since: str = JANUARY, now: str = LATE
) -> TtlDecision:
    rules = [ActivePolicy(policy) for policy in policies if policy.matches(partition)]
    times = PartitionTimes(updated=TimeReference(since, ReferenceSource.LINE))
    return evaluate_partition(partition, rules, times, by=ConflictRule(by), now=parse_time(now))


WHICH: dict[str, tuple[str, Sequence[TtlPolicy], TtlPolicy | None, TtlPolicy | None]] = {
    "two policies match": ("country=US/state=CA", (P1, P2), P1, P2),
    "a name that only begins alike is another": ("country=USA/state=X", (P1, P2), P1, P1),
    "the star is for all others": ("country=DE/state=BY", (P1, P2), P1, P1),
    "the order in which they were saved does not count": ("country=US/state=CA", (P2, P1), P1, P2),
    "none is for it: it stays for ever": ("country=DE", (P2,), None, None),
}


@pytest.mark.parametrize(
    ("partition", "policies", "longest", "shortest"), WHICH.values(), ids=WHICH
)
def test_one_policy_decides(
    partition: str,
    policies: Sequence[TtlPolicy],
    longest: TtlPolicy | None,
    shortest: TtlPolicy | None,
) -> None:
    assert judged(partition, policies, "MAX_TTL").policy == longest
    verdict = judged(partition, policies, "MIN_TTL")
    assert verdict.policy == shortest
    assert verdict.expired == (shortest == P2)


THIRTY = TtlPolicy(spec="*", units=TtlUnit.DAYS, value=30)
MONTH = TtlPolicy(spec="**", units=TtlUnit.MONTHS, value=1)
LENGTHS: dict[str, tuple[str, TtlPolicy, TtlPolicy]] = {
    "in February 30 days are longer than a month": ("20260210000000000", THIRTY, MONTH),
    "in March a month is longer": ("20260310000000000", MONTH, THIRTY),
}


@pytest.mark.parametrize(("since", "longer", "shorter"), LENGTHS.values(), ids=list(LENGTHS))
def test_lengths_are_compared_on_the_calendar(
    since: str, longer: TtlPolicy, shorter: TtlPolicy
) -> None:
    for listed in ((THIRTY, MONTH), (MONTH, THIRTY)):
        assert judged("p", listed, "MAX_TTL", since=since).policy == longer
        assert judged("p", listed, "MIN_TTL", since=since).policy == shorter


EDGES: dict[str, tuple[TtlPolicy, str, str, bool]] = {
    "at the very moment it is not expired": (THIRTY, JANUARY, "20260131000000000", False),
    "a millisecond later it is": (THIRTY, JANUARY, "20260131000000001", True),
    "the end of January plus a month is the end of February": (
        MONTH,
        "20260131100000000",
        "20260228100000000",
        False,
    ),
    "and not the first days of March": (MONTH, "20260131100000000", "20260228100000001", True),
    "a leap day has its year on the 28th": (
        P1,
        "20240229120000000",
        "20250228120000001",
        True,
    ),
    "14 digits mean the end of their second": (
        THIRTY,
        "20260101000000",
        "20260131000000999",
        False,
    ),
    "what was written in the future stays": (THIRTY, "20270101000000000", LATE, False),
    "the epoch is long ago": (
        TtlPolicy(spec="*", units=TtlUnit.DAYS, value=10),
        "19700101000000000",
        "19700111000000001",
        True,
    ),
}


@pytest.mark.parametrize(("policy", "since", "now", "expired"), EDGES.values(), ids=list(EDGES))
def test_a_partition_expires_after_its_moment(
    policy: TtlPolicy, since: str, now: str, expired: bool
) -> None:
    assert judged("p", [policy], "MAX_TTL", since=since, now=now).expired is expired


# What the digits of a LOCAL table show when clocks are set forward (2026-03-29 02:00 becomes 03:00)
# and back (2026-10-25 03:00 becomes 02:00).
DST: dict[str, tuple[str, str, bool]] = {
    "a day that has 23 hours is a day": ("20260328120000000", "20260329120000000", False),
    "and over after it": ("20260328120000000", "20260329120000001", True),
    "a moment that is skipped is over when clocks go on": (
        "20260328023000000",
        "20260329030000000",
        True,
    ),
    "a day that has 25 hours is a day": ("20261024120000000", "20261025115959999", False),
    "an hour that comes twice": ("20261024023000000", "20261025023000000", False),
}


@pytest.mark.parametrize(("since", "now", "expired"), DST.values(), ids=list(DST))
def test_days_are_counted_by_the_clock_on_the_wall(since: str, now: str, expired: bool) -> None:
    day = TtlPolicy(spec="*", units=TtlUnit.DAYS, value=1)
    assert judged("p", [day], "MIN_TTL", since=since, now=now).expired is expired


def test_days_are_no_milliseconds_in_32_bits() -> None:
    for days in (1, 24, 25, 30, 50, 60, 100, 365, 400, 1095):
        policy = TtlPolicy(spec="*", units=TtlUnit.DAYS, value=days)
        verdict = judged("p", [policy], "MAX_TTL", since="20200101000000000")
        assert verdict.expires_at is not None
        lived = parse_time(verdict.expires_at) - parse_time("20200101000000000")
        assert (lived.days, lived.seconds) == (days, 0)


UNKNOWN: dict[str, PartitionTimes] = {
    "no time is known": PartitionTimes(),
    "the time is no date": PartitionTimes(
        updated=TimeReference("99999999999999999", ReferenceSource.TIMELINE)
    ),
}


@pytest.mark.parametrize("times", UNKNOWN.values(), ids=list(UNKNOWN))
def test_a_partition_without_a_known_time_never_expires(times: PartitionTimes) -> None:
    for by in ConflictRule:
        verdict = evaluate_partition(
            "p", [ActivePolicy(THIRTY)], times, by=by, now=parse_time(LATE)
        )
        assert (verdict.policy, verdict.expires_at, verdict.expired) == (THIRTY, None, False)


def test_each_rule_counts_from_its_own_time() -> None:
    times = PartitionTimes(
        TimeReference(LATE, ReferenceSource.LINE), TimeReference(JANUARY, ReferenceSource.CREATED)
    )
    rules = [ActivePolicy(THIRTY, RetentionBasis.BY_CREATION_TIME), ActivePolicy(THIRTY)]
    now = parse_time(LATE)
    assert (
        evaluate_partition("p", rules, times, by=ConflictRule.MIN_TTL, now=now).source
        is ReferenceSource.CREATED
    )
    assert (
        evaluate_partition("p", rules, times, by=ConflictRule.MAX_TTL, now=now).source
        is ReferenceSource.LINE
    )


@dataclass(frozen=True)
class Doubt:
    times: PartitionTimes
    expected: bool
    keep: RetentionBasis = RetentionBasis.BY_TIME
    now: str = LATE


OLD = TimeReference(JANUARY, ReferenceSource.LINE)
DOUBTS = {
    "the line is as new as any file": Doubt(PartitionTimes(OLD, bound=JANUARY), False),
    "all files are of the active timeline": Doubt(PartitionTimes(OLD), False),
    "a file is newer than the line": Doubt(PartitionTimes(OLD, bound=LATE), True),
    "but the partition lives on": Doubt(
        PartitionTimes(OLD, bound=LATE), False, now="20260102000000000"
    ),
    "no time is known": Doubt(PartitionTimes(bound=LATE), True),
    "a time that is no date is not looked up": Doubt(
        PartitionTimes(TimeReference("99999999999999999", ReferenceSource.TIMELINE)), False
    ),
    "it may have been deleted and made anew": Doubt(
        PartitionTimes(OLD, TimeReference(JANUARY, ReferenceSource.CREATED)),
        True,
        RetentionBasis.BY_CREATION_TIME,
    ),
    "but not if it was made on the active timeline": Doubt(
        PartitionTimes(OLD, TimeReference("20260301000000000", ReferenceSource.CREATED)),
        False,
        RetentionBasis.BY_CREATION_TIME,
    ),
}


@pytest.mark.parametrize("case", DOUBTS.values(), ids=list(DOUBTS))
def test_history_is_read_only_in_doubt(case: Doubt) -> None:
    rules, now = [ActivePolicy(THIRTY, case.keep)], parse_time(case.now)
    verdict = evaluate_partition("p", rules, case.times, by=ConflictRule.MAX_TTL, now=now)
    assert is_doubtful(verdict, case.times, "20260201000000000") is case.expected


def test_no_doubt_without_a_policy() -> None:
    assert not is_doubtful(TtlDecision(partition="p"), PartitionTimes(), "")


def expired(partition: str, reference: str, blocked_by: str = "") -> TtlDecision:
    return TtlDecision(
        partition=partition,
        policy=THIRTY,
        reference=reference,
        source=ReferenceSource.TIMELINE,
        expires_at=LATE,
        expired=True,
        blocked_by=blocked_by,
    )


def test_the_oldest_go_first_and_not_more_than_one_run_takes() -> None:
    verdicts = [expired("c", "3"), expired("a", "1"), expired("d", "1"), expired("b", "2")]
    plan = plan_ttl(verdicts, TtlSettings(most_partitions=3))
    assert isinstance(plan, TtlPlan)
    assert plan.partitions == ("a", "d", "b")
    assert plan.missing_reasons == {"c": "beyond the 3 partitions of one run"}


def test_a_partition_in_use_is_named_and_the_others_go() -> None:
    verdicts = [expired("a", "1", "compaction 7"), expired("b", "2"), TtlDecision(partition="c")]
    plan = plan_ttl(verdicts, TtlSettings())
    assert isinstance(plan, TtlPlan)
    assert plan.partitions == ("b",)
    assert plan.missing_reasons == {"a": "held by compaction 7"}
    assert plan.missing_partitions == ("a",)


SKIPS: dict[str, tuple[list[TtlDecision], str]] = {
    "no partition has a policy": (
        [TtlDecision(partition="a")],
        "no policy is for a partition that the table has",
    ),
    "nothing is expired": (
        [TtlDecision(partition="a", policy=THIRTY, expires_at=LATE)],
        f"nothing is expired, the next will be at {LATE}",
    ),
    "all is in use": (
        [expired("a", "1", "compaction 7"), expired("b", "1", "clustering 8")],
        "all that is expired is in use: a is held by compaction 7, b is held by clustering 8",
    ),
    "there is nothing": ([], "no policy is for a partition that the table has"),
}


@pytest.mark.parametrize(("verdicts", "reason"), SKIPS.values(), ids=list(SKIPS))
def test_nothing_expires_without_a_reason(verdicts: list[TtlDecision], reason: str) -> None:
    assert plan_ttl(verdicts, TtlSettings()) == Skip(reason)


def recorded(
    at: int, operation: str, *partitions: str, replaced_partition: str = ""
) -> CommittedWrite:
    stats = {partition: (WriteStat(file_id="f"),) for partition in partitions}
    replaced = {replaced_partition: ("f",)} if replaced_partition else {}
    commit = CommitMetadata(stats=stats, operation=operation, replaced=replaced)
    time = f"202601010000{at:05d}"
    return CommittedWrite(
        Instant(time, Action.COMMIT, completed_at=time), commit, ReferenceSource.TIMELINE
    )


def test_the_last_write_counts_in_whatever_order_they_are_given() -> None:
    listed = [
        recorded(2, "UPSERT", "a", "b"),
        recorded(1, "INSERT", "a"),
        recorded(3, "DELETE", "b"),
    ]
    for order in (listed, listed[::-1]):
        updated = writes_of(order).updated
        assert {path: write.at[-1] for path, write in updated.items()} == {"a": "2", "b": "3"}


def test_a_partition_that_was_deleted_is_born_again() -> None:
    listed = [
        recorded(1, "INSERT", "a", "b"),
        recorded(2, "DELETE_PARTITION", replaced_partition="a"),
        recorded(3, "INSERT", "a"),
        recorded(4, "UPSERT", "a"),
    ]
    assert {path: write.at[-1] for path, write in writes_of(listed).born.items()} == {"a": "3"}
    assert writes_of(listed[:2]).born["a"].at[-1] == "2"


def test_a_partition_that_an_overwrite_of_the_table_has_emptied_is_born_again() -> None:
    listed = [
        recorded(1, "INSERT", "a", "b"),
        recorded(2, "INSERT_OVERWRITE_TABLE", "b", replaced_partition="a"),
        recorded(3, "INSERT_OVERWRITE", "b", replaced_partition="b"),
        recorded(4, "UPSERT", "a"),
    ]
    assert {path: write.at[-1] for path, write in writes_of(listed).born.items()} == {"a": "4"}
