"""Streams of a table: every change comes, and comes once, whatever happens in between."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from lakewright.datasource import stream_source
from lakewright.datasource.stream_source import HudiStreamReader, stream_reader, stream_schema
from lakewright.errors import CorruptError, InvalidError, LakewrightError, UnsupportedError
from lakewright.model.instant import Action
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableType
from lakewright.scan.options import ignored_stream_options, stream_settings
from lakewright.scan.stream_offsets import (
    Offset,
    StreamStart,
    batch_context,
    next_offset,
    parse_offset,
)
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.testing.table_builder import TableBuilder
from lakewright.write.writer import Commit
from support.faults import IncompleteListing
from support.golden import NAMES, GoldenTables, as_json, queries
from support.ingestion import RunEnd, StreamingQuery, batch_rows
from support.soak import SOAK, sized
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

START = "hoodie.datasource.streaming.startOffset"
LIMIT = "lakewright.streaming.max.instants.per.trigger"
CDC = "hoodie.datasource.query.incremental.format"
FALLBACK = "hoodie.datasource.read.incr.fallback.fulltablescan.enable"
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
CLEAN = {"hoodie.clean.commits.retained": "1"}
ARCHIVE = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}

both_table_types = pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])


def made(kind: str = "COPY_ON_WRITE", commits: int = 0) -> tuple[WrittenTable, list[Commit]]:
    """A table, and writes of one row each; every one changes the row `a` as well."""
    table = WrittenTable(options=NO_SERVICES).create(kind)
    return table, [write(table, number) for number in range(1, commits + 1)]


def compact(table: WrittenTable) -> None:
    """Compact a table that has log files."""
    if load_snapshot(table.storage).config.table_type is TableType.MERGE_ON_READ:
        assert isinstance(table.services(COMPACT).run("compaction"), Commit)


def write(table: WrittenTable, number: int) -> Commit:
    # Apart: where new keys come in there are no log files.
    new = row(f"k{number}", number, "new", "2026-01-02")
    return table.upsert([row("a", number, f"v{number}"), new])


def batch(*numbers: int) -> list[tuple[str, Any]]:
    """What a batch of some of these writes holds."""
    return [("a", f"v{numbers[-1]}"), *[(f"k{number}", "new") for number in numbers]]


STARTS: dict[str, tuple[str, list[list[tuple[str, Any]]]]] = {
    "earliest begins with the first write": ("earliest", [batch(1, 2, 3), batch(4)]),
    "so does nothing but zeros": ("000", [batch(1, 2, 3), batch(4)]),
    "latest leaves out all that is there": ("LATEST", [batch(4)]),
    "a completion time is not part of the stream": ("{1}", [batch(2, 3), batch(4)]),
    "the time before it lets it in": ("{1}-", [batch(1, 2, 3), batch(4)]),
    "what completed last is not part either": ("{3}", [batch(4)]),
    "a time that is still to come": ("{3}+", [batch(4)]),
    "a time far away": ("29990101000000000", []),
}


@both_table_types
@pytest.mark.parametrize(("start", "expected"), STARTS.values(), ids=list(STARTS))
def test_where_a_stream_begins(kind: str, start: str, expected: list[Any]) -> None:
    table, commits = made(kind, 3)
    if start.startswith("{"):
        time = int(commits[int(start[1]) - 1].completed_at)
        start = str(time + {"-": -1, "+": 1}.get(start[3:], 0))
    query = StreamingQuery(table.storage, {START: start}).run()
    write(table, 4)
    assert query.run().handed_over == expected


def test_the_end_of_a_batch_is_part_of_it_and_not_of_the_next() -> None:
    table, commits = made(commits=2)
    query = StreamingQuery(table.storage, {LIMIT: "1"}).run()
    ends = [json.loads(offset)["offsetCommitTime"] for offset in query.offsets]
    assert ends == [commit.completed_at for commit in commits]
    assert query.handed_over == [batch(1), batch(2)]


@both_table_types
def test_a_limit_of_instants(kind: str) -> None:
    table, _ = made(kind, 5)
    limited = {LIMIT: "2"}
    steps = [batch(1, 2), batch(3, 4), batch(5)]
    assert StreamingQuery(table.storage, limited).run().handed_over == steps
    assert StreamingQuery(table.storage, limited).run(now=False).handed_over == steps
    assert StreamingQuery(table.storage).run().handed_over == [batch(1, 2, 3, 4, 5)]
    # Spark asks for all that is there where one batch must do.
    assert StreamingQuery(table.storage, limited).run(once=True).handed_over == [
        batch(1, 2, 3, 4, 5)
    ]


def test_the_limits_that_spark_gets() -> None:
    table, _ = made(commits=1)
    assert StreamingQuery(
        table.storage, {LIMIT: "3"}
    ).started().getDefaultReadLimit() == ReadMaxFiles(3)
    assert StreamingQuery(table.storage).started().getDefaultReadLimit() == ReadAllAvailable()


def test_what_completes_after_the_start_is_left_to_the_next_run_of_available_now() -> None:
    table, _ = made(commits=2)
    reader = StreamingQuery(table.storage).started()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    write(table, 3)
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    assert reader.reportLatestOffset() != Offset(first["offsetCommitTime"]).as_json()
    later = StreamingQuery(table.storage).started()
    assert later.reportLatestOffset() is None
    assert later.latestOffset(first, ReadAllAvailable()) == later.reportLatestOffset()


@both_table_types
@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("end", [RunEnd.PLANNED, RunEnd.WRITTEN])
def test_a_first_batch_is_the_same_when_it_is_replayed(kind: str, start: str, end: RunEnd) -> None:
    table, _ = made(kind, 2)
    reader = StreamingQuery(table.storage, {START: start}).started()
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    query = StreamingQuery(table.storage, {START: start}, offsets=[json.dumps(offset)]).run(end)
    write(table, 3)
    # The user has set another start since.
    query.options = {START: {"earliest": "latest", "latest": "earliest"}[start]}
    expected = [batch(1, 2), batch(3)] if start == "earliest" else [batch(3)]
    assert query.run().handed_over == expected


def test_a_stream_from_the_latest_on_loses_nothing_while_it_is_down() -> None:
    table, _ = made(commits=2)
    query = StreamingQuery(table.storage, {START: "latest"}).run()
    assert query.handed_over == []
    write(table, 3)
    assert query.run().handed_over == [batch(3)]
    # Without anything new there is no batch.
    offsets = list(query.offsets)
    assert query.run().offsets == offsets


CHANGED: dict[str, tuple[str, Callable[[WrittenTable], object]]] = {
    "compacted": ("MERGE_ON_READ", lambda t: t.services(COMPACT).run("compaction")),
    "clustered": ("COPY_ON_WRITE", lambda t: t.services().run("clustering")),
    "clustered, merged on read": ("MERGE_ON_READ", lambda t: t.services().run("clustering")),
    "written to": ("COPY_ON_WRITE", lambda t: write(t, 4)),
    "written to, merged on read": ("MERGE_ON_READ", lambda t: write(t, 4)),
}
CLUSTER = {"hoodie.clustering.inline.max.commits": "1", "hoodie.clustering.async.max.commits": "1"}


@pytest.mark.parametrize("end", [RunEnd.PLANNED, RunEnd.WRITTEN])
@pytest.mark.parametrize(("kind", "change"), CHANGED.values(), ids=list(CHANGED))
def test_a_batch_is_the_same_when_the_table_was(
    kind: str, change: Callable[[WrittenTable], object], end: RunEnd
) -> None:
    table, _ = made(kind, 1)
    table.options = {**NO_SERVICES, **CLUSTER}
    query = StreamingQuery(table.storage, {FALLBACK: "false"}).run()
    write(table, 2)
    write(table, 3)
    query.run(end)
    assert not isinstance(change(table), Skip)
    query.run()
    assert query.handed_over[:2] == [batch(1), batch(2, 3)]
    assert query.handed_over[2:] in ([], [batch(4)])


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("archived", [False, True], ids=["cleaned", "cleaned and archived"])
def test_a_batch_whose_files_were_cleaned(kind: str, *, archived: bool) -> None:
    table, _ = made(kind, 1)
    query = StreamingQuery(table.storage, {FALLBACK: "false"}).run()
    for number in (2, 3):
        write(table, number)
    query.run(RunEnd.PLANNED)
    for number in range(4, 9):
        write(table, number)
        compact(table)
    assert isinstance(table.services(CLEAN).run("clean"), Commit)
    if archived:
        assert isinstance(table.services(ARCHIVE).run("archive"), Commit)
    with pytest.raises(InvalidError, match=r"cleaned.*fallback\.fulltablescan") as refused:
        query.run()
    assert refused.value.facts["option"] == FALLBACK
    assert query.handed_over == [batch(1)]
    # What was overwritten since comes with the write that did so.
    query.options = {FALLBACK: "true"}
    query.run()
    assert query.handed_over == [
        batch(1),
        [("k2", "new"), ("k3", "new")],
        [("a", "v8"), *[(f"k{n}", "new") for n in range(4, 9)]],
    ]


@both_table_types
def test_services_between_batches_bring_no_row_twice(kind: str) -> None:
    table, _ = made(kind, 2)
    table.options = {**NO_SERVICES, **CLUSTER}
    query = StreamingQuery(table.storage, {LIMIT: "1"}).run()
    compact(table)
    assert not isinstance(table.services().run("clustering"), Skip)
    offsets = list(query.offsets)
    assert query.run().offsets == offsets, "services alone make no batch"
    write(table, 3)
    table.upsert([row("a", 4, "v4")])
    compact(table)
    table.services(CLEAN).run("clean")
    assert query.run().handed_over == [batch(1), batch(2), batch(3), [("a", "v4")]]
    assert len(query.offsets) == 4, "nor do they count"


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_a_write_that_completes_late_comes_once(kind: str) -> None:
    """The first and the third write are read while the second is still under way."""
    storage = MemoryStorage.fresh()
    builder = TableBuilder(storage, SCHEMA, table_type=kind).create()
    action = "commit" if kind == "COPY_ON_WRITE" else "deltacommit"

    def commit(name: str, instant: str | None = None) -> None:
        rows = pa.Table.from_pylist([row(name, 1, name, "d")], SCHEMA)
        builder.commit({("d", name): rows}, action=Action(action), instant=instant)

    commit("first")
    slow = builder.tick()
    commit("third")
    query = StreamingQuery(storage).run()
    commit("second", slow)
    commit("fourth")
    query.run(RunEnd.WRITTEN)
    expected = [["first", "third"], ["fourth", "second"]]
    assert [[key for key, _ in rows] for rows in query.run().handed_over] == expected
    assert [len(rows) for rows in StreamingQuery(storage).run().handed_over] == [4]


@both_table_types
@pytest.mark.parametrize("limit", [{}, {LIMIT: "1"}], ids=["in one batch", "write by write"])
def test_change_data_includes_deletes(kind: str, limit: dict[str, str]) -> None:
    table, _ = made(kind, 2)
    query = StreamingQuery(table.storage, {CDC: "cdc", **limit}).run()
    table.write("DELETE", [row("k1", 9, day="2026-01-02")])
    write(table, 3)
    query.run(RunEnd.WRITTEN)
    write(table, 4)
    query.run()
    state: dict[str, Any] = {}
    for _, changes in sorted(query.batches.items()):
        for change in changes:
            before, after = (json.loads(change[name] or "null") for name in ("before", "after"))
            assert (before or {}).get("note") == state.get((before or after)["id"])
            state |= {after["id"]: after["note"]} if after else {}
            if change["op"] == "d":
                del state[before["id"]]
    assert state == {stored["id"]: stored["note"] for stored in table.rows()}


def test_change_data_has_columns_of_its_own() -> None:
    """Also on a table that has none yet; and a new one of the table's does not end the query."""
    table, _ = made()
    query = StreamingQuery(table.storage, {CDC: "cdc"})
    reader = query.started()
    write(table, 1)
    evolved(table, pa.field("more", pa.int64()), 7)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    changes = batch_rows(reader, json.dumps(reader.initialOffset()), json.dumps(end))
    assert sorted(json.loads(change["after"])["id"] for change in changes) == ["a", "b", "k1"]
    assert {tuple(change) for change in changes} == {("op", "ts_ms", "before", "after")}


