"""Writes to tables that log changes: files and statistics as readers of changes want them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakewright.client.save import SaveMode, SaveOperation
from lakewright.engine.local import ArrowRows
from lakewright.errors import InvalidError, UnsupportedError
from lakewright.format.data_block import data_block_rows
from lakewright.format.log_block import BlockKind, parse_blocks
from lakewright.model.commit_metadata import WriteStat
from lakewright.model.file_group import LogFile, parse_data_file
from lakewright.model.table_config import CdcLoggingMode
from lakewright.storage.factory import storage_for
from lakewright.table.markers import MarkerKind, create_marker
from lakewright.table.snapshot import load_snapshot
from lakewright.write.cdc_writer import cdc_schema
from lakewright.write.writer import Commit
from support.golden import GoldenTables
from support.queries import apply_changes, read_changes
from support.tables import CDC_SCHEMA, NO_SERVICES, WrittenTable, row

COW, MOR = "COPY_ON_WRITE", "MERGE_ON_READ"
CHANGES = "hoodie.table.cdc.enabled"
LOGGING = "hoodie.table.cdc.supplemental.logging.mode"
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
MODES = [str(mode) for mode in CdcLoggingMode]


def logging_table(
    table_type: str = COW, mode: str = "DATA_BEFORE_AFTER", more: Mapping[str, str] | None = None
) -> WrittenTable:
    options = {CHANGES: "true", LOGGING: mode, **(more or {})}
    return WrittenTable(options=NO_SERVICES).create(table_type, options=options)


def stats(table: WrittenTable) -> list[WriteStat]:
    """The statistics of the newest write."""
    snapshot = load_snapshot(table.storage)
    (commit,) = snapshot.commits(snapshot.timeline.completed_writes[-1:])
    return list(commit.write_stats())


def change_files(table: WrittenTable) -> list[str]:
    paths = [file.path for file in table.storage.list_tree("") if file.path.endswith(".cdc")]
    return sorted(path for path in paths if not path.startswith(".hoodie"))


def logged(table: WrittenTable) -> list[dict[str, Any]]:
    """What the change files of the newest write hold."""
    changes: list[dict[str, Any]] = []
    for stat in stats(table):
        for path, size in (stat.cdc_stats or {}).items():
            data = table.storage.read(path)
            assert len(data) == size
            blocks = parse_blocks(data, file_name=path)
            assert {block.kind for block in blocks} == {BlockKind.CDC}
            for block in blocks:
                changes += data_block_rows(block).to_pylist()
    return sorted(changes, key=lambda change: str(change["op"]))


A, A2, B, N = row("a"), row("a", 2, "second"), row("b"), row("n", 2, "new")
AT = "at the instant of the write"
CHANGES_BY_MODE: dict[str, list[dict[str, Any]]] = {
    "OP_KEY_ONLY": [
        {"op": "d", "record_key": "b"},
        {"op": "i", "record_key": "n"},
        {"op": "u", "record_key": "a"},
    ],
    "DATA_BEFORE": [
        {"op": "d", "record_key": "b", "before": B},
        {"op": "i", "record_key": "n", "before": None},
        {"op": "u", "record_key": "a", "before": A},
    ],
    "DATA_BEFORE_AFTER": [
        {"op": "d", "ts_ms": AT, "before": B, "after": None},
        {"op": "i", "ts_ms": AT, "before": None, "after": N},
        {"op": "u", "ts_ms": AT, "before": A, "after": A2},
    ],
}


@pytest.mark.parametrize(("mode", "expected"), CHANGES_BY_MODE.items(), ids=list(CHANGES_BY_MODE))
def test_change_files_hold_the_columns_of_their_mode(
    mode: str, expected: list[dict[str, Any]]
) -> None:
    table = logging_table(mode=mode)
    deleted = pa.field("_hoodie_is_deleted", pa.bool_())
    table.upsert([A, B, row("c")])
    table.schema = table.schema.append(deleted)
    commit = table.upsert([A2, N, {**row("b", 2), "_hoodie_is_deleted": True}, row("c", 0, "late")])
    times = {AT: commit.instant}
    expected_changes = [
        {k: times.get(v, v) if isinstance(v, str) else v for k, v in e.items()} for e in expected
    ]
    plain = [
        {
            k: {n: x for n, x in v.items() if n != deleted.name} if isinstance(v, dict) else v
            for k, v in change.items()
        }
        for change in logged(table)
    ]
    assert plain == expected_changes


def test_the_schema_of_change_files_is_real_hudis(golden: GoldenTables) -> None:
    storage = storage_for(golden["cow_cdc"])
    snapshot = load_snapshot(storage)
    commit = snapshot.commits(snapshot.timeline.completed_writes[-1:])[0]
    (path, *_) = [path for stat in commit.write_stats() for path in stat.cdc_stats or ()]
    (block,) = parse_blocks(storage.read(path), file_name=path)
    ours = json.loads(cdc_schema(snapshot.avro_schema() or "", CdcLoggingMode.BOTH))
    theirs = json.loads(block.schema_json or "")
    # A name within the same namespace may leave it out.
    assert ours["fields"][2]["type"][1].pop("namespace") == ours["namespace"]
    assert ours["fields"][3]["type"][1] == f"{ours['namespace']}.{theirs['fields'][3]['type'][1]}"
    ours["fields"][3]["type"][1] = theirs["fields"][3]["type"][1]
    assert ours == theirs


@pytest.mark.parametrize("mode", MODES)
def test_rows_of_every_type_are_logged(mode: str) -> None:
    table = logging_table(mode=mode)
    table.schema = CDC_SCHEMA
    full = {
        "price": Decimal("-1.50"),
        "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
        "on": date(2026, 1, 1),
        "blob": b"\x00\xff",
        "tags": [1, None],
        "info": {"a": None, "b": ["x", None]},
        "words": [("pi", 3.5)],
    }
    table.upsert([{**row("a"), **full}, row("b")])
    first = load_snapshot(table.storage).timeline.completed_writes[-1]
    table.upsert([row("a", 2), {**row("b", 2), **full}])
    as_json = {
        "price": -1.5,
        "at": 1767268800000000,
        "on": 20454,
        "blob": "AP8=",
        "tags": [1, None],
        "info": {"a": None, "b": ["x", None]},
        "words": {"pi": 3.5},
    }
    none = dict.fromkeys(as_json)
    changes = sorted(read_changes(table.storage, first.completed_at), key=str)
    assert changes == [
        ("u", {**row("a"), **as_json}, {**row("a", 2), **none}),
        ("u", {**row("b"), **none}, {**row("b", 2), **as_json}),
    ]


def test_new_base_files_need_no_change_files() -> None:
    table = logging_table()
    table.upsert([row("a"), row("b", day="2026-01-02")])
    table.write("INSERT_OVERWRITE", [row("a", 2)])
    assert change_files(table) == []


def test_rows_that_join_a_small_file_are_logged_as_new() -> None:
    table = logging_table()
    table.write("INSERT", [row("a")])
    table.write("INSERT", [row("b"), row("a", 1, "twice")])
    assert [change["op"] for change in logged(table)] == ["i", "i"]


def test_a_base_file_in_which_nothing_changed_has_a_change_file_too() -> None:
    table = logging_table()
    table.upsert([row("a", 5)])
    table.upsert([row("a", 1, "late")])
    (stat,) = stats(table)
    assert len(stat.cdc_stats or {}) == 1
    assert logged(table) == []


def test_large_changes_take_several_blocks_and_files() -> None:
    table = logging_table()
    table.upsert([row(f"k{n:03}", 1, "x" * 100) for n in range(100)])
    small = {"hoodie.logfile.data.block.max.size": "4000", "hoodie.logfile.max.size": "9000"}
    first = load_snapshot(table.storage).timeline.completed_writes[-1]
    table.upsert([row(f"k{n:03}", 2, "y" * 100) for n in range(100)], small)
    (stat,) = stats(table)
    assert len(stat.cdc_stats or {}) > 1
    assert len(logged(table)) == len(read_changes(table.storage, first.completed_at)) == 100


def test_log_files_name_what_they_are_compared_with() -> None:
    table = logging_table(MOR)
    table.upsert([row("a"), row("b")])
    (base,) = stats(table)
    table.upsert([row("a", 2)])
    (first,) = stats(table)
    table.write("DELETE", [row("b")])
    (second,) = stats(table)
    base_name = (base.path or "").rpartition("/")[2]
    names = [(stat.path or "").rpartition("/")[2] for stat in (first, second)]
    assert (first.base_file, first.log_files) == (base_name, (names[0],))
    assert (second.base_file, second.log_files) == (base_name, tuple(names))
    assert change_files(table) == []


def test_tables_that_log_nothing_have_no_change_files() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    table.upsert([row("a", 2)])
    assert change_files(table) == []
    assert {stat.cdc_stats for stat in stats(table)} == {None}


@pytest.mark.parametrize("table_type", [COW, MOR])
@pytest.mark.parametrize("mode", MODES)
def test_every_operation_is_reported(table_type: str, mode: str) -> None:
    table = logging_table(table_type, mode)
    table.upsert([row(f"k{n}") for n in range(6)])
    table.upsert([row("k1", 2, "second"), row("k2", 0, "late"), row("n1", 1, "new")])
    table.write("INSERT", [row("i1"), row("i2", day="2026-01-02")])
    table.write("BULK_INSERT", [row("b1")])
    table.write("DELETE", [row("k3"), row("i2", day="2026-01-02"), row("nobody")])
    table.write("INSERT_OVERWRITE", [row("o1", day="2026-01-02")])
    table.delete_partitions("2026-01-02")
    table.write("UPSERT", [row("k1", 3, "third")], {"lakewright.write.hand.on.bytes": "0"})
    assert apply_changes(read_changes(table.storage)) == table.rows()


@pytest.mark.parametrize("mode", MODES)
def test_services_between_writes(mode: str) -> None:
    table = logging_table(MOR, mode)
    table.upsert([row("a"), row("b")])
    for number, (service, options) in enumerate(
        (
            ("logcompaction", {"hoodie.log.compaction.blocks.threshold": "2"}),
            ("compaction", {"hoodie.compact.inline.max.delta.commits": "1"}),
            ("clustering", {"hoodie.clustering.inline.max.commits": "1"}),
        )
    ):
        table.upsert([row("a", number * 2 + 2, f"{service} 1")])
        table.upsert([row("a", number * 2 + 3, f"{service} 2"), row(f"n{number}")])
        assert isinstance(table.services(options).run(service), Commit)
        assert all(stat.cdc_stats is None for stat in stats(table))
        assert apply_changes(read_changes(table.storage)) == table.rows()


def test_buckets_begin_with_base_files() -> None:
    table = logging_table(MOR, more=BUCKETS)
    table.upsert([row("a")])
    table.upsert([row("a", 2, "second"), row("b", 2, "new")])
    table.write("INSERT", [row("c")])
    assert apply_changes(read_changes(table.storage)) == table.rows()


def test_the_cleaner_deletes_change_files_with_their_slices() -> None:
    table = logging_table()
    commits = [table.upsert([row("a", n)]) for n in range(5)]
    assert len(change_files(table)) == 4
    table.services({"hoodie.clean.commits.retained": "2"}).run("clean")
    remaining = [parse_data_file(path.rpartition("/")[2]) for path in change_files(table)]
    assert {file.instant for file in remaining if file} == {
        commit.instant for commit in commits[2:]
    }
    assert len(read_changes(table.storage, commits[2].completed_at)) == 2


def test_a_rollback_deletes_change_files() -> None:
    table = logging_table()
    table.upsert([row("a")])
    before = files_of(table)
    commit = table.upsert([row("a", 2)])
    table.writer().rollback(commit.instant)
    assert {p for p in files_of(table) if not p.startswith(".hoodie")} == {
        p for p in before if not p.startswith(".hoodie")
    }


def test_change_files_of_abandoned_attempts_are_deleted_when_the_write_completes() -> None:
    table = logging_table()
    table.upsert([row("a")])
    (base,) = stats(table)
    stray: list[str] = []

    def attempt() -> None:
        (pending,) = load_snapshot(table.storage).timeline.pending()
        file = LogFile(base.file_id or "", pending.requested_at, 1, "9-9-9", cdc=True)
        stray.append(f"2026-01-01/{file.name}")
        create_marker(table.storage, pending.requested_at, stray[0], MarkerKind.CREATE)
        table.storage.create(stray[0], b"half")

    table.upsert([row("a", 2)], before_commit=attempt)
    assert stray[0] not in change_files(table)
    assert len(change_files(table)) == 1


def test_a_write_that_fails_leaves_no_change_file() -> None:
    table = logging_table()
    table.upsert([row("a")])
    before = files_of(table)

    def fail() -> None:
        raise InvalidError("no")

    with pytest.raises(InvalidError, match="no"):
        table.upsert([row("a", 2)], before_commit=fail)
    remaining = {path: data for path, data in files_of(table).items() if "/.temp/" not in path}
    assert remaining == before


def test_writers_that_do_not_wait_are_refused() -> None:
    table = logging_table(MOR, more=BUCKETS)
    with pytest.raises(UnsupportedError, match="OPTIMISTIC") as refused:
        table.upsert([row("a")], NON_BLOCKING)
    assert refused.value.facts[CHANGES] == "true"
    assert not load_snapshot(table.storage).timeline


def test_a_group_without_base_file_is_refused() -> None:
    table = WrittenTable(options=NO_SERVICES).create(MOR, options=BUCKETS)
    table.upsert([row("a")], NON_BLOCKING)
    enable(table)
    before = files_of(table)
    with pytest.raises(UnsupportedError, match="compact the table first"):
        table.upsert([row("a", 2)])
    assert files_of(table) == before
    table.services({"hoodie.compact.inline.max.delta.commits": "1"}).run("compaction")
    table.upsert([row("a", 2, "second")])
    assert apply_changes(read_changes(table.storage)) == table.rows()


def enable(table: WrittenTable) -> None:
    path = ".hoodie/hoodie.properties"
    data = table.storage.read(path)
    table.storage.replace(path, data.replace(b"cdc.enabled=false", b"cdc.enabled=true"))


OTHERWISE = {
    "no changes": {CHANGES: "false"},
    "another mode": {CHANGES: "true", LOGGING: "OP_KEY_ONLY"},
}


@pytest.mark.parametrize("options", OTHERWISE.values(), ids=list(OTHERWISE))
def test_options_that_contradict_the_table_are_refused(options: dict[str, str]) -> None:
    table = logging_table()
    with pytest.raises(InvalidError, match="Config conflict"):
        table.upsert([row("a")], options)
    table.upsert([row("a")], {CHANGES: "TRUE", LOGGING: "data_before_after"})


def test_a_table_is_created_by_the_options_of_its_first_write() -> None:
    table = WrittenTable()
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "day",
        CHANGES: "true",
        LOGGING: "data_before",
    }
    rows = pa.Table.from_pylist([row("a")], table.schema)
    SaveOperation(table.writer(options), SaveMode.APPEND).write(ArrowRows(rows))
    SaveOperation(table.writer(options), SaveMode.APPEND).write(ArrowRows(rows))
    properties = load_snapshot(table.storage).config.properties
    assert (properties[CHANGES], properties[LOGGING]) == ("true", "DATA_BEFORE")
    assert len(change_files(table)) == 1


def files_of(table: WrittenTable) -> dict[str, bytes]:
    return {file.path: table.storage.read(file.path) for file in table.storage.list_tree("")}
