"""Which partitions a plan looks at: the design's picture and rule, and where it falls back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from lakewright.format.archived_file import ArchivedInstant, format_archived_file
from lakewright.format.archived_timeline import (
    Manifest,
    archived_file_of,
    format_manifest,
    format_version,
)
from lakewright.format.timeline_metadata import (
    format_commit,
    format_compaction_plan,
    format_replace_commit,
    format_rollback,
)
from lakewright.model.commit_metadata import (
    CommitMetadata,
    RollbackMetadata,
    RolledBackPartition,
    WriteStat,
)
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import ClusteringPlan, CompactionPlan, InstantRef
from lakewright.model.table_config import TableConfig
from lakewright.services.base import PlanningContext, plan_codec
from lakewright.services.planning import IncrementalWindow, find_window
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.testing.timeline_drawing import at, draw

TIMELINE = ".hoodie/timeline"
HISTORY = f"{TIMELINE}/history"
PLANS: dict[str, CompactionPlan | ClusteringPlan] = {
    "compaction": CompactionPlan(missing_partitions=()),
    "logcompaction": CompactionPlan(missing_partitions=()),
    "clustering": ClusteringPlan(missing_partitions=()),
}


@dataclass(frozen=True)
class Case:
    """A drawn timeline; what each write (by its tick) wrote, and what the last plan missed."""

    picture: str
    plan_at: int
    expected: str | None
    written: Mapping[int, str] = field(default_factory=dict)
    missing: str = ""
    action: str = "compaction"
    table_type: str = "MERGE_ON_READ"
    deleted: Mapping[int, str] = field(default_factory=dict)


RFC = """
    deltacommit |-|
    deltacommit   |-|
    compaction     |----|
    deltacommit      |-|
    deltacommit        |-|
    deltacommit           |