def test_a_write_that_a_listing_missed_is_in_the_batch() -> None:
    table, commits = made(commits=3)
    storage = IncompleteListing(table.storage)
    reader = StreamingQuery(storage).started()
    storage.hidden = commits[1].instant
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end["offsetCommitTime"] == commits[2].completed_at
    records = batch_rows(reader, json.dumps(reader.initialOffset()), json.dumps(end))
    assert sorted(record["id"] for record in records) == ["a", "k1", "k2", "k3"]


@pytest.mark.parametrize("start", ["earliest", "latest", "20200101000000000"])
def test_a_table_that_nothing_was_written_to(start: str) -> None:
    table, _ = made()
    options = {START: start, "lakewright.streaming.new.columns": "ignore"}
    query = StreamingQuery(table.storage, options, T.StructType().add("id", "string"))
    assert query.run().batches in ({}, {0: []})
    write(table, 1)
    query.run()
    assert sorted(record["id"] for rows in query.batches.values() for record in rows) == ["a", "k1"]


def test_a_table_without_columns_wants_them_named() -> None:
    table, _ = made()
    with pytest.raises(InvalidError, match=r"no columns yet.*schema\(\.\.\.\)"):
        StreamingQuery(table.storage).run()


def test_columns_that_are_named_come_in_that_order_and_in_the_tables_types() -> None:
    table, _ = made(commits=1)
    requested = T.StructType().add("ts", "string").add("id", "string")
    schema = stream_schema({"path": table.storage.root}, requested)
    assert schema.simpleString() == "struct<ts:bigint,id:string>"
    query = StreamingQuery(
        table.storage, {"lakewright.streaming.new.columns": "ignore"}, requested
    ).run()
    assert [list(record) for record in query.batches[0]] == [["ts", "id"]] * 2
    with pytest.raises(InvalidError, match=r"no such column.*'other'"):
        stream_schema({"path": table.storage.root}, T.StructType().add("other", "string"))


