"""Writes of real Hudi that we roll back: it reads what was there before, and continues to write."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
from real_hudi import RealHudi, Row

from lakewright.clock import SystemClock, zone_of
from lakewright.errors import CorruptError
from lakewright.format.timeline_metadata import parse_commit
from lakewright.model.instant import Instant, State
from lakewright.storage.local import LocalStorage
from lakewright.table.options import FailedWritesPolicy
from lakewright.table.rollback import failed_writes, resume_rollbacks, rollback_locked
from lakewright.table.savepoint import (
    create_savepoint_locked,
    delete_savepoint_locked,
    restore_locked,
    rollback_instant,
)
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.time_generator import TimeGenerator
from lakewright.table.transaction import TransactionManager
from lakewright.testing.storage import Crash, CrashingStorage
from support.faults import MortalStorage
from support.soak import some
from support.tables import NO_SERVICES, WrittenTable, orphan_data_files

pytestmark = pytest.mark.sampled(2)

SCHEMA = "id STRING, ts BIGINT, p STRING"
OUR_SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("p", pa.string())])
# We do not maintain its metadata table.
LISTED = {"hoodie.metadata.enable": "false"}
COMPACT_SOON = {"hoodie.compact.inline.max.delta.commits": "1"}
COMMON = {
    "hoodie.table.name": "taken_back",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    **LISTED,
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline": "false",
}
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
# In a soak run of both kinds: that each undoes as the other does is shown by each_kind, and without
# real Hudi of every step.
of_files, of_logs = (
    pytest.mark.parametrize("kind", some(list(KINDS.values()), place), ids=some(list(KINDS), place))
    for place in (0, 1)
)

Versions = dict[str, int]


@dataclass
class Shared:
    """A table that real Hudi writes and we roll back."""

    hudi: RealHudi
    path: Path
    kind: str
    states: list[Versions] = field(default_factory=list)

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(str(self.path))

    @property
    def snapshot(self) -> Snapshot:
        return load_snapshot(self.storage)

    @property
    def writes(self) -> tuple[Instant, ...]:
        return self.snapshot.timeline.completed_writes

    def upsert(self, versions: Versions, **more: str) -> None:
        rows: list[Row] = [{"id": k, "ts": ts, "p": "ab"[int(k) % 2]} for k, ts in versions.items()]
        options = {
            **COMMON,
            "hoodie.datasource.write.table.type": self.kind,
            **{f"hoodie.{key.replace('__', '.')}": value for key, value in more.items()},
        }
        self.hudi.write(self.path, rows, SCHEMA, options)

    def read(self) -> Versions:
        rows = self.hudi.read(self.path, LISTED)
        versions = {row["id"]: row["ts"] for row in rows}
        assert len(versions) == len(rows)
        return versions

    def compact(self) -> None:
        options = ",".join(f"{key}={value}" for key, value in (LISTED | COMPACT_SOON).items())
        self.call("run_compaction", f"op => 'scheduleAndExecute', options => '{options}'")

    def call(self, procedure: str, arguments: str = "") -> list[Row]:
        all_arguments = ", ".join(filter(None, [f"path => '{self.path}'", arguments]))
        return self.hudi.sql(f"call {procedure}({all_arguments})", LISTED)

    def roll_back(self, target: Instant) -> Instant:
        clock = SystemClock()
        return rollback_locked(self.snapshot, target, self.times(), clock, by_markers=True)

    def times(self) -> TimeGenerator:
        snapshot = self.snapshot
        used_times = [
            at for i in snapshot.timeline for at in (i.requested_at, i.completed_at) if at
        ]
        zone = zone_of(snapshot.config.timeline_zone)
        return TimeGenerator(SystemClock(), zone, 1, after=max(used_times))


@pytest.fixture(scope="module")
def written(
    real_hudi: RealHudi, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Shared]:
    """A table of a kind in three states: inserts, updates, updates and inserts."""

    @cache
    def write(kind: str) -> Shared:
        table = Shared(real_hudi, tmp_path_factory.mktemp("written") / "t", kind)
        for ts, numbers in enumerate((range(6), range(4), range(2, 9)), 1):
            table.upsert({str(n): ts for n in numbers})
            table.states.append(table.read())
        return table

    return write


@pytest.fixture
def shared(written: Callable[[str], Shared], tmp_path: Path, kind: str) -> Shared:
    """A copy of that table."""
    table = written(kind)
    copy = Path(shutil.copytree(table.path, tmp_path / "t"))
    return Shared(table.hudi, copy, kind, list(table.states))


@each_kind
def test_real_hudi_reads_the_table_without_its_last_commits_and_writes_on(shared: Shared) -> None:
    shared.roll_back(shared.writes[-1])
    assert shared.read() == shared.states[1]
    shared.roll_back(shared.writes[-1])
    assert shared.read() == shared.states[0]
    shared.upsert({"0": 9, "30": 9})
    assert shared.read() == {**shared.states[0], "0": 9, "30": 9}
    assert orphan_data_files(shared.storage) == []


@of_files
def test_real_hudi_sees_replaced_rows_again(shared: Shared) -> None:
    shared.upsert({"0": 5, "1": 5}, datasource__write__operation="insert_overwrite")
    assert shared.read() == {"0": 5, "1": 5}
    shared.roll_back(shared.writes[-1])
    assert shared.read() == shared.states[2]
    shared.upsert({"0": 9})
    assert shared.read() == {**shared.states[2], "0": 9}


@pytest.mark.parametrize("kind", ["MERGE_ON_READ"])
def test_real_hudi_reads_and_compacts_anew_after_its_compaction_is_rolled_back(
    shared: Shared,
) -> None:
    shared.compact()
    assert shared.writes[-1].action == "commit"
    shared.roll_back(shared.writes[-1])
    assert shared.read() == shared.states[2]
    shared.upsert({"0": 9})
    shared.compact()
    assert shared.read() == {**shared.states[2], "0": 9}
    assert orphan_data_files(shared.storage) == []


@of_logs
def test_a_dead_write_of_real_hudi_leaves_nothing(shared: Shared) -> None:
    """Real Hudi finds its files by markers alone, which are missing here: it would leave them."""
    storage, last = shared.storage, shared.writes[-1]
    storage.delete(f".hoodie/timeline/{last.file_name}")
    assert shared.read() == shared.states[1]
    (dead,) = failed_writes(shared.snapshot.timeline, FailedWritesPolicy.EAGER, frozenset())
    shared.roll_back(dead)
    assert not [file for file in storage.list_tree("") if _names(file.path, last)]
    shared.upsert({"0": 9})
    assert shared.read() == {**shared.states[1], "0": 9}


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
}
each_damage = pytest.mark.parametrize(
    "damage", some(list(DAMAGES.values()), 1), ids=some(list(DAMAGES), 1)
)


def _damage(shared: Shared, completed: Instant, damage: Callable[[bytes], bytes]) -> None:
    """As a power cut leaves the file; Hadoop's checksum file, of the old bytes, is deleted."""
    path = shared.path / ".hoodie" / "timeline" / completed.file_name
    path.write_bytes(damage(path.read_bytes()))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@each_damage
