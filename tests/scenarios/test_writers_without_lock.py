"""Two writers without a common lock: which of them notices the other, and which one aborts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from lakewright.errors import ConflictError, UnavailableError
from lakewright.format.timeline_metadata import format_rollback_plan
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import InstantRef, RollbackPlan
from lakewright.storage.base import Storage
from lakewright.table.rollback import CompletedConcurrentlyError, resume_rollbacks, rollback_locked
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from support.tables import TIMELINE, begin_action, time_generator
from support.transactions import TransactionFixture, write_files

Result = TypeVar("Result")
Acts = dict[int, Callable[[], object]]


class Watched(CountingStorage):
    """Others act right before the nth look at the timeline since this began."""

    def __init__(self, inner: Storage, acts: Acts) -> None:
        super().__init__(inner)
        self.acts = acts
        self.looks = 0

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if method.__name__ == "list_files" and arguments[0] == TIMELINE:
            self.looks += 1
            self.acts.get(self.looks, lambda: None)()
        return super()._call(method, *arguments)


# The first look of a writer that completes is before its commit, the second after it.


def rollback_of(fixture: TransactionFixture, at: str, state: State) -> Instant:
    """A rollback that another process has begun."""
    rollback = Instant(str(int(at) + 60_000), Action.ROLLBACK, state)
    plan = format_rollback_plan(RollbackPlan(instant=InstantRef(at, "deltacommit")))
    fixture.put(rollback, plan if state is State.REQUESTED else b"")
    return rollback


def test_a_rollback_that_is_withdrawn_leaves_the_write() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    at, metadata = transaction.instant, write_files(transaction, "f1")

    def withdraw() -> None:
        (name,) = [name for name in fixture.names() if "rollback" in name]
        fixture.storage.delete(f"{TIMELINE}/{name}")

    acts: Acts = {2: lambda: rollback_of(fixture, at, State.REQUESTED), 4: withdraw}
    transaction._storage = Watched(fixture.storage, acts)
    instant = transaction.commit(metadata)
    assert load_snapshot(fixture.storage).timeline.instants == (instant,)


@pytest.mark.parametrize("carried_out", [False, True], ids=["never decided", "carried out"])
def test_a_writer_that_is_being_rolled_back_removes_its_commit(carried_out: bool) -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    at, metadata = transaction.instant, write_files(transaction, "f1")
    acts: Acts = {2: lambda: rollback_of(fixture, at, State.REQUESTED)}
    if carried_out:
        acts[3] = lambda: rollback_of(fixture, at, State.INFLIGHT)
    transaction._storage = storage = Watched(fixture.storage, acts)
    with pytest.raises(ConflictError, match="rolled back by another writer"):
        transaction.commit(metadata)
    assert storage.looks == (3 if carried_out else 7)
    assert not load_snapshot(fixture.storage).timeline.completed(Action.DELTA_COMMIT)
    transaction.abort()
    assert fixture.leftovers() == []


def test_a_look_that_is_not_answered_may_be_repeated() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    metadata = write_files(transaction, "f1")

    def fail() -> None:
        raise UnavailableError("no answer")

    transaction._storage = Watched(fixture.storage, {2: fail})
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    instant = transaction.commit(metadata)
    assert load_snapshot(fixture.storage).timeline.instants == (instant,)
    assert ".temp" not in str(fixture.leftovers())


def test_a_write_that_completes_as_it_is_to_be_rolled_back_stays() -> None:
    fixture = TransactionFixture()
    slow = begin_action(fixture.writer(), "deltacommit")
    metadata = write_files(slow, "f1")
    snapshot = load_snapshot(fixture.storage)
    (target,) = snapshot.timeline.pending()
    instant = slow.commit(metadata)
    with pytest.raises(CompletedConcurrentlyError):
        rollback_locked(snapshot, target, time_generator(snapshot), fixture.clock, by_markers=True)
    after = load_snapshot(fixture.storage)
    assert after.timeline.instants == (instant,)
    assert all(fixture.storage.exists(s.path or "") for s in metadata.write_stats())


def test_a_resumed_rollback_that_had_not_begun_to_delete_gives_way_as_well() -> None:
    fixture = TransactionFixture()
    slow = begin_action(fixture.writer(), "deltacommit")
    metadata = write_files(slow, "f1")
    rollback = rollback_of(fixture, slow.instant, State.REQUESTED)
    snapshot = load_snapshot(fixture.storage)
    fixture.storage.delete(f"{TIMELINE}/{rollback.file_name}")
    instant = slow.commit(metadata)
    rollback_of(fixture, slow.instant, State.REQUESTED)
    assert (
        resume_rollbacks(snapshot, time_generator(snapshot), fixture.clock, by_markers=True) == ()
    )
    assert load_snapshot(fixture.storage).timeline.instants == (instant,)


def test_a_completed_file_that_comes_while_its_write_is_rolled_back_goes_with_it() -> None:
    fixture = TransactionFixture()
    dead = begin_action(fixture.writer(), "deltacommit")
    write_files(dead, "f1")
    late = Instant(dead.instant, Action.DELTA_COMMIT, completed_at=str(int(dead.instant) + 1))
    # The next writer looks when it begins, before it deletes anything, and when it has.
    storage = Watched(fixture.storage, {3: lambda: fixture.put(late)})
    begin_action(fixture.writer(storage=storage), "deltacommit").abort()
    timeline = load_snapshot(fixture.storage).timeline
    assert [i.action for i in timeline] == ["rollback"]
    assert fixture.leftovers_after_expiry() == []


def test_a_write_on_top_of_one_that_vanished_does_not_complete() -> None:
    fixture = TransactionFixture()
    first = begin_action(fixture.writer(), "deltacommit")
    instant = first.commit(write_files(first, "f1"))
    second = begin_action(fixture.writer(), "deltacommit")
    fixture.storage.delete(f"{TIMELINE}/{instant.file_name}")
    with pytest.raises(ConflictError, match="builds upon no longer exists"):
        second.commit(write_files(second, "f2"))
    second.abort()