def evolved(table: WrittenTable, field_: pa.Field, value: Any) -> None:
    at = SCHEMA.get_field_index(field_.name)
    schema = SCHEMA.append(field_) if at < 0 else SCHEMA.set(at, field_)
    table.write("UPSERT", [{**row("b"), field_.name: value}], schema=schema)


def test_a_new_column_ends_the_run_and_the_next_one_goes_on_with_it() -> None:
    table, _ = made(commits=1)
    query = StreamingQuery(table.storage).run()
    reader = query.started()
    evolved(table, pa.field("more", pa.int64()), 7)
    start = json.loads(query.offsets[-1])
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(InvalidError, match=r"new columns: start the stream again.*'more'"):
        reader.partitions(start, end)
    query.offsets.append(json.dumps(end))
    assert [(record["id"], record["more"]) for record in query.run().batches[1]] == [("b", 7)]


def test_a_new_column_can_be_left_out() -> None:
    table, _ = made(commits=1)
    query = StreamingQuery(table.storage, {"lakewright.streaming.new.columns": "ignore"})
    reader = query.started()
    evolved(table, pa.field("more", pa.int64()), 7)
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    records = batch_rows(reader, json.dumps(reader.initialOffset()), json.dumps(end))
    assert sorted(record["id"] for record in records) == ["a", "b", "k1"]
    assert "more" not in records[0]


