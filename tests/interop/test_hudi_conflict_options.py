"""Hudi's own options for plans that give way have the same result, whoever plans and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from histories import at
from kinds import Kind
from real_hudi import RealHudi, RealHudiError
from served import ServedTable, check, same_rows
from test_cancellable import RANGES, SEVERAL, THEIR_SEVERAL

from lakewright.errors import ConflictError
from lakewright.model.plans import Skip
from lakewright.services.runner import ServiceRunner
from support.soak import some

pytestmark = pytest.mark.sampled(2)

DUE = {"hoodie.clustering.inline.max.commits": "1"}
EXPIRE = {
    "hoodie.clustering.enable.expirations": "true",
    # The least age that an instant can have.
    "hoodie.clustering.expiration.threshold.mins": "0",
}
STRATEGY = "hoodie.write.lock.conflict.resolution.strategy"
PACKAGE = "org.apache.hudi.client.transaction."
PREFER_WRITER = {STRATEGY: f"{PACKAGE}PreferWriterConflictResolutionStrategy"}
SIMPLE = {STRATEGY: f"{PACKAGE}SimpleConcurrentFileWritesConflictResolutionStrategy"}
ALLOW = {
    "hoodie.clustering.updates.strategy": (
        "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
    )
}
CLEANING = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}
Make = Callable[[], ServedTable]


@pytest.fixture(scope="module")
def begun(real_hudi: RealHudi, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A table with small files that both have written."""

    @cache
    def begin() -> ServedTable:
        table = ServedTable(real_hudi, tmp_path_factory.mktemp("begun") / "t", Kind()).create()
        table.ours("bulk_insert", at(10, *range(9)))
        table.theirs("insert", at(10, *range(9, 15)))
        return table

    return begin


@pytest.fixture
def table(begun: Make, tmp_path: Path) -> ServedTable:
    return begun().copied(tmp_path / "served")


def heartbeat(table: ServedTable, instant: str) -> Path:
    return table.path / ".hoodie/.heartbeat" / instant


def expire(table: ServedTable, instant: str) -> None:
    """Make the heartbeat of a process that has ended an expired one, without waiting for that."""
    heartbeat(table, instant).unlink()


def ours(table: ServedTable, options: Mapping[str, str]) -> ServiceRunner:
    return table.written.services({**SEVERAL, **options})


def execute_by_them(table: ServedTable, instant: str, options: Mapping[str, str]) -> None:
    settings = table._options_text({**THEIR_SEVERAL, **options})
    table.call("run_clustering", f"op => 'execute', instants => '{instant}', {settings}")


def their_clean(table: ServedTable, ts: int, options: Mapping[str, str]) -> None:
    """A clean of theirs, after a write to a partition of its own."""
    table.theirs("insert", at(ts, 100 + ts), {**THEIR_SEVERAL, **CLEANING, **options})


def test_their_clean_rolls_back_our_clustering_once_it_has_expired(table: ServedTable) -> None:
    runner = ours(table, {**DUE, **EXPIRE})
    scheduled = runner.schedule("clustering")
    assert not isinstance(scheduled, Skip)
    instant = scheduled.requested_at
    assert heartbeat(table, instant).exists()
    their_clean(table, 30, EXPIRE)
    assert table.shown_by_them("clustering")[instant] == "REQUESTED"
    runner.heartbeats.stop_all()
    their_clean(table, 31, EXPIRE)
    assert instant not in table.shown_by_them("clustering")
    assert instant not in {i.requested_at for i in table.snapshot.timeline.pending()}
    check(table, ranges=RANGES)


def test_our_clean_rolls_back_their_clustering_once_it_has_expired(table: ServedTable) -> None:
    instant = table.plan_by_them("clustering", {**THEIR_SEVERAL, **DUE, **EXPIRE})
    # Its client began a heartbeat when it scheduled the plan, and has left the file.
    assert heartbeat(table, instant).exists()
    ours(table, EXPIRE).run("clean")
    with pytest.raises(ConflictError, match="keeps it for itself"):
        ours(table, EXPIRE).execute(instant)
    assert table.shown_by_them("clustering")[instant] == "REQUESTED"
    expire(table, instant)
    with same_rows(table, ranges=RANGES):
        ours(table, EXPIRE).run("clean")
    assert instant not in table.shown_by_them("clustering")
    table.theirs("upsert", at(30, 0, 9), THEIR_SEVERAL)
    check(table, ranges=RANGES)