@each_kind
def test_a_write_of_real_hudi_with_a_damaged_file_is_rolled_back_by_force(
    shared: Shared, damage: Callable[[bytes], bytes]
) -> None:
    last = shared.writes[-1]
    _damage(shared, last, damage)
    with pytest.raises(CorruptError, match="force"):
        rollback_instant(TransactionManager(shared.storage, SystemClock()), last.requested_at)
    rollback = rollback_instant(
        TransactionManager(shared.storage, SystemClock()), last.requested_at, force=True
    )
    assert shared.read() == shared.states[1]
    (shown,) = [row for row in shared.call("show_timeline") if row["action"] == "rollback"]
    assert (shown["instant_time"], shown["state"]) == (rollback.requested_at, "COMPLETED")
    assert last.requested_at in shown["rollback_info"]
    assert not [f for f in shared.storage.list_tree("") if _names(f.path, last)]
    shared.upsert({"0": 9, "30": 9})
    assert shared.read() == {**shared.states[1], "0": 9, "30": 9}
    assert orphan_data_files(shared.storage) == []


@each_damage
def test_an_overwrite_and_a_compaction_of_real_hudi_with_a_damaged_file_as_well(
    written: Callable[[str], Shared], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = written("MERGE_ON_READ")
    copy = Path(shutil.copytree(first.path, tmp_path / "t"))
    shared = Shared(first.hudi, copy, "MERGE_ON_READ", list(first.states))
    shared.upsert({"0": 5, "1": 5}, datasource__write__operation="insert_overwrite")
    _damage(shared, shared.writes[-1], damage)
    rollback_instant(
        TransactionManager(shared.storage, SystemClock()),
        shared.writes[-1].requested_at,
        force=True,
    )
    assert shared.read() == shared.states[2]
    shared.compact()
    assert shared.writes[-1].action == "commit"
    _damage(shared, shared.writes[-1], damage)
    rollback_instant(
        TransactionManager(shared.storage, SystemClock()),
        shared.writes[-1].requested_at,
        force=True,
    )
    assert shared.read() == shared.states[2]
    shared.upsert({"0": 9})
    shared.compact()
    assert shared.read() == {**shared.states[2], "0": 9}
    assert orphan_data_files(shared.storage) == []


def _names(path: str, instant: Instant) -> bool:
    return instant.requested_at in path and "rollback" not in path


@of_logs
def test_our_savepoint_is_one_for_real_hudi_and_we_restore_it(shared: Shared) -> None:
    middle = shared.writes[1].requested_at
    saved = create_savepoint_locked(
        shared.snapshot, middle, shared.times(), SystemClock(), user="ann", comment="why"
    )
    shown = shared.call("show_savepoints")
    assert [row["savepoint_time"] for row in shown] == [saved.requested_at]
    if shared.kind == "MERGE_ON_READ":
        shared.compact()
    shared.upsert({"0": 5, "40": 5})
    restore_locked(shared.snapshot, middle, shared.times(), SystemClock())
    assert shared.read() == shared.states[1]
    assert shared.writes[-1].requested_at == middle
    shared.upsert({"1": 9, "50": 9})
    assert shared.read() == {**shared.states[1], "1": 9, "50": 9}
    delete_savepoint_locked(shared.snapshot, middle)
    assert shared.call("show_savepoints") == []
    assert orphan_data_files(shared.storage) == []


@of_files
def test_a_savepoint_of_real_hudi_is_restored_by_us_twice(shared: Shared) -> None:
    middle = shared.writes[1].requested_at
    if shared.kind == "MERGE_ON_READ":
        shared.compact()
    shared.call("create_savepoint", f"commit_time => '{middle}'")
    for ts in (5, 6):
        shared.upsert({"0": ts, "40": ts})
        restore_locked(shared.snapshot, middle, shared.times(), SystemClock())
        assert shared.read() == shared.states[1]
    shared.upsert({"1": 9})
    assert shared.read() == {**shared.states[1], "1": 9}


@of_logs
def test_real_hudi_restores_our_savepoint_over_our_rollback(shared: Shared) -> None:
    middle = shared.writes[1].requested_at
    create_savepoint_locked(shared.snapshot, middle, shared.times(), SystemClock())
    shared.roll_back(shared.writes[-1])
    shared.upsert({"0": 5})
    shared.call("rollback_to_savepoint", f"instant_time => '{middle}'")
    assert shared.read() == shared.states[1]


Act = Callable[[Snapshot, TimeGenerator], object]


def _killed_after(shared: Shared, survive: int, act: Act) -> bool:
    """Whether the process died."""
    storage = CrashingStorage(shared.storage, survive)
    try:
        act(load_snapshot(storage), shared.times())
    except Crash:
        return True
    return False


@of_files
@pytest.mark.parametrize("survive", some([3, 6], 1), ids="killed after {} changes".format)
def test_real_hudi_reads_an_unfinished_rollback_and_we_complete_it(
    shared: Shared, survive: int
) -> None:
    target = shared.writes[-1]

    def act(snapshot: Snapshot, times: TimeGenerator) -> object:
        return rollback_locked(snapshot, target, times, SystemClock(), by_markers=True)

    assert _killed_after(shared, survive, act)
    assert shared.read() in (shared.states[2], shared.states[1])
    resume_rollbacks(shared.snapshot, shared.times(), SystemClock(), by_markers=True)
    expected = shared.states[2] if target in shared.writes else shared.states[1]
    assert shared.read() == expected
    shared.upsert({"0": 9})
    assert shared.read() == {**expected, "0": 9}
    assert orphan_data_files(shared.storage) == []


@of_logs
def test_real_hudi_completes_our_unfinished_rollback(shared: Shared) -> None:
    """Killed when the commit was pending again: its next write finds our plan and follows it."""
    target = shared.writes[-1]

    def act(snapshot: Snapshot, times: TimeGenerator) -> object:
        return rollback_locked(snapshot, target, times, SystemClock(), by_markers=True)

    assert _killed_after(shared, 3, act)
    assert target not in shared.writes
    shared.upsert({"0": 9})
    assert shared.read() == {**shared.states[1], "0": 9}
    timeline = shared.snapshot.timeline
    assert not timeline.pending()
    assert len(timeline.completed("rollback")) == 1
    assert orphan_data_files(shared.storage) == []


@of_logs
@pytest.mark.parametrize("survive", some([4, 7], 1), ids="killed after {} changes".format)
def test_real_hudi_reads_an_unfinished_restore_and_we_complete_it(
    shared: Shared, survive: int
) -> None:
    first = shared.writes[0].requested_at
    create_savepoint_locked(shared.snapshot, first, shared.times(), SystemClock())

    def act(snapshot: Snapshot, times: TimeGenerator) -> object:
        return restore_locked(snapshot, first, times, SystemClock())

    assert _killed_after(shared, survive, act)
    assert shared.read() in shared.states
    assert shared.snapshot.timeline.pending("restore")[0].state is State.INFLIGHT
    act(shared.snapshot, shared.times())
    assert shared.read() == shared.states[0]
    shared.upsert({"0": 9})
    assert shared.read() == {**shared.states[0], "0": 9}
    assert orphan_data_files(shared.storage) == []


# Our writes name their partitions in their inflight files.

# By listings real Hudi does not roll an overwrite back: it expects replaced file groups in the
# inflight file, where its own overwrites have none either.
DEAD: dict[str, tuple[str, str]] = {
    "an upsert, by markers": ("UPSERT", "true"),
    "an upsert, by listings": ("UPSERT", "false"),
    "a delete, by listings": ("DELETE", "false"),
    "an overwrite, by markers": ("INSERT_OVERWRITE", "true"),
}


@pytest.mark.parametrize(
    ("operation", "by_markers"), some(list(DEAD.values()), 1, 3), ids=some(list(DEAD), 1, 3)
)
@of_logs
def test_real_hudi_rolls_our_dead_write_back(
    shared: Shared, operation: str, by_markers: str
) -> None:
    mortal = MortalStorage(shared.storage)
    ours = WrittenTable(mortal, SystemClock(), NO_SERVICES, OUR_SCHEMA)

    def die() -> None:
        mortal.dead = True
        raise Crash

    with pytest.raises(Crash):
        ours.write(operation, [{"id": "1", "ts": 99, "p": "b"}], before_commit=die)
    (dead,) = shared.snapshot.timeline.pending()
    inflight = parse_commit(shared.storage.read(f".hoodie/timeline/{dead.file_name}"))
    assert set(inflight.stats) == {"b"}
    assert shared.read() == shared.states[2]
    shared.upsert({"0": 9}, rollback__using__markers=by_markers)
    assert shared.read() == {**shared.states[2], "0": 9}
    assert not shared.snapshot.timeline.pending()
    assert not [f for f in shared.storage.list_tree("") if _names(f.path, dead)]