@pytest.mark.parametrize("new_columns", ["fail", "ignore"])
def test_a_column_of_another_type_ends_the_run(new_columns: str) -> None:
    schema = SCHEMA.set(2, pa.field("ts", pa.int32()))
    table = WrittenTable(options=NO_SERVICES, schema=schema).create()
    table.upsert([row("a")])
    query = StreamingQuery(table.storage, {"lakewright.streaming.new.columns": new_columns}).run()
    reader = query.started()
    table.write("UPSERT", [row("b", 1 << 40)], schema=SCHEMA)
    start = json.loads(query.offsets[-1])
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(InvalidError, match=r"have changed.*start it again.*'ts'"):
        reader.partitions(start, end)
    query.offsets.append(json.dumps(end))
    assert [record["ts"] for record in query.run().batches[1]] == [1 << 40]


REFUSED: dict[str, tuple[dict[str, str], type[LakewrightError], str]] = {
    "the requested times of old": (
        {"hoodie.datasource.read.streaming.table.version": "6"},
        UnsupportedError,
        "requested time.*streaming.table.version",
    ),
    "a beginning of a range": (
        {"hoodie.datasource.read.begin.instanttime": "000"},
        InvalidError,
        "begin.instanttime.*startOffset",
    ),
    "an end": (
        {"hoodie.datasource.read.end.instanttime": "20260101000000000"},
        InvalidError,
        "end.instanttime",
    ),
    "a point in time": ({"As.Of.Instant": "20260101"}, InvalidError, "as.of.instant"),
    "a start that is no time": ({START: "monday"}, InvalidError, "earliest, latest or a"),
    "base files alone": (
        {"hoodie.datasource.query.type": "read_optimized"},
        InvalidError,
        "incremental, snapshot expected",
    ),
    "a limit below one": ({LIMIT: "0"}, InvalidError, "1 or more"),
    "rows that are not merged": (
        {"hoodie.datasource.merge.type": "skip_merge"},
        UnsupportedError,
        "merge.type",
    ),
    "a name that does not exist": (
        {"lakewright.streaming.max.instants": "1"},
        InvalidError,
        "did_you_mean",
    ),
}