def test_real_hudi_executes_our_clustering_whatever_its_heartbeat(table: ServedTable) -> None:
    """Why other clients must not be given a plan that expires: real Hudi asks nobody."""
    runner = ours(table, {**DUE, **EXPIRE})
    scheduled = runner.schedule("clustering")
    assert not isinstance(scheduled, Skip)
    instant = scheduled.requested_at
    with same_rows(table, ranges=RANGES):
        execute_by_them(table, instant, EXPIRE)
    assert table.shown_by_them("clustering")[instant] == "COMPLETED"
    assert runner.execute(instant).instant == instant


def our_write(table: ServedTable, strategy: Mapping[str, str]) -> None:
    table.ours("upsert", at(30, 0, 9), {**SEVERAL, **ALLOW, **strategy})


def their_write(table: ServedTable, strategy: Mapping[str, str]) -> None:
    table.theirs("upsert", at(30, 0, 9), {**THEIR_SEVERAL, **ALLOW, **strategy})


def our_plan(table: ServedTable) -> str:
    return table.plan_by_us("clustering", {**DUE, **SEVERAL})


def their_plan(table: ServedTable) -> str:
    return table.plan_by_them("clustering", {**DUE, **THEIR_SEVERAL})


Write = Callable[[ServedTable, Mapping[str, str]], None]
PAIRS = {
    "their writer, our clustering": (our_plan, their_write),
    "our writer, their clustering": (their_plan, our_write),
}


def each_pair(names: Sequence[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("plan", "write"), [PAIRS[n] for n in names], ids=names)


@each_pair(list(PAIRS))
def test_a_writer_that_is_preferred_wins(
    table: ServedTable, plan: Callable[[ServedTable], str], write: Write
) -> None:
    instant = plan(table)
    write(table, PREFER_WRITER)
    with pytest.raises(RealHudiError, match="Cannot resolve conflicts for overlapping writes"):
        execute_by_them(table, instant, PREFER_WRITER)
    with pytest.raises(ConflictError, match="has changed since its clustering was planned"):
        ours(table, PREFER_WRITER).execute(instant)
    check(table, ranges=RANGES)


@each_pair(some(list(PAIRS), 0))
def test_with_the_simple_strategy_the_clustering_wins(
    table: ServedTable, plan: Callable[[ServedTable], str], write: Write
) -> None:
    instant, before = plan(table), deepcopy(table.model)
    refusal = f"(?i)clustering.*{instant}|{instant}.*clustering"
    with pytest.raises((ConflictError, RealHudiError), match=refusal):
        write(table, SIMPLE)
    table.model = before
    if plan is our_plan:
        ours(table, SIMPLE).execute(instant)
    else:
        execute_by_them(table, instant, SIMPLE)
    assert table.shown_by_them("clustering")[instant] == "COMPLETED"
    check(table, ranges=RANGES)


ABORTED = ("{at}.clustering.aborted", "{at}.aborted", "{at}.clustering.paused")


def test_an_aborted_plan_is_pending_for_real_hudi_until_our_clean(table: ServedTable) -> None:
    instant = their_plan(table)
    for name in ABORTED:
        (table.path / ".hoodie/timeline" / name.format(at=instant)).touch()
    cancel = table.path / ".hoodie/.cancel" / instant
    cancel.parent.mkdir()
    cancel.touch()
    assert table.shown_by_them("clustering")[instant] == "REQUESTED"
    check(table, ranges=RANGES)
    their_clean(table, 30, {})
    assert table.shown_by_them("clustering")[instant] == "REQUESTED"
    with same_rows(table, ranges=RANGES):
        ours(table, {}).run("clean")
    assert instant not in table.shown_by_them("clustering")
    table.theirs("upsert", at(31, 0, 9), THEIR_SEVERAL)
    check(table, ranges=RANGES)
