"""Locks that are taken away: a write looks again and goes on, and never completes without one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest

from lakewright.errors import ConflictError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import LogFile
from lakewright.storage.base import Storage
from lakewright.table.locks.retry import LostLockError
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from support.tables import OPTIMISTIC, TIMELINE, begin_action
from support.transactions import TransactionFixture, write_files

Result = TypeVar("Result")

LOCK = ".hoodie/lock"


class Careless(CountingStorage):
    """Another process deletes the lock file right before some calls, as real Hudi does."""

    def __init__(
        self,
        inner: Storage,
        when: Callable[[int, str, str], bool],
        then: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(inner)
        self.when, self.then = when, then
        self.count = self.losses = 0

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        number, self.count = self.count, self.count + 1
        path = str(arguments[0])
        if self.when(number, method.__name__, path) and self.inner.exists(LOCK):
            self.inner.delete(LOCK)
            self.losses += 1
            self.then()
        return super()._call(method, *arguments)


def is_nth(nth: int, number: int, method: str, path: str) -> bool:
    return number == nth


def complete_one(fixture: TransactionFixture, storage: Storage) -> str:
    transaction = begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    transaction.commit(write_files(transaction, "f1"))
    return transaction.instant


def test_a_lock_that_is_lost_once_at_any_call_does_no_harm() -> None:
    losses = 0
    for nth in range(100):
        fixture = TransactionFixture()
        dead = begin_action(fixture.writer(), "deltacommit")
        write_files(dead, "f0")
        storage = Careless(fixture.storage, partial(is_nth, nth))
        at = complete_one(fixture, storage)
        snapshot = load_snapshot(fixture.storage)
        assert [i.requested_at for i in snapshot.timeline.completed_writes] == [at]
        assert not snapshot.timeline.pending()
        assert fixture.leftovers_after_expiry() == [f"p1/{LogFile('f1', at).name}"]
        losses += storage.losses
        if storage.count <= nth:
            break
    assert losses > 10


def as_it_begins(number: int, method: str, path: str) -> bool:
    """As the heartbeat starts: a time was given, and the lock is about to be verified."""
    return method == "replace" and ".heartbeat" in path


def test_a_writer_that_keeps_losing_the_lock_before_it_begins_leaves_nothing() -> None:
    fixture = TransactionFixture()
    storage = Careless(fixture.storage, as_it_begins)
    with pytest.raises(LostLockError):
        begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    assert storage.losses == 4
    assert fixture.names() == fixture.leftovers() == []


def test_a_writer_that_keeps_losing_the_lock_before_it_completes_does_not_commit() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    metadata = write_files(transaction, "f1")
    storage = Careless(fixture.storage, lambda number, method, path: path == TIMELINE)
    transaction._storage = storage
    with pytest.raises(LostLockError):
        transaction.commit(metadata)
    assert storage.losses == 4
    assert load_snapshot(fixture.storage).timeline.completed() == ()
    transaction.abort()
    assert fixture.names() == fixture.leftovers() == []


def test_commits_that_others_made_under_the_lost_lock_are_checked_for_conflicts() -> None:
    fixture = TransactionFixture()
    mine, theirs = (begin_action(fixture.writer(OPTIMISTIC), "deltacommit") for _ in range(2))
    others = write_files(theirs, "f1")
    # The timeline was looked at when they take the lock: their write is not on it yet.
    storage = Careless(
        fixture.storage,
        lambda number, method, path: (method, path) == ("read", LOCK) and not has_writes(fixture),
        lambda: theirs.commit(others),
    )
    mine.writer = fixture.writer(OPTIMISTIC, storage)
    with pytest.raises(ConflictError, match="same file groups"):
        mine.commit(write_files(mine, "f1"))
    assert storage.losses == 1
    mine.abort()
    assert fixture.leftovers() == [f"p1/{LogFile('f1', theirs.instant).name}"]


def has_writes(fixture: TransactionFixture) -> bool:
    return bool(load_snapshot(fixture.storage).timeline.completed_writes)


def test_a_writer_that_begins_under_a_lost_lock_begins_after_concurrent_writes() -> None:
    fixture = TransactionFixture()
    others: list[str] = []

    def take_over() -> None:
        # Their clock is ahead, and so are their times.
        fixture.clock.advance(60_000)
        instant = begin_action(fixture.writer(OPTIMISTIC), "deltacommit").commit(CommitMetadata())
        others.append(instant.completed_at or "")
        fixture.clock.advance(-60_000)

    storage = Careless(fixture.storage, lambda *call: not others and as_it_begins(*call), take_over)
    transaction = begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    assert transaction.instant > others[0]
    assert len(transaction.snapshot.timeline.completed_writes) == 1
    transaction.abort()
