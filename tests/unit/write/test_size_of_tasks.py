"""What a task of a write carries to its worker: nothing of the table's commits."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Action, Instant
from lakewright.model.replaced_groups import ReplacedGroups
from lakewright.model.timeline import Timeline
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.task import Operation, WriteTask
from lakewright.write.write_config import WriteSettings
from support.tables import NO_SERVICES, WrittenTable, row

COMMITS, FILES = 300, 1000
# The timeline: a name, an action and two times of each instant.
INSTANT = 150
# Properties, settings and schema.
FIXED = 20_000
SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}'


def commit(at: str, action: Action) -> CommitMetadata:
    stats = tuple(
        WriteStat(file_id=f"{at}-{n:08}-0", path=f"d/{at}-{n:08}-0_0-0-0_{at}.parquet")
        for n in range(FILES)
    )
    replaced = {"d": tuple(f"{at}-{n:08}-1" for n in range(FILES))}
    return CommitMetadata(
        stats={"d": stats},
        extra={"schema": SCHEMA},
        replaced=replaced if action == Action.REPLACE_COMMIT else {},
    )


def busy_snapshot(action: Action) -> Snapshot:
    """A table all of whose commits have been read."""
    times = [f"202601010000{n:05}" for n in range(COMMITS)]
    instants = [Instant(at, action, completed_at=f"{at[:-1]}9") for at in times]
    config = load_snapshot(WrittenTable().create().storage).config
    commits = {at: commit(at, action) for at in times}
    return Snapshot(MemoryStorage.fresh(), config, Timeline.from_instants(instants), commits)


def task_of(snapshot: Snapshot) -> WriteTask:
    settings = WriteSettings()
    return WriteTask(
        snapshot.for_workers(), "20270101000000000", Operation.UPSERT, settings, SCHEMA
    )


@pytest.mark.parametrize(
    ("action", "replaced"), [(Action.COMMIT, 0), (Action.REPLACE_COMMIT, COMMITS * FILES)]
)
def test_a_task_is_as_small_whatever_the_commits_of_the_table_hold(
    action: Action, replaced: int
) -> None:
    snapshot = busy_snapshot(action)
    size = len(pickle.dumps(task_of(snapshot)))
    # A replaced file group is a digest.
    assert size <= FIXED + COMMITS * INSTANT + 16 * replaced


def test_the_archived_timeline_stays_at_home() -> None:
    table = WrittenTable().create()
    table.upsert([row("a")])
    snapshot = load_snapshot(table.storage).for_workers()
    size = len(pickle.dumps(snapshot))
    assert snapshot.archived == ()
    assert len(pickle.dumps(snapshot)) == size


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_worker_reads_no_commit_for_what_the_driver_knows(table_type: str) -> None:
    table = WrittenTable(options=NO_SERVICES).create(table_type)
    table.upsert([row("a"), row("b", day="2026-01-02")])
    table.write(Operation.INSERT_OVERWRITE, [row("c")])
    table.upsert([row("c", 2), row("b", 2, day="2026-01-02")])
    snapshot = load_snapshot(table.storage)
    groups = [(g.partition, g.file_id) for g in snapshot.groups(snapshot.view())]
    sent = pickle.loads(pickle.dumps(snapshot.for_workers()))
    counting = CountingStorage(table.storage)
    sent = replace(sent, storage=counting)
    assert [(g.partition, g.file_id) for g in sent.groups(sent.view())] == groups
    assert sent.avro_schema() == snapshot.avro_schema()
    assert sent.schema(sent.view()) == snapshot.schema(snapshot.view())
    assert not counting.calls["read"]
    assert not counting.calls["read_many"]
    # Earlier states of the table are read from its commits.
    first = snapshot.timeline.completed_writes[0].requested_at
    earlier = snapshot.view(requested_until=first)
    assert [g.file_id for g in sent.groups(sent.view(requested_until=first))] == [
        g.file_id for g in snapshot.groups(earlier)
    ]


def test_a_set_of_replaced_groups_has_its_groups_and_no_others() -> None:
    names = [f"p{n % 7}/q" for n in range(500)]
    groups = {(name, f"{n:08}-0") for n, name in enumerate(names)}
    replaced = ReplacedGroups.of(groups)
    assert len(replaced) == 500
    assert all(group in replaced for group in groups)
    others = [("p0", "q/00000000-0"), ("p1/q", "00000000-0"), ("", ""), ("p0/q", "00000001-0")]
    assert not any(group in replaced for group in others if group not in groups)
    assert ("p0/q", "00000000-0") not in ReplacedGroups.of(())