@pytest.mark.parametrize(("options", "kind", "message"), REFUSED.values(), ids=list(REFUSED))
def test_options_that_a_stream_does_not_take(
    options: dict[str, str], kind: type[LakewrightError], message: str
) -> None:
    table, _ = made(commits=1)
    settings = {"path": table.storage.root, **options}
    for opened in (
        lambda: stream_schema(settings, None),
        lambda: stream_reader(settings, T.StructType()),
    ):
        with pytest.raises(kind, match=message):
            opened()


def test_options_that_change_nothing() -> None:
    options = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.read.streaming.table.version": "9",
        "hoodie.datasource.read.incr.skip_compact": "true",
        "hoodie.metadata.enable": "true",
        "path": "somewhere",
    }
    assert stream_settings(options).table_version == 9
    assert ignored_stream_options(options) == ["hoodie.metadata.enable"]


def test_a_stream_wants_a_path_and_meta_columns() -> None:
    with pytest.raises(InvalidError, match="path is missing"):
        stream_schema({}, None)
    storage = MemoryStorage.fresh()
    TableBuilder(storage, SCHEMA, properties={"hoodie.populate.meta.fields": "false"}).create()
    with pytest.raises(InvalidError, match="without meta fields"):
        stream_schema({"path": storage.root}, None)


def test_what_travels_to_the_workers() -> None:
    table, _ = made("MERGE_ON_READ", 3)
    reader = StreamingQuery(table.storage).started()
    start, end = (
        reader.initialOffset(),
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable()),
    )
    tasks = reader.partitions(start, end)
    worker: HudiStreamReader = pickle.loads(pickle.dumps(reader))
    there = [pickle.loads(pickle.dumps(task)) for task in tasks]
    records = [
        record for task in there for rows in worker.read(task) for record in rows.to_pylist()
    ]
    assert sorted(record["id"] for record in records) == ["a", "k1", "k2", "k3"]
    assert reader.partitions(end, end) == []


@pytest.mark.parametrize("name", NAMES if SOAK else NAMES[1::2])
def test_tables_of_real_hudi_in_one_batch_and_instant_by_instant(
    name: str, golden: GoldenTables
) -> None:
    storage = LocalStorage(str(golden[name]))
    (whole,) = StreamingQuery(storage).run().batches.values()
    expected = queries(name)[0].rows or ()
    assert sorted(map(as_json, whole)) == sorted(expected)
    steps = StreamingQuery(storage, {LIMIT: "1"}).run()
    assert len(steps.offsets) > 1
    rows = [record for records in steps.batches.values() for record in records]
    versions = [(record["_hoodie_commit_time"], record["_hoodie_commit_seqno"]) for record in rows]
    assert len(set(versions)) == len(versions)
    # Everything that the table still has was handed over with the write it comes from.
    assert set(map(as_json, whole)) <= set(map(as_json, rows))


OFFSETS: dict[str, tuple[dict[str, Any], StreamStart | Offset]] = {
    "of a new query": ({"startOffset": "latest"}, StreamStart("latest")),
    "of a first batch": (
        {"offsetCommitTime": "20260101000000001", "since": "00000000000000"},
        Offset("20260101000000001", "00000000000000"),
    ),
    "as real Hudi writes it": (
        {"offsetCommitTime": "20260101000000001"},
        Offset("20260101000000001"),
    ),
    "of old, by the second": ({"offsetCommitTime": "20260101000000"}, Offset("20260101000000999")),
    "the beginning": ({"offsetCommitTime": "00000000000000"}, Offset("00000000000000")),
}


@pytest.mark.parametrize(("stored", "offset"), OFFSETS.values(), ids=list(OFFSETS))
def test_offsets_in_a_checkpoint(stored: dict[str, Any], offset: StreamStart | Offset) -> None:
    assert parse_offset(stored) == offset
    assert parse_offset(offset.as_json()) == offset


