"""Transactions: what storage that does not answer, a crash or a zombie leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TypeVar

import pytest
from hooks import Hooked
from writers import OPTIMISTIC, TRUSTED, World, archive, files_without_instant, write
from written import begin_action

from lakewright.errors import (
    ConflictError,
    InvalidError,
    UnavailableError,
)
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.file_group import LogFile
from lakewright.storage.base import Storage
from lakewright.table.options import Concurrency, FailedWritesPolicy, HeartbeatSettings
from lakewright.table.orphan_files import delete_orphan_files
from lakewright.table.properties import METADATA_FOLDER
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage

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
    world = World()
    storage = Unanswered(world.storage, "create", ".deltacommit")
    transaction = begin_action(world.writer(storage=storage), "deltacommit")
    done = transaction.commit(write(transaction, "f1"))
    assert load_snapshot(world.storage).timeline.completed_writes == (done,)
    assert world.left() == [f"p1/{LogFile('f1', transaction.instant).name}"]


def test_a_commit_that_storage_did_not_take_may_be_tried_again_under_its_name() -> None:
    world = World()
    storage = Unanswered(world.storage, "create", ".deltacommit", late=True)
    transaction = begin_action(world.writer(storage=storage), "deltacommit")
    metadata = write(transaction, "f1")
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    tried = next(path for method, path in storage.touched if method == "read" and "_" in path)
    storage.on = False
    done = transaction.commit(metadata)
    assert tried.endswith(done.file_name)
    assert load_snapshot(world.storage).timeline.completed_writes == (done,)
    assert world.left() == [f"p1/{LogFile('f1', transaction.instant).name}"]


def test_a_commit_that_arrives_late_is_found_by_the_next_try() -> None:
    world = World()
    storage = Unanswered(world.storage, "create", ".deltacommit", late=True)
    transaction = begin_action(world.writer(storage=storage), "deltacommit")
    metadata = write(transaction, "f1")
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    path = next(path for method, path in storage.touched if method == "read" and "_" in path)
    world.storage.create(path, format_commit(metadata))
    done = transaction.commit(CommitMetadata())
    assert path.endswith(done.file_name)
    assert world.left() == [f"p1/{LogFile('f1', transaction.instant).name}"]


def test_what_may_have_completed_is_not_withdrawn() -> None:
    world = World()
    storage = Unanswered(world.storage, "create", ".deltacommit", late=True)
    transaction = begin_action(world.writer(storage=storage), "deltacommit")
    metadata = write(transaction, "f1")
    with pytest.raises(UnavailableError):
        transaction.commit(metadata)
    transaction.abort()
    assert len(world.left()) == 2
    # It stays for the next writer, who finds it pending.
    begin_action(world.writer(), "deltacommit").abort()
    assert world.left_in_the_end() == []
    assert load_snapshot(world.storage).timeline.by_time == {}


def test_a_withdrawal_that_finds_the_write_completed_says_so() -> None:
    world = World()
    storage = Unanswered(world.storage, "create", ".deltacommit", late=True)
    begun = begin_action(world.writer(storage=storage), "deltacommit")
    metadata = write(begun, "f1")
    with pytest.raises(UnavailableError):
        begun.commit(metadata)
    path = next(path for method, path in storage.touched if method == "read" and "_" in path)
    world.storage.create(path, format_commit(metadata))
    with pytest.raises(InvalidError, match="has completed"):
        begun.abort()
    assert len(load_snapshot(world.storage).timeline.completed_writes) == 1
    assert world.left() == [f"p1/{LogFile('f1', begun.instant).name}"]


def test_markers_that_cannot_be_deleted_do_not_undo_a_commit() -> None:
    world = World()
    transaction = begin_action(world.writer(), "deltacommit")
    transaction._storage = Unanswered(world.storage, "delete_many", ".CREATE']", late=True)
    with pytest.warns(RuntimeWarning, match="markers of a completed write"):
        done = transaction.commit(write(transaction, "f1"))
    assert load_snapshot(world.storage).timeline.completed_writes == (done,)


def test_a_write_that_cannot_be_taken_back_says_so_beside_the_error() -> None:
    world = World()
    storage = Unanswered(world.storage, "delete", ".inflight", late=True)
    begun = begin_action(world.writer(OPTIMISTIC, storage), "deltacommit")
    write(begun, "f1")
    with pytest.raises(ZeroDivisionError) as failed, begun:
        raise ZeroDivisionError
    assert "stays as it is" in failed.value.__notes__[0]
    # Its heart has stopped all the same, so the next writer can put it right.
    begin_action(world.writer(OPTIMISTIC), "deltacommit").abort()
    assert load_snapshot(world.storage).timeline.by_time == {}
    assert world.left_in_the_end() == []


def test_a_begin_that_fails_half_way_leaves_nothing() -> None:
    world = World()
    storage = Unanswered(world.storage, "create", ".inflight")
    with pytest.raises(UnavailableError):
        begin_action(world.writer(OPTIMISTIC, storage), "deltacommit")
    assert world.names() == world.left() == []


def created_and_refused(storage: Storage, path: str, data: bytes) -> None:
    storage.create(path, data)
    raise ConflictError("the file exists already", path=path)


def test_a_requested_file_whose_answer_was_lost_is_the_writers_own() -> None:
    world = World()
    storage = Hooked(world.storage, r"\.requested$", created_and_refused)
    transaction = begin_action(world.writer(OPTIMISTIC, storage), "deltacommit")
    done = transaction.commit(write(transaction, "f1"))
    assert [instant.requested_at for instant in load_snapshot(world.storage).timeline] == [
        done.requested_at
    ]


def test_without_a_shared_lock_a_requested_file_may_be_another_writers() -> None:
    world = World()
    storage = Hooked(world.storage, r"\.requested$", created_and_refused)
    transaction = begin_action(world.writer(storage=storage), "deltacommit")
    transaction.commit(write(transaction, "f1"))
    assert len(list(load_snapshot(world.storage).timeline)) == 2


def test_a_begin_that_finds_another_inflight_file_deletes_nothing_of_it() -> None:
    world = World()
    storage = Hooked(world.storage, r"\.inflight$", created_and_refused)
    with pytest.raises(ConflictError):
        begin_action(world.writer(OPTIMISTIC, storage), "deltacommit")
    assert [name.rpartition(".")[2] for name in sorted(world.names())] == ["inflight", "requested"]
    assert len([path for path in world.left() if "heartbeat" in path]) == 1


# Crashes


def complete_one(writer: TransactionManager) -> None:
    transaction = begin_action(writer, "deltacommit")
    write(transaction, "f1")
    transaction.commit(write(transaction, "f2"))


def withdraw_one(writer: TransactionManager) -> None:
    transaction = begin_action(writer, "deltacommit")
    write(transaction, "f1", "f2")
    transaction.abort()


@pytest.mark.parametrize("options", [{}, OPTIMISTIC], ids=["alone", "several"])
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("work", [complete_one, withdraw_one])
def test_killed_anywhere_a_write_is_whole_or_gone_after_the_next(
    work: Callable[[TransactionManager], None], after_effect: bool, options: Mapping[str, str]
) -> None:
    for survive in count():
        world = World({TRUSTED: "files"})
        world.storage.create(f"{METADATA_FOLDER}/files/f", b"")
        crashing = CrashingStorage(world.storage, survive, after_effect=after_effect)
        try:
            work(world.writer(options, crashing))
        except Crash:
            assert files_without_instant(world.storage) == []
            check_whole_or_gone(world, options)
        else:
            assert survive > 10
            return


def check_whole_or_gone(world: World, options: Mapping[str, str]) -> None:
    # The heartbeat of the dead expires, and so does a lock that it held.
    world.clock.advance(600_000)
    world.storage.delete(".hoodie/lock")
    transaction = begin_action(world.writer(options), "deltacommit")
    snapshot = transaction.snapshot
    assert not snapshot.timeline.pending()
    committed = snapshot.timeline.completed_writes
    expected = {f"p1/{LogFile('f2', i.requested_at).name}" for i in committed}
    assert {f.path for f in world.storage.list_tree("p1")} == expected
    transaction.commit(write(transaction, "f2"))
    assert not snapshot.timeline.by_time or committed


@pytest.mark.parametrize("after_effect", [False, True])
def test_killed_while_it_rolls_back_the_next_ends_it(after_effect: bool) -> None:
    for survive in count():
        world = World()
        dead = begin_action(world.writer(), "deltacommit")
        write(dead, "f1")
        crashing = CrashingStorage(world.storage, survive, after_effect=after_effect)
        try:
            complete_one(world.writer(storage=crashing))
        except Crash:
            check_whole_or_gone(world, {})
            rollbacks = [name for name in world.names() if name.endswith(".rollback")]
            assert 1 <= len(rollbacks) <= 2
        else:
            assert survive > 10
            return


def test_what_a_zombie_writes_after_its_rollback_is_removed_by_the_next_writer() -> None:
    world = World()
    zombie = begin_action(world.writer(), "deltacommit")
    begin_action(world.writer(), "deltacommit").commit(CommitMetadata())
    write(zombie, "f1")
    assert files_without_instant(world.storage) != []
    begin_action(world.writer(), "deltacommit").abort()
    assert files_without_instant(world.storage) == []
    assert world.left_in_the_end() == []


def test_what_a_zombie_writes_before_its_rollback_ends_is_removed_with_it() -> None:
    for survive in count():
        world = World()
        zombie = begin_action(world.writer(), "deltacommit")
        crashing = CrashingStorage(world.storage, survive)
        try:
            begin_action(world.writer(storage=crashing), "deltacommit")
        except Crash:
            write(zombie, "f1")
            begin_action(world.writer(), "deltacommit").abort()
            assert files_without_instant(world.storage) == []
            assert world.left_in_the_end() == []
        else:
            assert survive > 6
            return


def test_strays_are_told_from_what_lives_what_is_done_and_what_is_archived() -> None:
    world = World()
    writer = world.writer(OPTIMISTIC)
    begun = [begin_action(writer, "deltacommit") for _ in range(5)]
    older, archived, done, gone, pending = begun
    for transaction in (older, gone):
        transaction.abort()
    instants = [archived.commit(write(archived, "f0")), done.commit(write(done, "f1"))]
    archive(world, instants[0])
    for transaction in begun:
        write(transaction, "f2")
    delete_orphan_files(load_snapshot(world.storage), HeartbeatSettings(), world.clock.now_ms())
    data = {f.name for f in world.storage.list_files("p1")}
    kept = [LogFile("f0", archived.instant).name, LogFile("f1", done.instant).name]
    kept += [LogFile("f2", pending.instant).name]
    assert data == set(kept)
    world.left_in_the_end()
    assert world.storage.list_folders(".hoodie/.temp") == [f".hoodie/.temp/{pending.instant}"]
    pending.abort()


def test_markers_that_nobody_understands_are_left_alone() -> None:
    world = World()
    gone = begin_action(world.writer(), "deltacommit")
    gone.abort()
    begin_action(world.writer(), "deltacommit").commit(CommitMetadata())
    foreign = f".hoodie/.temp/{gone.instant}/p1/{LogFile('f1', '1').name}.marker.CREATE"
    world.storage.create(foreign, b"")
    world.storage.create(".hoodie/.temp/notes/n", b"")
    with pytest.warns(RuntimeWarning, match="may be left"):
        delete_orphan_files(load_snapshot(world.storage), HeartbeatSettings(), world.clock.now_ms())
    assert world.left() == [foreign, ".hoodie/.temp/notes/n"]


def test_the_options_of_hudi_make_a_writer() -> None:
    world = World()
    options = {
        **OPTIMISTIC,
        "hoodie.write.lock.wait_time_ms": "5",
        "hoodie.client.heartbeat.interval_in_ms": "7000",
    }
    writer = world.writer(options)
    assert writer.transaction.concurrency is Concurrency.OPTIMISTIC
    assert writer.transaction.failed_writes is FailedWritesPolicy.LAZY
    assert (writer.lock.wait_ms, writer.heartbeat.interval_ms) == (5, 7000)