"""
CASES = {
    "the design's timeline: [T3, T11) holds what completed at T4, T6 and T9": Case(
        RFC, 11, "p2 p5 p7", {0: "p0", 2: "p2", 5: "p5", 7: "p7"}
    ),
    "the missing partitions of the last plan are joined, once each": Case(
        RFC, 11, "old p2 p5 p7", {0: "p0", 2: "p2", 5: "p5", 7: "p7"}, missing="old p5"
    ),
    "several writers around a clustering: by completion, not by request": Case(
        """
        commit     ||
        clustering   |--|
        commit        |--|
        commit          |-|
        commit             |
        """,
        9,
        "p3 p5",
        {0: "p0", 3: "p3", 5: "p5"},
        action="clustering",
        table_type="COPY_ON_WRITE",
    ),
    "what completes at the plan's instant or later is outside": Case(
        """
        commit     ||
        clustering   |--|
        commit        |--|
        commit          |-|
        commit             |--|
        """,
        9,
        "p3 p5",
        {0: "p0", 3: "p3", 5: "p5", 8: "p8"},
        action="clustering",
        table_type="COPY_ON_WRITE",
    ),
    "without a completed service all partitions are listed": Case(
        """
        commit        |--|
        commit          |-|
        clustering            |
        """,
        16,
        None,
        {3: "p3", 5: "p5"},
        action="clustering",
        table_type="COPY_ON_WRITE",
    ),
    "commits without partitions leave the window empty, which is no full listing": Case(
        """
        clustering ||
        commit       ||
        commit         ||
        """,
        9,
        "",
        {2: "", 4: ""},
        action="clustering",
        table_type="COPY_ON_WRITE",
    ),
    "the last service is the one with the greatest instant, not the one that completed last": Case(
        """
        compaction  |--------|
        deltacommit  ||
        compaction     |-|
        deltacommit       |-|
        """,
        12,
        "p6",
        {1: "p1", 6: "p6"},
    ),
    "a pending service moves nothing": Case(
        """
        compaction  ||
        deltacommit   ||
        compaction      |--
        deltacommit        ||
        """,
        12,
        "p2 p7",
        {2: "p2", 7: "p7"},
    ),
    "a replace commit adds the partitions it wrote": Case(
        """
        compaction    ||
        replacecommit   ||
        """,
        9,
        "p2",
        {2: "p2"},
    ),
    "a partition that was deleted drops out, one that was written again stays": Case(
        """
        compaction    ||
        replacecommit   ||
        deltacommit       ||
        """,
        9,
        "b old",
        {4: "b"},
        missing="old a b",
        deleted={2: "a b"},
    ),
    "a partition stays that was written while its delete was under way": Case(
        """
        compaction    ||
        replacecommit   |------|
        deltacommit       ||
        """,
        12,
        "b",
        {4: "b"},
        missing="a b",
        deleted={2: "a b"},
    ),
    "one that the last plan missed stays if its delete began before that plan": Case(
        """
        compaction    ||
        replacecommit   |------|
        compaction        |-|
        """,
        12,
        "a",
        missing="a",
        deleted={2: "a"},
    ),
    "a compaction is not a write of a merge-on-read table": Case(
        """
        clustering  ||
        compaction    ||
        deltacommit     ||
        """,
        9,
        "p4",
        {2: "p2", 4: "p4"},
        action="clustering",
    ),
    "log compaction has a window of its own": Case(
        """
        logcompaction ||
        deltacommit     ||
        compaction        ||
        """,
        9,
        "p2 kept",
        {2: "p2", 4: "p4"},
        missing="kept",
        action="logcompaction",
    ),
}


def metadata(partitions: str, deleted: str = "") -> CommitMetadata:
    return CommitMetadata(
        stats={name: (WriteStat(file_id="f"),) for name in partitions.split()},
        operation="DELETE_PARTITION" if deleted else "UPSERT",
        replaced=dict.fromkeys(deleted.split(), ("f",)),
    )


def context_of(case: Case, storage: MemoryStorage | CountingStorage) -> PlanningContext:
    timeline = draw(case.picture)
    for instant in timeline:
        tick = int(instant.requested_at[4:])
        if instant.is_completed:
            value = metadata(case.written.get(tick, ""), case.deleted.get(tick, ""))
            replaces = instant.action == "replacecommit"
            data = (format_replace_commit if replaces else format_commit)(value)
            storage.create(f"{TIMELINE}/{instant.file_name}", data)
    for requested_at, action in timeline.plans.items():
        plan = replace(PLANS[action], missing_partitions=tuple(case.missing.split()))
        requested = Instant(requested_at, action, State.REQUESTED)
        path = f"{TIMELINE}/{requested.file_name}"
        storage.create(path, plan_codec(action).format(plan))
    config = TableConfig.from_properties(
        {
            "hoodie.table.name": "t",
            "hoodie.table.type": case.table_type,
            "hoodie.table.version": "9",
            "hoodie.timeline.layout.version": "2",
            "hoodie.timeline.path": "timeline",
            "hoodie.timeline.history.path": "history",
        }
    )
    return PlanningContext(Snapshot(storage, config, timeline), at(case.plan_at), 0)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_window(case: Case) -> None:
    window = find_window(context_of(case, MemoryStorage.fresh()), Action(case.action))
    expected = None if case.expected is None else tuple(sorted(case.expected.split()))
    assert window.partitions == expected
    assert window.records_missing


def test_switched_off_nothing_is_read_and_nothing_recorded() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    context = context_of(
        CASES["the missing partitions of the last plan are joined, once each"], storage
    )
    storage.reset()
    window = find_window(context, Action.COMPACTION, enabled=False)
    assert window.partitions is None
    assert window.missing(["a"], []) is None
    assert not storage.touched


def test_a_strategy_without_the_interface_gets_all_partitions() -> None:
    context = context_of(next(iter(CASES.values())), MemoryStorage.fresh())
    assert find_window(context, Action.COMPACTION, partition_aware=False).partitions is None


def test_a_write_that_outlasted_the_last_service_counts_though_it_is_archived() -> None:
    """It began before the service and completed after it, so the service did not include it."""
    case = Case(
        """
        compaction    |----|
        deltacommit          ||
        """,
        12,
        "",
        {9: "p9"},
    )
    storage = MemoryStorage.fresh()
    context = context_of(case, storage)
    late = ArchivedInstant(
        "20260000000000000", at(3), "deltacommit", format_commit(metadata("slow"))
    )
    early = ArchivedInstant(
        "20250000000000000", at(0), "deltacommit", format_commit(metadata("gone"))
    )
    archive(storage, late, early)
    assert find_window(context, Action.COMPACTION).partitions == ("p9", "slow")


def archive(storage: MemoryStorage, *entries: ArchivedInstant) -> None:
    data = format_archived_file(entries)
    file = replace(archived_file_of(entries), size=len(data))
    storage.create(f"{HISTORY}/{file.name}", data)
    storage.create(f"{HISTORY}/manifest_1", format_manifest(Manifest((file,))))
    storage.create(f"{HISTORY}/_version_", format_version(1))


def rollback_of(action: str, partition: str, caused_by: str | None = None) -> RollbackMetadata:
    return RollbackMetadata(
        started_at=at(3),
        commits=(at(0),),
        partitions={partition: RolledBackPartition(partition=partition)},
        instants=(InstantRef(at(0), action),),
        caused_by=caused_by,
    )


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (rollback_of("deltacommit", "back"), ("back", "p9")),
        (rollback_of("commit", "back"), ("back", "p9")),
        (rollback_of("replacecommit", "back"), None),
        (rollback_of("replacecommit", "back", caused_by="a request"), ("back", "p9")),
        (None, None),
    ],
    ids=["a write", "a compaction", "a replace commit", "a cancelled plan", "without metadata"],
)
def test_an_archived_rollback_brings_back_what_it_recorded(
    metadata: RollbackMetadata | None, expected: tuple[str, ...] | None
) -> None:
    """Real Hudi archives rollbacks independently of writes."""
    case = Case(
        """
        compaction    |----|
        deltacommit          ||
        """,
        12,
        "",
        {9: "p9"},
    )
    storage = MemoryStorage.fresh()
    context = context_of(case, storage)
    content = b"" if metadata is None else format_rollback(metadata)
    archive(storage, ArchivedInstant(at(3), at(4), "rollback", content))
    window = find_window(context, Action.COMPACTION)
    assert window.partitions == expected
    assert (f"rollback {at(3)}" in window.reason) is (expected is None)


def test_all_partitions_are_listed_where_the_last_plan_is_missing() -> None:
    storage = MemoryStorage.fresh()
    context = context_of(next(iter(CASES.values())), storage)
    storage.delete(f"{TIMELINE}/{at(3)}.compaction.requested")
    assert find_window(context, Action.COMPACTION).partitions is None


def test_after_a_plan_that_records_no_missing_partitions_all_are_listed() -> None:
    storage = MemoryStorage.fresh()
    context = context_of(next(iter(CASES.values())), storage)
    path = f"{TIMELINE}/{at(3)}.compaction.requested"
    storage.replace(path, format_compaction_plan(CompactionPlan(missing_partitions=None)))
    assert find_window(context, Action.COMPACTION).partitions is None


def test_missing_partitions_were_considered_and_not_planned() -> None:
    assert IncrementalWindow(("a", "b")).missing(["a", "b"], ["b"]) == ("a",)
    assert IncrementalWindow(None).missing(["a"], ["a"]) == ()
