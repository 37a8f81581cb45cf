"""Cancellable clusterings get somewhere beside steady ingestion, and refuse no write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import ConflictError
from lakewright.model.instant import Action
from lakewright.model.plans import Skip
from lakewright.services.runner import ServiceRunner
from lakewright.storage.memory import MemoryStorage
from lakewright.table.preemption import parse_preempted
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource
from support.cancellable_plans import CANCELLABLE_PLAN, HEARTBEAT_EXPIRES_MS, MULTI_WRITER
from support.concurrency import InterruptedEngine, once
from support.tables import NO_SERVICES, Row, WrittenTable, row

HOT = "2026-02-01"
COLD = ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04")
GROUPS = 8
# A clustering of files that small never ends by itself.
ONCE = {"hoodie.clustering.plan.strategy.single.group.clustering.enabled": "false"}


@dataclass
class Lake:
    """Small file groups in a hot partition and in cold ones; updates of one hot group at a time."""

    groups: int = GROUPS
    cold: Sequence[str] = COLD
    options: Mapping[str, str] = field(default_factory=dict)
    updates: int = 0

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage.fresh(now_ms=self.clock.now_ms)
        options = {**NO_SERVICES, **MULTI_WRITER, **ONCE, **self.options}
        self.table = WrittenTable(self.storage, self.clock, options).create("COPY_ON_WRITE")
        for group in range(self.groups):
            days = (HOT, *self.cold)
            self.table.write("BULK_INSERT", [row(f"{day} {group}", day=day) for day in days])
        self.originals = self.file_ids()

    def file_ids(self) -> dict[str, set[str]]:
        snapshot = load_snapshot(self.storage)
        found: dict[str, set[str]] = {}
        for group in snapshot.groups(snapshot.view(), snapshot.files()):
            found.setdefault(group.key[0], set()).add(group.key[1])
        return found

    def clustered(self, day: str) -> int:
        """How many of the file groups at the start were clustered."""
        return len(self.originals[day] - self.file_ids()[day])

    def update(self) -> Commit:
        """Update a row of the next hot file group."""
        self.updates += 1
        key = f"{HOT} {self.updates % self.groups}"
        return self.table.upsert([row(key, 1 + self.updates, f"update {self.updates}", HOT)])

    def runner(self, engine: LocalEngine | None = None, **options: str) -> ServiceRunner:
        runner = self.table.services({**CANCELLABLE_PLAN, **options})
        return replace(runner, engine=lambda: engine or LocalEngine())

    def round(self) -> Commit | Skip:
        """Run a clustering; during the work of each of its plans a write updates a hot group."""
        return self.runner(InterruptedEngine(self.update)).run("clustering")


def test_cold_partitions_are_clustered_at_once_and_most_of_a_hot_one_within_ten_rounds() -> None:
    lake = Lake()
    for number in range(10):
        with suppress(ConflictError):
            lake.round()
        assert [lake.clustered(day) for day in lake.cold] == [GROUPS] * len(COLD), number
    assert lake.clustered(HOT) > 0.8 * GROUPS
    notes = {record["id"]: record["note"] for record in lake.table.rows()}
    assert len(notes) == GROUPS * (1 + len(COLD))
    for update in range(max(1, lake.updates - GROUPS + 1), lake.updates + 1):
        assert notes[f"{HOT} {update % GROUPS}"] == f"update {update}"


def test_what_was_preempted_comes_last_in_a_plan_of_its_own_and_in_smaller_groups() -> None:
    lake = Lake()
    first = lake.round()
    assert isinstance(first, Commit)
    assert first.partitions == COLD
    assert first.services == ()
    lake.table.write("BULK_INSERT", [row(f"{COLD[0]} {n}", day=COLD[0]) for n in range(2)])
    preview = lake.runner().preview("clustering")
    assert preview.partitions == (COLD[0],)
    assert preview.missing_reasons[HOT] == "preempted 1 times, planned after the others"
    second = lake.runner().run("clustering")
    assert isinstance(second, Commit)
    assert second.partitions == (COLD[0],)
    (third,) = second.services
    assert isinstance(third, Commit)
    assert third.partitions == (HOT,)
    plan = load_snapshot(lake.storage).plan_of(third.instant, Action.CLUSTERING)
    assert plan is not None
    assert [len(group.slices) for group in plan.groups] == [GROUPS // 2, GROUPS // 2]  # type: ignore[union-attr]
    assert lake.clustered(HOT) == GROUPS
    # Two files are left of that, and one once nothing preempts it.
    fourth = lake.runner().run("clustering")
    assert isinstance(fourth, Commit)
    assert len(lake.file_ids()[HOT]) == 1
    assert isinstance(lake.runner().run("clustering"), Skip)


def test_a_further_plan_that_is_preempted_does_not_undo_the_first() -> None:
    lake = Lake(groups=2, cold=COLD[:1])
    lake.round()
    lake.table.write("BULK_INSERT", [row(f"more {n}", day=COLD[0]) for n in range(2)])
    outcome = lake.round()
    assert isinstance(outcome, Commit)
    assert outcome.partitions == COLD[:1]
    (skip,) = outcome.services
    assert isinstance(skip, Skip)
    assert "touches the same file groups" in skip.reason


def preemptions(lake: Lake) -> list[dict[str, int]]:
    snapshot = load_snapshot(lake.storage)
    completed = snapshot.timeline.completed_services(Action.CLUSTERING)
    return [parse_preempted(commit.extra) for commit in snapshot.commits(completed)]


def test_after_some_preemptions_writers_wait_for_the_plan() -> None:
    lake = Lake(groups=2, cold=COLD[:1], options={"lakewright.plan.escalate.after": "3"})
    lake.round()
    assert preemptions(lake) == [{HOT: 1}]
    for _ in range(2):
        # Two file groups are one clustering group: the plan goes as a whole.
        with pytest.raises(ConflictError):
            lake.round()
    refused = []

    def update() -> None:
        with pytest.raises(ConflictError) as error:
            lake.update()
        refused.append(error.value)

    outcome = lake.runner(InterruptedEngine(once(update))).run("clustering")
    assert isinstance(outcome, Commit)
    assert outcome.partitions == (HOT,)
    assert refused
    plan = load_snapshot(lake.storage).plan_of(outcome.instant, Action.CLUSTERING)
    assert plan is not None
    assert not plan.cancellable
    assert lake.clustered(HOT) == 2
    # The next one is cancellable again.
    lake.table.write("BULK_INSERT", [row(f"more {n}", day=HOT) for n in range(2)])
    assert lake.runner().preview("clustering").missing_reasons == {}


class AtStart(LocalEngine):
    """Another process acts when a write has begun, before it reads its rows."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = once(act)

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        self._act()
        return super().write(task, rows)