def test_a_checkpoint_of_something_else_is_reported() -> None:
    table, _ = made(commits=1)
    reader = StreamingQuery(table.storage).started()
    for offset in ({"index": 3}, {"offsetCommitTime": 3}, {"offsetCommitTime": "3", "since": 1}):
        with pytest.raises(CorruptError, match="no offset of a table"):
            reader.latestOffset(offset, ReadAllAvailable())
    with pytest.raises(CorruptError, match="no end"):
        reader.partitions(reader.initialOffset(), reader.initialOffset())


def test_a_first_batch_without_its_begin() -> None:
    """As in a checkpoint that real Hudi has made."""
    table, commits = made(commits=2)
    snapshot = load_snapshot(table.storage)
    end = Offset(commits[1].completed_at)
    context = batch_context(snapshot, StreamStart("earliest"), end)
    assert context is not None
    assert len(context.instants) == 2
    with pytest.raises(InvalidError, match="does not record where"):
        batch_context(snapshot, StreamStart("latest"), end)


def test_looking_for_news_costs_a_listing() -> None:
    table, commits = made(commits=6)
    assert isinstance(table.services(CLEAN).run("clean"), Commit)
    assert isinstance(table.services(ARCHIVE).run("archive"), Commit)
    storage = CountingStorage(table.storage)
    reader = StreamingQuery(storage).started()
    storage.calls.clear()
    reader.latestOffset(Offset(commits[-1].completed_at).as_json(), ReadMaxFiles(1))
    assert sum(storage.calls.values()) == 2


def test_a_table_that_was_restored_goes_on_with_what_is_new() -> None:
    table, commits = made(commits=3)
    query = StreamingQuery(table.storage).run()
    table.writer().rollback(commits[2].instant)
    assert next_offset(
        Offset(commits[2].completed_at),
        load_snapshot(table.storage),
        until=commits[1].completed_at,
    ) is None  # fmt: skip
    assert len(query.run().handed_over) == 1
    write(table, 4)
    assert query.run().handed_over[1:] == [batch(4)]


def test_before_spark_4_2_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_source, "ReadMaxFiles", None)
    with pytest.raises(UnsupportedError, match=r"Spark 4\.2"):
        stream_schema({"path": "somewhere"}, None)


@dataclass
class Life:
    """A table with writes and table services, and a query on it that is killed now and then."""

    table: WrittenTable
    query: StreamingQuery
    chance: random.Random
    number: int = 0
    steps: list[str] = field(default_factory=list)

    def step(self) -> None:
        kind = self.chance.choice(["write"] * 4 + ["serve"] * 2 + ["read", "kill", "kill"])
        self.steps.append(kind)
        if kind == "write":
            self.number += 1
            keys = self.chance.sample("abcdef", 3)
            days = [self.chance.choice(["2026-01-01", "2026-01-02"]) for _ in keys]
            pairs = zip(keys, days, strict=True)
            rows = [row(key + day[-1], self.number, f"v{self.number}", day) for key, day in pairs]
            self.table.upsert(rows)
        elif kind == "serve":
            options: Mapping[str, str] = {**COMPACT, **CLUSTER, **ARCHIVE}
            merges = load_snapshot(self.table.storage).config.table_type is TableType.MERGE_ON_READ
            services = ["clustering", "clean", "archive", *(["compaction"] * 2 if merges else [])]
            self.table.services(options).run(self.chance.choice(services))
        else:
            ends = [RunEnd.PLANNED, RunEnd.WRITTEN] if kind == "kill" else [RunEnd.OF_ITSELF]
            if self.number:
                self.query.run(self.chance.choice(ends), now=self.chance.random() < 0.5)

    def last_states(self) -> dict[str, int]:
        states: dict[str, int] = {}
        for rows in self.query.batches.values():
            for record in rows:
                states[record["id"]] = max(states.get(record["id"], 0), record["ts"])
        return states


@pytest.mark.parametrize("seed", range(sized(2, soak=400)))
@both_table_types
def test_any_life_of_a_stream_ends_with_the_rows_of_the_table(kind: str, seed: int) -> None:
    table, _ = made(kind)
    chance = random.Random(seed)
    limit = chance.choice([{}, {LIMIT: "1"}, {LIMIT: "3"}])
    life = Life(table, StreamingQuery(table.storage, limit), chance)
    for _ in range(30):
        life.step()
    write(table, 1000)
    life.query.run()
    expected = {record["id"]: record["ts"] for record in table.rows()}
    assert life.last_states() == expected, life.steps
    versions = [
        (record["id"], record["ts"]) for rows in life.query.batches.values() for record in rows
    ]
    assert len(set(versions)) == len(versions), life.steps
