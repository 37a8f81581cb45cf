"""Transactions: what storage that does not answer, a crash or a zombie leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TypeVar

import pytest

from lakewright.errors import (
    ConflictError,
    InvalidError,
    UnavailableError,
)
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import LogFile
from lakewright.storage.base import Storage
from lakewright.table.failed_writes import delete_orphan_files
from lakewright.table.options import Concurrency, FailedWritesPolicy, HeartbeatSettings
from lakewright.table.properties import METADATA_FOLDER
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from support.concurrency import InterruptedStorage
from support.tables import OPTIMISTIC, begin_action
from support.transactions import (
    METADATA_PARTITIONS,
    TransactionFixture,
    archive_instant,
    orphan_files,
    write_files,
)

Result = TypeVar("Result")


# Storage that does not answer


class Unanswered(CountingStorage):
    """Loses the answers to calls on paths that end as given; with `late` nothing happened yet."""

    def __init__(self, inner: Storage, method: str, end: str, *, late: bool = False) -> None:
        super().__init__(inner)
        self.method, self.end, self.late, self.on = method, end, late, True

    def _call(self, method: Callable[..., Result], *arguments: object) -> Result:
        lost = self.on and method.__name__ == self.method and str(arguments[0]).endswith(self.end)
        if lost and self.late:
            raise UnavailableError("no answer")
        result = super()._call(method, *arguments)
        if lost:
            raise UnavailableError("no answer")
        return result


def test_a_lost_answer_is_no_lost_commit() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "create", ".deltacommit")
    transaction = begin_action(fixture.writer(storage=storage), "deltacommit")
    instant = transaction.commit(write_files(transaction, "f1"))
    assert load_snapshot(fixture.storage).timeline.completed_writes == (instant,)
    assert fixture.leftovers() == [f"p1/{LogFile('f1', transaction.instant).name}"]


def test_a_commit_that_storage_did_not_take_may_be_tried_again_under_its_name() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "create", ".deltacommit", late=True)
    transaction = begin_action(fixture.writer(storage=storage), "deltacommit")
    metadata = write_files(transaction, "f1")
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    tried = next(path for method, path in storage.touched if method == "read" and "_" in path)
    storage.on = False
    instant = transaction.commit(metadata)
    assert tried.endswith(instant.file_name)
    assert load_snapshot(fixture.storage).timeline.completed_writes == (instant,)
    assert fixture.leftovers() == [f"p1/{LogFile('f1', transaction.instant).name}"]


def test_a_commit_that_arrives_late_is_found_by_the_next_try() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "create", ".deltacommit", late=True)
    transaction = begin_action(fixture.writer(storage=storage), "deltacommit")
    metadata = write_files(transaction, "f1")
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    path = next(path for method, path in storage.touched if method == "read" and "_" in path)
    fixture.storage.create(path, format_commit(metadata))
    instant = transaction.commit(CommitMetadata())
    assert path.endswith(instant.file_name)
    assert fixture.leftovers() == [f"p1/{LogFile('f1', transaction.instant).name}"]


def test_what_may_have_completed_is_not_withdrawn() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "create", ".deltacommit", late=True)
    transaction = begin_action(fixture.writer(storage=storage), "deltacommit")
    metadata = write_files(transaction, "f1")
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    transaction.abort()
    assert len(fixture.leftovers()) == 2
    # It stays pending; the next writer rolls it back.
    begin_action(fixture.writer(), "deltacommit").abort()
    assert fixture.leftovers_after_expiry() == []
    assert load_snapshot(fixture.storage).timeline.by_time == {}


def test_an_abort_that_finds_the_write_completed_reports_it() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "create", ".deltacommit", late=True)
    begun = begin_action(fixture.writer(storage=storage), "deltacommit")
    metadata = write_files(begun, "f1")
    with pytest.raises(UnavailableError):
        begun.commit(metadata)
    path = next(path for method, path in storage.touched if method == "read" and "_" in path)
    fixture.storage.create(path, format_commit(metadata))
    with pytest.raises(InvalidError, match="has completed"):
        begun.abort()
    assert len(load_snapshot(fixture.storage).timeline.completed_writes) == 1
    assert fixture.leftovers() == [f"p1/{LogFile('f1', begun.instant).name}"]


def test_markers_that_cannot_be_deleted_do_not_undo_a_commit() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    transaction._storage = Unanswered(fixture.storage, "delete_many", ".CREATE']", late=True)
    with pytest.warns(RuntimeWarning, match="markers of a completed write"):
        instant = transaction.commit(write_files(transaction, "f1"))
    assert load_snapshot(fixture.storage).timeline.completed_writes == (instant,)


def test_a_write_that_cannot_be_rolled_back_adds_a_note_to_the_error() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "delete", ".inflight", late=True)
    begun = begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    write_files(begun, "f1")
    with pytest.raises(ZeroDivisionError) as failed, begun:
        raise ZeroDivisionError
    assert "stays as it is" in failed.value.__notes__[0]
    # Its heart has stopped all the same, so the next writer can put it right.
    begin_action(fixture.writer(OPTIMISTIC), "deltacommit").abort()
    assert load_snapshot(fixture.storage).timeline.by_time == {}
    assert fixture.leftovers_after_expiry() == []


def test_a_begin_that_fails_half_way_leaves_nothing() -> None:
    fixture = TransactionFixture()
    storage = Unanswered(fixture.storage, "create", ".inflight")
    with pytest.raises(UnavailableError):
        begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    assert fixture.names() == fixture.leftovers() == []


def created_and_refused(storage: Storage, path: str, data: bytes) -> None:
    storage.create(path, data)
    raise ConflictError("the file exists already", path=path)


def test_a_requested_file_whose_answer_was_lost_is_the_writers_own() -> None:
    fixture = TransactionFixture()
    storage = InterruptedStorage(fixture.storage, r"\.requested$", created_and_refused)
    transaction = begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    completed = transaction.commit(write_files(transaction, "f1"))
    assert [instant.requested_at for instant in load_snapshot(fixture.storage).timeline] == [
        completed.requested_at
    ]


def test_without_a_shared_lock_a_requested_file_may_be_another_writers() -> None:
    fixture = TransactionFixture()
    storage = InterruptedStorage(fixture.storage, r"\.requested$", created_and_refused)
    transaction = begin_action(fixture.writer(storage=storage), "deltacommit")
    transaction.commit(write_files(transaction, "f1"))
    assert len(list(load_snapshot(fixture.storage).timeline)) == 2


def test_a_begin_that_finds_another_inflight_file_deletes_nothing_of_it() -> None:
    fixture = TransactionFixture()
    storage = InterruptedStorage(fixture.storage, r"\.inflight$", created_and_refused)
    with pytest.raises(ConflictError):
        begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    assert [name.rpartition(".")[2] for name in sorted(fixture.names())] == [
        "inflight",
        "requested",
    ]
    assert len([path for path in fixture.leftovers() if "heartbeat" in path]) == 1


# Crashes


def complete_one(writer: TransactionManager) -> None:
    transaction = begin_action(writer, "deltacommit")
    write_files(transaction, "f1")
    transaction.commit(write_files(transaction, "f2"))


def withdraw_one(writer: TransactionManager) -> None:
    transaction = begin_action(writer, "deltacommit")
    write_files(transaction, "f1", "f2")
    transaction.abort()


@pytest.mark.parametrize("options", [{}, OPTIMISTIC], ids=["alone", "several"])
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("work", [complete_one, withdraw_one])
def test_killed_anywhere_a_write_is_committed_or_rolled_back_after_the_next(
    work: Callable[[TransactionManager], None], after_effect: bool, options: Mapping[str, str]
) -> None:
    for survive in count():
        fixture = TransactionFixture({METADATA_PARTITIONS: "files"})
        fixture.storage.create(f"{METADATA_FOLDER}/files/f", b"")
        crashing = CrashingStorage(fixture.storage, survive, after_effect=after_effect)
        try:
            work(fixture.writer(options, crashing))
        except Crash:
            assert orphan_files(fixture.storage) == []
            check_committed_or_rolled_back(fixture, options)
        else:
            assert survive > 10
            return


def check_committed_or_rolled_back(fixture: TransactionFixture, options: Mapping[str, str]) -> None:
    # The heartbeat of the dead expires, and so does a lock that it held.
    fixture.clock.advance(600_000)
    fixture.storage.delete(".hoodie/lock")
    transaction = begin_action(fixture.writer(options), "deltacommit")
    snapshot = transaction.snapshot
    assert not snapshot.timeline.pending()
    committed = snapshot.timeline.completed_writes
    expected = {f"p1/{LogFile('f2', i.requested_at).name}" for i in committed}
    assert {f.path for f in fixture.storage.list_tree("p1")} == expected
    transaction.commit(write_files(transaction, "f2"))
    assert not snapshot.timeline.by_time or committed


@pytest.mark.parametrize("after_effect", [False, True])
def test_killed_while_it_rolls_back_the_next_ends_it(after_effect: bool) -> None:
    for survive in count():
        fixture = TransactionFixture()
        dead = begin_action(fixture.writer(), "deltacommit")
        write_files(dead, "f1")
        crashing = CrashingStorage(fixture.storage, survive, after_effect=after_effect)
        try:
            complete_one(fixture.writer(storage=crashing))
        except Crash:
            check_committed_or_rolled_back(fixture, {})
            rollbacks = [name for name in fixture.names() if name.endswith(".rollback")]
            assert 1 <= len(rollbacks) <= 2
        else:
            assert survive > 10
            return


def test_what_a_zombie_writes_after_its_rollback_is_removed_by_the_next_writer() -> None:
    fixture = TransactionFixture()
    zombie = begin_action(fixture.writer(), "deltacommit")
    begin_action(fixture.writer(), "deltacommit").commit(CommitMetadata())
    write_files(zombie, "f1")
    assert orphan_files(fixture.storage) != []
    begin_action(fixture.writer(), "deltacommit").abort()
    assert orphan_files(fixture.storage) == []
    assert fixture.leftovers_after_expiry() == []


def test_what_a_zombie_writes_before_its_rollback_ends_is_removed_with_it() -> None:
    for survive in count():
        fixture = TransactionFixture()
        zombie = begin_action(fixture.writer(), "deltacommit")
        crashing = CrashingStorage(fixture.storage, survive)
        try:
            begin_action(fixture.writer(storage=crashing), "deltacommit")
        except Crash:
            write_files(zombie, "f1")
            begin_action(fixture.writer(), "deltacommit").abort()
            assert orphan_files(fixture.storage) == []
            assert fixture.leftovers_after_expiry() == []
        else:
            assert survive > 6
            return


def test_orphan_files_are_distinguished_from_live_completed_and_archived_ones() -> None:
    fixture = TransactionFixture()
    writer = fixture.writer(OPTIMISTIC)
    begun = [begin_action(writer, "deltacommit") for _ in range(5)]
    older, archived, completed, aborted, pending = begun
    for transaction in (older, aborted):
        transaction.abort()
    instants = [
        archived.commit(write_files(archived, "f0")),
        completed.commit(write_files(completed, "f1")),
    ]
    archive_instant(fixture, instants[0])
    for transaction in begun:
        write_files(transaction, "f2")
    delete_orphan_files(load_snapshot(fixture.storage), HeartbeatSettings(), fixture.clock.now_ms())
    data = {f.name for f in fixture.storage.list_files("p1")}
    expected = [LogFile("f0", archived.instant).name, LogFile("f1", completed.instant).name]
    expected += [LogFile("f2", pending.instant).name]
    assert data == set(expected)
    fixture.leftovers_after_expiry()
    assert fixture.storage.list_folders(".hoodie/.temp") == [f".hoodie/.temp/{pending.instant}"]
    pending.abort()


def test_unknown_markers_are_left_alone() -> None:
    fixture = TransactionFixture()
    aborted = begin_action(fixture.writer(), "deltacommit")
    aborted.abort()
    begin_action(fixture.writer(), "deltacommit").commit(CommitMetadata())
    foreign = f".hoodie/.temp/{aborted.instant}/p1/{LogFile('f1', '1').name}.marker.CREATE"
    fixture.storage.create(foreign, b"")
    fixture.storage.create(".hoodie/.temp/notes/n", b"")
    with pytest.warns(RuntimeWarning, match="may be left"):
        delete_orphan_files(
            load_snapshot(fixture.storage), HeartbeatSettings(), fixture.clock.now_ms()
        )
    assert fixture.leftovers() == [foreign, ".hoodie/.temp/notes/n"]


def test_the_options_of_hudi_make_a_writer() -> None:
    fixture = TransactionFixture()
    options = {
        **OPTIMISTIC,
        "hoodie.write.lock.wait_time_ms": "5",
        "hoodie.client.heartbeat.interval_in_ms": "7000",
    }
    writer = fixture.writer(options)
    assert writer.transaction.concurrency is Concurrency.OPTIMISTIC
    assert writer.transaction.failed_writes is FailedWritesPolicy.LAZY
    assert (writer.lock.wait_ms, writer.heartbeat.interval_ms) == (5, 7000)