def begin_write(lake: Lake, operation: str, rows: Sequence[Row], act: Callable[[], object]) -> None:
    """Write, and let another process act before the write has announced anything."""
    client = replace(lake.table.writer(), local_engine=AtStart(act))
    table = pa.Table.from_pylist(list(rows), lake.table.schema)
    client.write(Operation(operation), ArrowRows(table))


def cluster_beside_begun(lake: Lake, operation: str, rows: Sequence[Row]) -> Commit:
    """Cluster after some updates, while a write has announced nothing."""
    for _ in range(5):
        lake.update()
    outcomes: list[Commit | Skip] = []
    cluster = lake.runner()
    begin_write(lake, operation, rows, lambda: outcomes.append(cluster.run("clustering")))
    (outcome,) = outcomes
    assert isinstance(outcome, Commit)
    return outcome


def test_a_clustering_leaves_a_partition_to_an_upsert_that_has_only_begun() -> None:
    lake = Lake()
    commit = cluster_beside_begun(lake, "UPSERT", [row(f"{HOT} 0", 99, "last", HOT)])
    assert commit.partitions == COLD
    assert preemptions(lake) == [{HOT: 1}]
    assert row(f"{HOT} 0", 99, "last", HOT) in lake.table.rows()


def test_but_not_to_an_insert() -> None:
    lake = Lake()
    commit = cluster_beside_begun(lake, "BULK_INSERT", [row("new", day=HOT)])
    assert commit.partitions == (*COLD, HOT)


def test_what_was_left_to_a_write_that_failed_is_planned_again() -> None:
    lake = Lake()
    for _ in range(5):
        lake.update()

    def cluster_and_fail() -> None:
        lake.runner().run("clustering")
        raise Crash

    with pytest.raises(Crash):
        begin_write(lake, "UPSERT", [row(f"{HOT} 0", 99, "last", HOT)], cluster_and_fail)
    lake.clock.advance(HEARTBEAT_EXPIRES_MS + 1)
    commit = lake.runner().run("clustering")
    assert isinstance(commit, Commit)
    assert commit.partitions == (HOT,)
