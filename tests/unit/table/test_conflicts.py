"""Which writes conflict: the line with the open end that is marked `mine` is about to complete.

Groups are written `f1@` for a new base file, `f1+` for a log file, `-f1` for a replaced group;
`p2/f1` lies in another partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import BaseFile, LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    CompactionOperation,
    CompactionPlan,
)
from lakewright.model.timeline import Timeline
from lakewright.table.conflicts import (
    ConcurrentOperation,
    Conflict,
    Group,
    OperationKind,
    candidate_instants,
    find_conflicts,
    operation_of_clustering_plan,
    operation_of_commit,
    operation_of_compaction_plan,
    with_marker_files,
)
from lakewright.testing.timeline_drawing import at, draw

BUCKET_A = "00000001-aaaa-4aaa-8aaa-aaaaaaaaaaaa-0"
BUCKET_B = "00000001-bbbb-4bbb-8bbb-bbbbbbbbbbbb-0"


@dataclass(frozen=True)
class Case:
    picture: str
    mine: tuple[int, str]
    others: dict[int, str] = field(default_factory=dict)
    clash: int | None = None
    operation: str = "UPSERT"
    other_operation: str = "UPSERT"
    non_blocking: bool = False
    cancellable: tuple[int, ...] = ()
    announced: tuple[int, ...] = ()


CASES = {
    "two writes of different groups get along": Case(
        """
        deltacommit |---
        deltacommit  |-|
        """,
        (0, "f1+"),
        {1: "f2+"},
    ),
    "the same file id in another partition is another group": Case(
        """
        deltacommit |---
        deltacommit  |-|
        """,
        (0, "f1+"),
        {1: "p2/f1+"},
    ),
    "a write that began later and completed first wins": Case(
        """
        deltacommit |---
        deltacommit  |-|
        """,
        (0, "f1+ f2+"),
        {1: "f2+ f3+"},
        clash=1,
    ),
    "a write that was pending when mine began and completed first wins": Case(
        """
        commit |----|
        commit  |----
        """,
        (1, "f1@"),
        {0: "f1@"},
        clash=0,
    ),
    "a write that completed before mine began is no conflict": Case(
        """
        commit |-|
        commit    |--
        """,
        (3, "f1@"),
        {0: "f1@"},
    ),
    "of two pending writes the first to complete wins": Case(
        """
        commit |----
        commit  |---
        """,
        (0, "f1@"),
        {1: "f1@"},
    ),
    "two inserts into new groups get along": Case(
        """
        commit |----
        commit  |-|
        """,
        (0, "f1@"),
        {1: "f2@"},
    ),
    "an overwrite leaves what was inserted concurrently": Case(
        """
        replacecommit |----
        commit         |-|
        """,
        (0, "-f1 f2@"),
        {1: "f3@"},
        operation="INSERT_OVERWRITE",
    ),
    "an overwrite loses against an update of what it replaces": Case(
        """
        replacecommit |----
        commit         |-|
        """,
        (0, "-f1 f2@"),
        {1: "f1@"},
        operation="INSERT_OVERWRITE",
        clash=1,
    ),
    "an update loses against an overwrite that replaced its group": Case(
        """
        commit        |----
        replacecommit  |-|
        """,
        (0, "f1@"),
        {1: "-f1 f2@"},
        clash=1,
    ),
    "a group that two replace commits take out goes once": Case(
        """
        replacecommit |----
        replacecommit  |-|
        """,
        (0, "-f1"),
        {1: "-f1"},
        clash=1,
    ),
    "a pending clustering keeps its groups from before mine": Case(
        """
        clustering  |---
        deltacommit  |--
        """,
        (1, "f1+"),
        {0: "-f1"},
        clash=0,
    ),
    "a clustering that is only requested keeps its groups too": Case(
        """
        deltacommit |---
        clustering   |
        """,
        (0, "f1+"),
        {1: "-f1"},
        clash=1,
    ),
    "a pending clustering of other groups does no harm": Case(
        """
        clustering  |---
        deltacommit  |--
        """,
        (1, "f1+"),
        {0: "-f2"},
    ),
    "a pending overwrite that began later goes first": Case(
        """
        commit        |---
        replacecommit  |--
        """,
        (0, "f1@"),
        {1: "f1@"},
        clash=1,
    ),
    "a pending overwrite that began earlier has to look out itself": Case(
        """
        replacecommit |---
        commit         |--
        """,
        (1, "f1@"),
        {0: "f1@"},
    ),
    "a clustering loses against a write into its groups": Case(
        """
        clustering  |----
        deltacommit  |-|
        """,
        (0, "-f1 f2@"),
        {1: "f1+"},
        operation="CLUSTER",
        clash=1,
    ),
    "a log file follows onto the base of a compaction that completed": Case(
        """
        deltacommit |----
        compaction   |-|
        """,
        (0, "f1+"),
        {1: "f1@"},
        other_operation="COMPACT",
    ),
    "a base file would be hidden under that of a later compaction": Case(
        """
        deltacommit |----
        compaction   |-|
        """,
        (0, "f1@"),
        {1: "f1@"},
        other_operation="COMPACT",
        clash=1,
    ),
    "a base file would be hidden under that of a later compaction that is still pending": Case(
        """
        deltacommit |----
        compaction   |
        """,
        (0, "f1@"),
        {1: "f1@"},
        other_operation="COMPACT",
        clash=1,
    ),
    "a base file stands above that of an earlier compaction": Case(
        """
        compaction  |---|
        deltacommit  |---
        """,
        (1, "f1@"),
        {0: "f1@"},
        other_operation="COMPACT",
    ),
    "a compaction is compatible with concurrent log files": Case(
        """
        compaction  |----
        deltacommit  |-|
        """,
        (0, "f1@"),
        {1: "f1+"},
        operation="COMPACT",
    ),
    "a compaction would hide a base file of a write that began before": Case(
        """
        deltacommit |---|
        compaction   |----
        """,
        (1, "f1@"),
        {0: "f1@"},
        operation="COMPACT",
        clash=0,
    ),
    "a compaction of a group that was replaced concurrently does no harm": Case(
        """
        compaction    |----
        replacecommit  |-|
        """,
        (0, "f1@"),
        {1: "-f1 f2@"},
        operation="COMPACT",
    ),
    "a log compaction is compatible with concurrent log files": Case(
        """
        logcompaction |----
        deltacommit    |-|
        """,
        (0, "f1+"),
        {1: "f1+"},
        operation="LOG_COMPACT",
    ),
    "a log compaction must not put old versions onto a new base file": Case(
        """
        logcompaction |----
        deltacommit    |-|
        """,
        (0, "f1+"),
        {1: "f1@"},
        operation="LOG_COMPACT",
        clash=1,
    ),
    "a log compaction must not put old versions onto a compacted base file": Case(
        """
        logcompaction |----
        compaction     |-|
        """,
        (0, "f1+"),
        {1: "f1@"},
        operation="LOG_COMPACT",
        other_operation="COMPACT",
        clash=1,
    ),
    "one bucket that two writers create under two names is a clash": Case(
        """
        deltacommit |----
        deltacommit  |-|
        """,
        (0, f"{BUCKET_A}+"),
        {1: f"{BUCKET_B}+"},
        clash=1,
    ),
    "one bucket number in two partitions is two buckets": Case(
        """
        deltacommit |----
        deltacommit  |-|
        """,
        (0, f"{BUCKET_A}+"),
        {1: f"p2/{BUCKET_B}+"},
    ),
    "log files of one bucket do not block each other": Case(
        """
        deltacommit |----
        deltacommit  |-|
        """,
        (0, f"{BUCKET_A}+"),
        {1: f"{BUCKET_A}+"},
        non_blocking=True,
    ),
    "a log file does not block the first base file of its bucket": Case(
        """
        deltacommit |----
        deltacommit  |-|
        """,
        (0, f"{BUCKET_A}+"),
        {1: f"{BUCKET_A}@"},
        non_blocking=True,
    ),
    "of two base files of one bucket one would be hidden": Case(
        """
        deltacommit |----
        deltacommit  |-|
        """,
        (0, f"{BUCKET_A}@"),
        {1: f"{BUCKET_A}@"},
        non_blocking=True,
        clash=1,
    ),
    "groups that are no buckets block each other in every mode": Case(
        """
        deltacommit |----
        deltacommit  |-|
        """,
        (0, "f1+"),
        {1: "f1+"},
        non_blocking=True,
        clash=1,
    ),
    "a clustering blocks a bucket in every mode": Case(
        """
        clustering  |----
        deltacommit  |---
        """,
        (1, f"{BUCKET_A}+"),
        {0: f"-{BUCKET_A}"},
        non_blocking=True,
        clash=0,
    ),
    "a replace commit blocks a bucket in every mode": Case(
        """
        deltacommit   |----
        replacecommit  |-|
        """,
        (0, f"{BUCKET_A}+"),
        {1: f"-{BUCKET_A} {BUCKET_B}@"},
        non_blocking=True,
        clash=1,
    ),
    "of several the first that conflicts is reported": Case(
        """
        deltacommit |-------
        deltacommit  |-|
        deltacommit   |-|
        deltacommit    |-|
        """,
        (0, "f1+ f2+"),
        {1: "f3+", 2: "f2+", 3: "f1+"},
        clash=2,
    ),
    "cleans, rollbacks and savepoints touch no groups": Case(
        """
        deltacommit |-----
        clean        |-|
        rollback      |-|
        savepoint      |-|
        """,
        (0, "f1+"),
    ),
    "a pending clustering that is cancellable is passed over": Case(
        """
        commit     |----
        clustering  |--
        """,
        (0, "f1@"),
        {1: "-f1"},
        cancellable=(1,),
    ),
    "once it has completed it is not": Case(
        """
        commit     |----
        clustering  |-|
        """,
        (0, "f1@"),
        {1: "-f1"},
        clash=1,
        cancellable=(1,),
    ),
    "so is a compaction that would hide a base file": Case(
        """
        deltacommit |----
        compaction   |--
        """,
        (0, "f1@"),
        {1: "f1@"},
        other_operation="COMPACT",
        cancellable=(1,),
    ),
    "which finds out itself": Case(
        """
        deltacommit |---|
        compaction   |----
        """,
        (1, "f1@"),
        {0: "f1@"},
        clash=0,
        operation="COMPACT",
        cancellable=(1,),
    ),
    "a compaction of a group that was replaced is no harm": Case(
        """
        compaction    |-----
        replacecommit   |-|
        """,
        (0, "f1@"),
        {2: "-f1"},
        operation="COMPACT",
    ),
    "but one that is cancellable fails": Case(
        """
        compaction    |-----
        replacecommit   |-|
        """,
        (0, "f1@"),
        {2: "-f1"},
        clash=2,
        operation="COMPACT",
        cancellable=(0,),
    ),
    "so does a log compaction": Case(
        """
        logcompaction |-----
        replacecommit   |-|
        """,
        (0, "f1+"),
        {2: "-f1"},
        clash=2,
        operation="LOG_COMPACT",
        cancellable=(0,),
    ),
    "a clustering goes before a write that has announced its group": Case(
        """
        clustering |-----
        commit       |---
        """,
        (0, "-f1"),
        {2: "f1@"},
        announced=(2,),
    ),
    "one that is cancellable fails": Case(
        """
        clustering |-----
        commit       |---
        """,
        (0, "-f1"),
        {2: "f1@"},
        clash=2,
        cancellable=(0,),
        announced=(2,),
    ),
    "also for a write that began before": Case(
        """
        commit     |-----
        clustering   |---
        """,
        (2, "-f1"),
        {0: "f1+"},
        clash=0,
        cancellable=(2,),
        announced=(0,),
    ),
    "and for an overwrite that has come to its partition": Case(
        """
        clustering    |-----
        replacecommit   |---
        """,
        (0, "-f1"),
        {2: "f9@"},
        clash=2,
        cancellable=(0,),
        announced=(2,),
        other_operation="INSERT_OVERWRITE",
    ),
    "but not for one that is elsewhere": Case(
        """
        clustering    |-----
        replacecommit   |---
        """,
        (0, "-f1"),
        {2: "p2/f9@"},
        cancellable=(0,),
        announced=(2,),
        other_operation="INSERT_OVERWRITE",
    ),
    "except one of the whole table": Case(
        """
        clustering    |-----
        replacecommit   |---
        """,
        (0, "-f1"),
        {2: "p2/f9@"},
        clash=2,
        cancellable=(0,),
        announced=(2,),
        other_operation="INSERT_OVERWRITE_TABLE",
    ),
    "a cancellable compaction does not conflict with log files": Case(
        """
        compaction  |-----
        deltacommit   |---
        """,
        (0, "f1@"),
        {2: "f1+"},
        operation="COMPACT",
        cancellable=(0,),
        announced=(2,),
    ),
    "but with an earlier base file that it would hide": Case(
        """
        deltacommit |-----
        compaction    |---
        """,
        (2, "f1@"),
        {0: "f1@"},
        clash=0,
        operation="COMPACT",
        cancellable=(2,),
        announced=(0,),
    ),
    "a cancellable log compaction fails where the write would": Case(
        """
        logcompaction |-----
        deltacommit     |---
        """,
        (0, "f1+"),
        {2: "f1+"},
        clash=2,
        operation="LOG_COMPACT",
        cancellable=(0,),
        announced=(2,),
    ),
}


def metadata(instant: str, text: str, operation: str) -> CommitMetadata:
    stats: dict[str, tuple[WriteStat, ...]] = {}
    replaced: dict[str, tuple[str, ...]] = {}
    for minus, partition, file_id, mark in re.findall(r"(-?)(?:(p\d)/)?([\w-]+)([@+]?)", text):
        folder = partition or "p1"
        if minus:
            replaced[folder] = (*replaced.get(folder, ()), file_id)
            continue
        file = BaseFile(file_id, "0-0-0", instant) if mark == "@" else LogFile(file_id, instant)
        stat = WriteStat(file_id=file_id, path=f"{folder}/{file.name}")
        stats[folder] = (*stats.get(folder, ()), stat)
    return CommitMetadata(stats=stats, replaced=replaced, operation=operation)


def as_of(timeline: Timeline, tick: int) -> Timeline:
    """The timeline as a writer that began at that tick saw it."""
    return Timeline.from_instants(
        i
        if i.completed_at is None or i.completed_at <= at(tick)
        else replace(i, state=State.INFLIGHT, completed_at=None)
        for i in timeline
        if i.requested_at < at(tick)
    )


def judged(case: Case) -> Conflict | None:
    now = draw(case.picture)
    tick, text = case.mine
    instants = {i.requested_at: i for i in now}

    def load(concurrent: Sequence[Instant]) -> list[ConcurrentOperation]:
        texts = {at(other): text for other, text in case.others.items()}
        return [marked(i, texts[i.requested_at], case.other_operation) for i in concurrent]

    def marked(instant: Instant, text: str, operation: str) -> ConcurrentOperation:
        requested_at = instant.requested_at
        commit = metadata(requested_at, text, operation)
        footprint = operation_of_commit(instant, commit)
        if requested_at in map(at, case.announced):
            nothing = ConcurrentOperation(requested_at, instant.completed_action)
            paths = [stat.path or "" for stat in commit.write_stats()]
            footprint = with_marker_files(nothing, paths, operation)
        cancellable = requested_at in map(at, case.cancellable)
        return replace(footprint, cancellable=cancellable, yields=cancellable)

    mine = marked(instants[at(tick)], text, case.operation)
    before = as_of(now, tick)
    live = frozenset(map(at, case.announced))
    return first_conflict(mine, before, now, load, non_blocking=case.non_blocking, live=live)


def first_conflict(*arguments: Any, **options: Any) -> Conflict | None:
    return next(find_conflicts(*arguments, **options), None)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_conflicts(case: Case) -> None:
    conflict = judged(case)
    assert (conflict and conflict.instant.requested_at) == (
        None if case.clash is None else at(case.clash)
    )


def test_a_conflict_names_the_file_groups_in_a_sentence() -> None:
    conflict = judged(CASES["a write that began later and completed first wins"])
    assert conflict is not None
    assert conflict.groups == (("p1", "f2"),)
    assert conflict.reason == (
        "a deltacommit completed that touches the same file groups as this write"
    )


def test_nothing_is_loaded_without_concurrent_writes() -> None:
    def load(concurrent: Sequence[Instant]) -> list[ConcurrentOperation]:
        raise AssertionError(concurrent)

    now = draw("""
        commit |-|
        commit    |--
        """)
    mine = ConcurrentOperation(at(3), Action.COMMIT, base_groups=frozenset({("p1", "f1")}))
    assert first_conflict(mine, as_of(now, 3), now, load) is None


def test_a_compaction_at_a_past_instant_that_completed_concurrently_is_checked() -> None:
    now = draw("""
        commit      |-|
        compaction     |---|
        deltacommit     |----
        """)
    before = Timeline.from_instants(i for i in as_of(now, 4) if i.requested_at != at(3))
    mine = ConcurrentOperation(at(4), Action.DELTA_COMMIT, log_groups=frozenset({("p1", "f1")}))
    assert [i.requested_at for i in candidate_instants(mine, before, now)] == [at(3)]


PENDING = Instant(at(1), Action.COMPACTION, State.REQUESTED)


def test_a_compaction_plan_has_a_footprint() -> None:
    operation = CompactionOperation(partition="p1", file_id=BUCKET_A, base_instant=at(0))
    footprint = operation_of_compaction_plan(PENDING, CompactionPlan(operations=(operation,)))
    assert footprint == ConcurrentOperation(
        at(1), Action.COMMIT, OperationKind.COMPACTION, base_groups=groups(("p1", "00000001"))
    )


LOG = LogFile("f1", at(2))
LATE = replace(Instant(at(2), Action.DELTA_COMMIT), completed_at=at(3))
FOLDED = CompactionOperation(partition="p1", file_id="f1", base_instant=at(0), logs=(LOG.name,))
AFTER_IT = Instant(at(5), Action.COMPACTION, State.REQUESTED)
BEFORE_IT = Instant(at(1), Action.COMPACTION, State.REQUESTED)
LANDED: dict[str, tuple[Instant, CompactionOperation, bool]] = {
    "a plan above its time that does not name it hides it": (
        AFTER_IT, replace(FOLDED, logs=()), True),
    "a plan that names it includes it": (AFTER_IT, FOLDED, False),
    "a plan below its time leaves it on top": (BEFORE_IT, replace(FOLDED, logs=()), False),
    "a plan of another group does not matter": (
        AFTER_IT, replace(FOLDED, file_id="f2", logs=()), False),
}  # fmt: skip


@pytest.mark.parametrize(("other", "operation", "clash"), LANDED.values(), ids=list(LANDED))
@pytest.mark.parametrize("completed", [False, True], ids=["pending", "completed"])
def test_a_log_file_that_has_landed(
    other: Instant, operation: CompactionOperation, clash: bool, completed: bool
) -> None:
    if completed:
        other = Instant(other.requested_at, Action.COMMIT, completed_at=at(7))
    mine = operation_of_commit(LATE, metadata(at(2), "f1+", "UPSERT"))
    plan = operation_of_compaction_plan(other, CompactionPlan(operations=(operation,)))
    conflict = first_conflict(
        mine,
        Timeline(),
        Timeline.from_instants([other]),
        lambda concurrent: [plan for _ in concurrent],
    )
    assert (conflict is not None) == clash


@pytest.mark.parametrize("operation", ["COMPACT", "LOG_COMPACT"])
@pytest.mark.parametrize(("completed", "clash"), [(at(3), True), (at(6), False)])
def test_an_execution_meets_a_log_file_that_landed_since(
    operation: str, completed: str, clash: bool
) -> None:
    other = replace(LATE, completed_at=completed)
    text = "f1@" if operation == "COMPACT" else "f1+"
    mine = operation_of_commit(AFTER_IT, metadata(at(5), text, operation))
    write = operation_of_commit(other, metadata(at(2), "f1+", "UPSERT"))
    conflict = first_conflict(mine, Timeline(), Timeline.from_instants([other]), lambda _: [write])
    assert (conflict is not None) == clash


def test_a_clustering_plan_has_a_footprint() -> None:
    slices = (ClusteringSlice(partition="p1", file_id="f1"),)
    plan = ClusteringPlan(groups=(ClusteringGroup(slices=slices),))
    footprint = operation_of_clustering_plan(replace(PENDING, action=Action.CLUSTERING), plan)
    assert footprint == ConcurrentOperation(
        at(1), Action.REPLACE_COMMIT, replaced_groups=groups(("p1", "f1"))
    )


def test_inserts_that_have_no_group_yet_have_no_footprint() -> None:
    stats = {"p1": (WriteStat(file_id=""), WriteStat(file_id="f1", prev_commit=at(0)))}
    instant = Instant(at(1), Action.COMMIT, State.INFLIGHT)
    footprint = operation_of_commit(instant, CommitMetadata(stats=stats))
    assert footprint.groups == groups(("p1", "f1"))


def groups(*pairs: Group) -> frozenset[Group]:
    return frozenset(pairs)
