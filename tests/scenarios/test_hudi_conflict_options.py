"""Hudi's own options that decide whether a writer or a table service wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows
from lakewright.errors import ConflictError, InvalidError
from lakewright.model.instant import Action
from lakewright.model.plans import Skip
from lakewright.options import settings_from
from lakewright.table.options import ConflictStrategy, TransactionSettings
from lakewright.table.plan_execution import PlanInProgressError
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource
from support.cancellable_plans import (
    CANCELLABLE_PLAN,
    DAYS,
    MULTI_WRITER,
    PlanFixture,
    each_service,
)
from support.concurrency import InterruptedEngine, once
from support.tables import row

STRATEGY = "hoodie.write.lock.conflict.resolution.strategy"
PACKAGE = "org.apache.hudi.client.transaction."
PREFER_WRITER = {STRATEGY: f"{PACKAGE}PreferWriterConflictResolutionStrategy"}
FAIL_ON_PENDING = "hoodie.clustering.fail.on.pending.ingestion.during.conflict.resolution"
EXPIRATIONS = {"hoodie.clustering.enable.expirations": "true"}
ALLOW = {"hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy"}
ORDINARY: Mapping[str, str] = {}
HOUR_MS = 3_600_000


def test_the_names_of_strategies() -> None:
    for name, expected in (
        ("SimpleConcurrentFileWritesConflictResolutionStrategy", ConflictStrategy.SIMPLE),
        ("BucketIndexConcurrentFileWritesConflictResolutionStrategy", ConflictStrategy.SIMPLE),
        ("PreferWriterConflictResolutionStrategy", ConflictStrategy.PREFER_WRITER),
    ):
        settings = settings_from(TransactionSettings, {STRATEGY: PACKAGE + name})
        assert settings.conflict_strategy is expected
    with pytest.raises(InvalidError, match="PreferWriter"):
        settings_from(TransactionSettings, {STRATEGY: "com.example.Own"})


@pytest.mark.parametrize("prefers", [True, False], ids=["prefer writer", "simple"])
def test_an_ordinary_clustering_yields_to_an_announced_update(prefers: bool) -> None:
    fixture = PlanFixture("clustering", {**MULTI_WRITER, **(PREFER_WRITER if prefers else {})})
    errors: list[ConflictError] = []

    def cluster() -> None:
        at = fixture.schedule(ORDINARY)
        try:
            fixture.execute(at)
        except ConflictError as error:
            errors.append(error)
            assert fixture.state(at) == "REQUESTED"

    def write() -> None:
        fixture.table.upsert([row("a", 9, "ninth")], ALLOW, before_commit=cluster)

    if prefers:
        write()
        assert "is pending" in errors[0].message
        assert row("a", 9, "ninth") in fixture.table.rows()
    else:
        with pytest.raises(ConflictError):
            write()
        assert not errors


def test_a_writer_takes_no_notice_of_a_clustering_that_is_pending() -> None:
    fixture = PlanFixture("clustering", {**MULTI_WRITER, **PREFER_WRITER})
    plans: list[str] = []
    fixture.table.upsert(
        [row("a", 9, "ninth")], before_commit=lambda: plans.append(fixture.schedule(ORDINARY))
    )
    assert row("a", 9, "ninth") in fixture.table.rows()
    with pytest.raises(ConflictError):
        fixture.execute(plans[0])
    assert fixture.state(plans[0]) == "REQUESTED"


PASSES = {
    "several writers, simple": (MULTI_WRITER, False),
    "several writers, prefer writer": ({**MULTI_WRITER, **PREFER_WRITER}, True),
    "a single writer, which checks no conflicts": ({}, True),
}


@pytest.mark.parametrize(("options", "passes"), PASSES.values(), ids=PASSES)
@pytest.mark.parametrize("begun", [True, False], ids=["inflight", "requested"])
def test_an_update_that_is_allowed_passes_a_clustering_that_waits(
    options: Mapping[str, str], passes: bool, begun: bool
) -> None:
    fixture = PlanFixture("clustering", options)
    at = fixture.schedule(ORDINARY)
    if begun:
        fixture.crash_executing(at)
    if passes:
        fixture.table.upsert([row("a", 9, "ninth")], ALLOW)
        assert row("a", 9, "ninth") in fixture.table.rows()
    else:
        with pytest.raises(ConflictError, match=at):
            fixture.table.upsert([row("a", 9, "ninth")], ALLOW)
        assert fixture.table.rows() == fixture.rows_before


@pytest.mark.parametrize("fails", [True, False])
def test_a_clustering_may_fail_for_a_writer_that_has_announced_nothing(fails: bool) -> None:
    options = {**MULTI_WRITER, **PREFER_WRITER, FAIL_ON_PENDING: str(fails).lower()}
    fixture = PlanFixture("clustering", options)
    at = fixture.schedule(ORDINARY)
    outcomes: list[object] = []

    class Begun(InterruptedEngine):
        def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
            try:
                outcomes.append(fixture.execute(at))
            except ConflictError as error:
                outcomes.append(error)
            return super().write(task, rows)

    client = replace(fixture.table.writer(), local_engine=Begun())
    new = pa.Table.from_pylist([row("elsewhere", day="2026-05-05")], fixture.table.schema)
    client.write(Operation.UPSERT, ArrowRows(new))
    assert isinstance(outcomes[0], ConflictError if fails else Commit)
    assert fixture.state(at) == ("REQUESTED" if fails else "COMPLETED")


@pytest.mark.parametrize("begun", [True, False], ids=["died", "waits"])
def test_clusterings_expire(begun: bool) -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule(ORDINARY)
    if begun:
        fixture.crash_executing(at)
    fixture.clock.advance(HOUR_MS - 60_000)
    fixture.clean(EXPIRATIONS)
    assert fixture.state(at) == ("INFLIGHT" if begun else "REQUESTED")
    fixture.clock.advance(HOUR_MS)
    fixture.clean()
    assert fixture.state(at) == ("INFLIGHT" if begun else "REQUESTED")
    outcome = fixture.clean(EXPIRATIONS)
    assert isinstance(outcome, Commit | Skip)
    fixture.assert_rolled_back(at)
    assert fixture.table.rows() == fixture.rows_before


def test_but_not_while_they_are_being_executed() -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule(ORDINARY)
    fixture.clock.advance(2 * HOUR_MS)
    engine = InterruptedEngine(once(lambda: fixture.clean(EXPIRATIONS)))
    assert fixture.execute(at, engine).partitions == DAYS


@each_service
@pytest.mark.parametrize("plan", [ORDINARY, CANCELLABLE_PLAN], ids=["ordinary", "cancellable"])
def test_a_plan_that_another_writer_has_marked_for_cancelling_is_not_executed(
    service: str, plan: Mapping[str, str]
) -> None:
    fixture = PlanFixture(service)
    at = fixture.schedule(plan)
    fixture.storage.create(f".hoodie/.cancel/{at}", b"")
    with pytest.raises(PlanInProgressError, match="is to be cancelled"):
        fixture.execute(at)
    fixture.assert_still_pending(at)
    fixture.storage.delete(f".hoodie/.cancel/{at}")
    assert fixture.execute(at)


@pytest.mark.parametrize("plan", [ORDINARY, CANCELLABLE_PLAN], ids=["ordinary", "cancellable"])
def test_an_execution_that_is_marked_for_cancelling_does_not_commit(
    plan: Mapping[str, str],
) -> None:
    fixture = PlanFixture("clustering", MULTI_WRITER)
    rows = fixture.table.rows()
    at = fixture.schedule(plan)
    engine = InterruptedEngine(lambda: fixture.storage.create(f".hoodie/.cancel/{at}", b""))
    runner = replace(fixture.runner(), engine=lambda: engine)
    with pytest.raises(ConflictError, match="is to be cancelled"):
        runner.execute(at)
    assert fixture.table.rows() == rows
    timeline = load_snapshot(fixture.storage).timeline
    assert not timeline.completed_services(Action.CLUSTERING)
    assert bool(timeline.pending(Action.CLUSTERING)) == (plan is ORDINARY)
