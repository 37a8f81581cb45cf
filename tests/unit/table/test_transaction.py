"""Transactions: their storage calls, their conflicts, and what a crash leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakewright.errors import (
    ConflictError,
    InvalidError,
    UnsupportedError,
)
from lakewright.format.timeline_metadata import (
    format_commit,
    format_compaction_plan,
    format_requested_replace,
    format_rollback_plan,
    parse_commit,
)
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import BaseFile, LogFile
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import (
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    CompactionOperation,
    CompactionPlan,
    InstantRef,
    RequestedReplace,
    RollbackPlan,
)
from lakewright.table.markers import marked_files
from lakewright.table.properties import METADATA_FOLDER, has_metadata_table, update_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import Transaction
from lakewright.testing.storage import CountingStorage, CrashingStorage
from support.tables import OPTIMISTIC, TIMELINE, begin_action
from support.transactions import (
    METADATA_PARTITIONS,
    TransactionFixture,
    archive_instant,
    write_files,
)


def test_a_write_of_a_lone_writer_makes_no_needless_requests() -> None:
    fixture = TransactionFixture()
    storage = CountingStorage(fixture.storage)
    transaction = begin_action(fixture.writer(storage=storage), "deltacommit")
    at = transaction.instant
    assert storage.touched == [
        ("read", ".hoodie/hoodie.properties"),
        ("list_files", TIMELINE),
        ("list_folders", ".hoodie/.temp"),
        ("create", f"{TIMELINE}/{at}.deltacommit.requested"),
        ("list_files", TIMELINE),
        ("create", f"{TIMELINE}/{at}.deltacommit.inflight"),
    ]
    metadata = write_files(transaction, "f1")
    storage.reset()
    instant = transaction.commit(metadata)
    assert storage.touched == [
        ("list_tree", f".hoodie/.temp/{at}"),
        ("read", ".hoodie/hoodie.properties"),
        ("list_files", TIMELINE),
        ("list_folders", ".hoodie/.temp"),
        ("create", f"{TIMELINE}/{instant.file_name}"),
        ("list_files", TIMELINE),
        ("list_tree", f".hoodie/.temp/{at}"),
        ("delete_many", f".hoodie/.temp/{at}/p1/{LogFile('f1', at).name}.marker.CREATE"),
    ]


def test_a_completed_write_is_on_the_timeline_and_leaves_nothing_else() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(OPTIMISTIC), "commit", requested=b"r", inflight=b"i")
    metadata = write_files(transaction, "f1", base=True)
    instant = transaction.commit(metadata)
    assert instant.requested_at == transaction.instant
    assert (instant.completed_at or "") > transaction.instant
    assert sorted(fixture.names()) == sorted(
        [
            f"{instant.requested_at}.commit.requested",
            f"{instant.requested_at}.inflight",
            instant.file_name,
        ]
    )
    assert fixture.storage.read(f"{TIMELINE}/{instant.requested_at}.inflight") == b"i"
    stored = parse_commit(fixture.storage.read(f"{TIMELINE}/{instant.file_name}"))
    assert stored.file_groups() == metadata.file_groups()
    assert fixture.leftovers() == [f"p1/{BaseFile('f1', '0-0-0', instant.requested_at).name}"]


COMPLETED = {
    "commit": "commit",
    "deltacommit": "deltacommit",
    "replacecommit": "replacecommit",
    "clustering": "replacecommit",
    "compaction": "commit",
    "logcompaction": "deltacommit",
}


@pytest.mark.parametrize(("action", "completed"), COMPLETED.items())
def test_every_action_completes_under_its_name(action: str, completed: str) -> None:
    fixture = TransactionFixture()
    instant = begin_action(fixture.writer(), action).commit(CommitMetadata())
    assert instant.action == completed
    assert load_snapshot(fixture.storage).timeline.instants == (instant,)


def test_what_writes_nothing_is_no_transaction() -> None:
    fixture = TransactionFixture()
    with pytest.raises(InvalidError, match="actions that write"):
        begin_action(fixture.writer(), "clean")
    assert fixture.names() == []


def test_times_grow_even_if_the_clock_is_set_back() -> None:
    fixture = TransactionFixture()
    times = []
    for _ in range(3):
        instant = begin_action(fixture.writer(), "commit").commit(CommitMetadata())
        times += [instant.requested_at, instant.completed_at or ""]
        fixture.clock.advance(-3_600_000)
    assert times == sorted(set(times))


def test_a_time_that_is_taken_is_passed_over() -> None:
    fixture = TransactionFixture()

    class Racing(CountingStorage):
        """Another process without our lock takes the first time that the writer requests."""

        def create(self, path: str, data: bytes) -> None:
            if path.endswith(".requested") and not self.inner.list_files(TIMELINE):
                self.inner.create(path, b"theirs")
            super().create(path, data)

    writer = fixture.writer(OPTIMISTIC, Racing(fixture.storage))
    transaction = begin_action(writer, "deltacommit")
    requested = [name for name in fixture.names() if name.endswith("requested")]
    assert len(requested) == 2
    assert requested[1].startswith(transaction.instant)
    assert [f for f in fixture.leftovers() if "heartbeat" in f] == [
        f".hoodie/.heartbeat/{transaction.instant}"
    ]
    transaction.abort()


def test_files_of_failed_attempts_are_deleted_before_the_write_is_visible() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    write_files(transaction, "f1")
    metadata = write_files(transaction, "f2")
    transaction.commit(metadata)
    assert [path for path in fixture.leftovers() if path.startswith("p1/")] == [
        f"p1/{LogFile('f2', transaction.instant).name}"
    ]
    # The attempt has not reported: it may make its file once more.
    failed = f"p1/{LogFile('f1', transaction.instant).name}"
    assert marked_files(fixture.storage, transaction.instant) == (failed,)


def test_a_commit_may_not_list_files_that_are_not_its_own() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    other = LogFile("f1", "20200101000000000").name
    for path in (f"p1/{other}", "p1/notes.txt", None):
        stat = WriteStat(file_id="f1", path=path)
        with pytest.raises(InvalidError, match="not one of its own"):
            transaction.commit(CommitMetadata(stats={"p1": (stat,)}))
    assert load_snapshot(fixture.storage).timeline.completed() == ()


def test_a_transaction_ends_once() -> None:
    fixture = TransactionFixture()
    first = begin_action(fixture.writer(), "commit")
    first.commit(CommitMetadata())
    with pytest.raises(InvalidError, match="is over"):
        first.commit(CommitMetadata())
    with pytest.raises(InvalidError, match="roll it back"):
        first.abort()
    second = begin_action(fixture.writer(), "commit")
    second.abort()
    second.abort()
    with pytest.raises(InvalidError, match="is over"):
        second.commit(CommitMetadata())


def fail(begun: Transaction, work: Callable[[Transaction], object]) -> None:
    with begun:
        work(begun)
        raise ZeroDivisionError


def test_a_block_that_fails_aborts_its_write() -> None:
    fixture = TransactionFixture()
    with pytest.raises(ZeroDivisionError):
        fail(
            begin_action(fixture.writer(OPTIMISTIC), "deltacommit"),
            lambda begun: write_files(begun, "f1"),
        )
    with begin_action(fixture.writer(OPTIMISTIC), "deltacommit") as begun:
        write_files(begun, "f1")
    assert fixture.names() == []
    assert all(path.startswith(".hoodie/.temp/") for path in fixture.leftovers())


def test_a_block_that_fails_when_all_attempts_have_reported_leaves_no_trace() -> None:
    fixture = TransactionFixture()
    begun = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    with pytest.raises(ZeroDivisionError):
        fail(begun, lambda begun: begun.report(write_files(begun, "f1").files()))
    assert fixture.names() == fixture.leftovers() == []


def test_a_block_that_fails_after_it_completed_keeps_its_write() -> None:
    fixture = TransactionFixture()
    begun = begin_action(fixture.writer(), "deltacommit")
    with pytest.raises(ZeroDivisionError):
        fail(begun, lambda begun: begun.commit(write_files(begun, "f1")))
    assert len(load_snapshot(fixture.storage).timeline.completed_writes) == 1
    assert fixture.leftovers() == [f"p1/{LogFile('f1', begun.instant).name}"]


# Others


def test_another_writer_of_the_same_group_is_a_conflict_also_without_a_lock() -> None:
    for options in ({}, OPTIMISTIC):
        fixture = TransactionFixture()
        # A lone writer takes what is pending for dead; here two do not know of each other.
        without_cleaning = {**options, "hoodie.clean.failed.writes.policy": "NEVER"}
        slow, fast = (
            begin_action(fixture.writer(without_cleaning), "deltacommit") for _ in range(2)
        )
        mine, theirs = write_files(slow, "f1", "f2"), write_files(fast, "f2")
        instant = fast.commit(theirs)
        with pytest.raises(ConflictError, match="same file groups") as conflict:
            slow.commit(mine)
        assert conflict.value.facts == {
            "instant": slow.instant,
            "other": instant.file_name,
            "groups": (("p1", "f2"),),
        }
        slow.abort()
        assert fixture.leftovers() == [f"p1/{LogFile('f2', fast.instant).name}"]
        assert load_snapshot(fixture.storage).timeline.instants == (instant,)


def test_writers_of_other_groups_complete_in_any_order() -> None:
    fixture = TransactionFixture()
    slow, fast = (begin_action(fixture.writer(OPTIMISTIC), "deltacommit") for _ in range(2))
    instants = [fast.commit(write_files(fast, "f1")), slow.commit(write_files(slow, "f2"))]
    assert load_snapshot(fixture.storage).timeline.by_completion == tuple(instants)


def test_writers_that_do_not_block_share_a_bucket() -> None:
    fixture = TransactionFixture()
    bucket = "00000003-0000-0000-0000-000000000000-0"
    options = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    slow, fast = (begin_action(fixture.writer(options), "deltacommit") for _ in range(2))
    fast.commit(write_files(fast, bucket))
    slow.commit(write_files(slow, bucket))
    assert len(load_snapshot(fixture.storage).timeline.completed_writes) == 2


def later(transaction: Transaction, seconds: int = 1) -> str:
    return str(int(transaction.instant) + seconds * 1000)


def clustering_of(file_id: str) -> bytes:
    slices = (ClusteringSlice(partition="p1", file_id=file_id),)
    plan = ClusteringPlan(groups=(ClusteringGroup(slices=slices),))
    return format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))


def compaction_of(file_id: str) -> bytes:
    operation = CompactionOperation(partition="p1", file_id=file_id, base_instant="1")
    return format_compaction_plan(CompactionPlan(operations=(operation,)))


def inflight_of(file_id: str) -> bytes:
    return format_commit(CommitMetadata(stats={"p1": (WriteStat(file_id=file_id),)}))


PENDING: dict[str, tuple[dict[tuple[str, State], bytes], str | None]] = {
    "a clustering of the group": (
        {("clustering", State.REQUESTED): clustering_of("f1")},
        "a clustering is pending",
    ),
    "a clustering under way": (
        {
            ("clustering", State.REQUESTED): clustering_of("f1"),
            ("clustering", State.INFLIGHT): b"",
        },
        "a clustering is pending",
    ),
    "a clustering of another group": (
        {("clustering", State.REQUESTED): clustering_of("f2")},
        None,
    ),
    "a clustering that old writers call a replace commit": (
        {("replacecommit", State.REQUESTED): clustering_of("f1")},
        "a replacecommit is pending",
    ),
    "an overwrite that says which groups it rewrites": (
        {
            ("replacecommit", State.REQUESTED): format_requested_replace(RequestedReplace()),
            ("replacecommit", State.INFLIGHT): inflight_of("f1"),
        },
        "a replacecommit is pending",
    ),
    "an overwrite that says nothing yet": (
        {
            ("replacecommit", State.REQUESTED): format_requested_replace(RequestedReplace()),
            ("replacecommit", State.INFLIGHT): b"",
        },
        None,
    ),
    "a compaction of the group": (
        {("compaction", State.REQUESTED): compaction_of("f1")},
        "a compaction is pending",
    ),
    "a compaction of another group": ({("compaction", State.REQUESTED): compaction_of("f2")}, None),
}


@pytest.mark.parametrize(("files", "reason"), PENDING.values(), ids=list(PENDING))
def test_a_base_file_conflicts_with_a_plan_that_came_later(
    files: dict[tuple[str, State], bytes], reason: str | None
) -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    metadata = write_files(transaction, "f1", base=True)
    for (action, state), data in files.items():
        fixture.put(Instant(later(transaction), Action(action), state), data)
    if reason is None:
        transaction.commit(metadata)
    else:
        with pytest.raises(ConflictError, match=reason):
            transaction.commit(metadata)
        transaction.abort()
        assert fixture.leftovers() == []


def test_a_rolled_back_writer_cannot_commit() -> None:
    fixture = TransactionFixture()
    slow = begin_action(fixture.writer(), "deltacommit")
    metadata = write_files(slow, "f1")
    begin_action(fixture.writer(), "deltacommit").commit(CommitMetadata())
    with pytest.raises(ConflictError, match="rolled back by another writer"):
        slow.commit(metadata)
    slow.abort()
    assert fixture.leftovers() == []


@pytest.mark.parametrize("state", [State.REQUESTED, State.INFLIGHT])
def test_a_writer_whose_timeline_files_are_missing_cannot_commit(state: State) -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    metadata = write_files(transaction, "f1")
    # Its rollback may be archived by now.
    fixture.storage.delete(transaction.pending_path(state))
    with pytest.raises(ConflictError, match="rolled back by another writer"):
        transaction.commit(metadata)
    transaction.abort()
    assert fixture.leftovers() == fixture.names() == []


def test_files_that_were_written_while_the_rollback_went_on_are_withdrawn() -> None:
    fixture = TransactionFixture()
    slow = begin_action(fixture.writer(), "deltacommit")
    begin_action(fixture.writer(), "deltacommit").abort()
    metadata = write_files(slow, "f1")
    fixture.storage.delete_folder(f".hoodie/.temp/{slow.instant}")
    with pytest.raises(ConflictError):
        slow.commit(metadata)
    slow.abort()
    assert fixture.leftovers() == []


TARGETS = {
    "this write": ("this write was rolled back", lambda tx, completed: tx.instant),
    "a write it builds upon": ("builds upon", lambda tx, completed: completed.requested_at),
}


@pytest.mark.parametrize(("message", "target"), TARGETS.values(), ids=list(TARGETS))
def test_a_rollback_that_has_only_begun_is_a_conflict(
    message: str, target: Callable[[Transaction, Instant], str]
) -> None:
    fixture = TransactionFixture()
    completed = begin_action(fixture.writer(), "deltacommit").commit(CommitMetadata())
    transaction = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    plan = RollbackPlan(instant=InstantRef(target(transaction, completed), "deltacommit"))
    rollback = Instant(later(transaction), Action.ROLLBACK, State.REQUESTED)
    fixture.put(rollback, format_rollback_plan(plan))
    with pytest.raises(ConflictError, match=message):
        transaction.commit(write_files(transaction, "f1"))
    transaction.abort()


def test_a_concurrent_restore_is_a_conflict() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    fixture.put(Instant(later(transaction), Action.RESTORE, State.INFLIGHT))
    with pytest.raises(ConflictError, match="restored"):
        transaction.commit(write_files(transaction, "f1"))
    transaction.abort()


def test_a_rollback_by_another_process_does_no_harm() -> None:
    fixture = TransactionFixture()
    dead = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    mine = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    write_files(dead, "f1")
    dead.stop_heartbeat()
    other = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    assert [i.action for i in other.snapshot.timeline] == ["deltacommit", "rollback"]
    other.abort()
    mine.commit(write_files(mine, "f1"))
    assert fixture.leftovers_after_expiry() == [f"p1/{LogFile('f1', mine.instant).name}"]


def test_a_writer_whose_heartbeat_expired_gives_up() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    metadata = write_files(transaction, "f1")
    fixture.clock.advance(121_000)
    with pytest.raises(ConflictError, match="heartbeat has expired"):
        transaction.commit(metadata)
    transaction.abort()
    assert fixture.leftovers() == fixture.names() == []


def test_no_instant_appears_before_its_heartbeat() -> None:
    fixture = TransactionFixture()
    storage = CountingStorage(fixture.storage)
    transaction = begin_action(fixture.writer(OPTIMISTIC, storage), "deltacommit")
    steps = [path for method, path in storage.touched if method in {"create", "replace"}]
    ours = [path for path in steps if transaction.instant in path]
    assert [path.rpartition("/")[2] for path in ours] == [
        transaction.instant,
        f"{transaction.instant}.deltacommit.requested",
        f"{transaction.instant}.deltacommit.inflight",
    ]
    transaction.abort()


def test_a_concurrent_write_that_was_archived_is_still_a_conflict() -> None:
    fixture = TransactionFixture()
    begin_action(fixture.writer(), "deltacommit").commit(CommitMetadata())
    old = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    mine = begin_action(fixture.writer(OPTIMISTIC), "deltacommit")
    instant = old.commit(write_files(old, "f1"))
    archive_instant(fixture, instant)
    with pytest.raises(ConflictError, match="same file groups"):
        mine.commit(write_files(mine, "f1"))
    mine.abort()


# The metadata table


def test_a_metadata_table_is_dropped_before_the_first_file() -> None:
    fixture = TransactionFixture({METADATA_PARTITIONS: "files"})
    fixture.storage.create(f"{METADATA_FOLDER}/files/f", b"")
    transaction = begin_action(fixture.writer(), "deltacommit")
    assert not has_metadata_table(transaction.snapshot.config)
    assert not has_metadata_table(load_snapshot(fixture.storage).config)
    assert fixture.leftovers() == []


def test_a_metadata_table_that_came_back_is_dropped_before_the_write_is_visible() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    update_properties(
        fixture.storage, lambda properties: {**properties, METADATA_PARTITIONS: "files"}
    )
    fixture.storage.create(f"{METADATA_FOLDER}/files/f", b"")
    transaction.commit(CommitMetadata())
    assert not has_metadata_table(load_snapshot(fixture.storage).config)
    assert fixture.leftovers() == []


def test_an_index_created_concurrently_fails_the_write() -> None:
    fixture = TransactionFixture()
    transaction = begin_action(fixture.writer(), "deltacommit")
    update_properties(
        fixture.storage, lambda properties: {**properties, METADATA_PARTITIONS: "record_index"}
    )
    with pytest.raises(UnsupportedError, match="indexes"):
        transaction.commit(write_files(transaction, "f1"))
    transaction.abort()
    assert fixture.leftovers() == fixture.names() == []


def test_a_table_that_is_not_written_is_not_touched() -> None:
    fixture = TransactionFixture({"hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"})
    storage = CrashingStorage(fixture.storage, survive=0)
    with pytest.raises(UnsupportedError, match="column by column"):
        begin_action(fixture.writer(storage=storage), "deltacommit")
