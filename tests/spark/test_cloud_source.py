"""Objects of an events table, read on Spark."""

from __future__ import annotations

import io
import json
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import lakewright as lw
from lakewright.errors import CorruptError, InvalidError, LakewrightError
from lakewright.ingestion.checkpoints import Checkpoint, Version
from lakewright.ingestion.cloud.events import S3EventsSource
from lakewright.ingestion.cloud.objects import SOURCE_PATH
from lakewright.ingestion.cloud.source import CloudObjectsSource
from lakewright.ingestion.source import Batch
from lakewright.table.properties import update_properties
from lakewright.testing.s3 import S3Server, moto_server
from support.ingestion import CLOUD_DATA, EventsTable, FakeQueue, checkpoint_text
from support.soak import some

pytestmark = pytest.mark.sampled(2)

BAD = "lakewright.source.bad.objects"
QUARANTINE = "lakewright.source.quarantine.path"
BUCKETS = "lakewright.source.buckets"
BYTES = "lakewright.source.limit.bytes"
FILES = CLOUD_DATA + "max.files.per.sync"


def line(**values: Any) -> bytes:
    return json.dumps(values).encode() + b"\n"


def names(batch: Batch, column: str = "name") -> list[Any]:
    assert batch.rows is not None
    return sorted(row[column] for row in batch.rows.collect())


def drained(
    spark: SparkSession, source: CloudObjectsSource, after: Checkpoint | None = None
) -> tuple[list[list[Any]], list[str]]:
    """The names of each batch, and where each ended, until nothing moves."""
    read: list[list[Any]] = []
    ends: list[str] = []
    while True:
        batch = source.next_batch(spark, after)
        if batch.checkpoint == after:
            return read, ends
        read.append(names(batch) if batch.rows is not None else [])
        ends.append(checkpoint_text(batch.checkpoint))
        batch.committed()
        after = batch.checkpoint


def test_batches_go_on_within_a_commit_and_across(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    first = table.commit(*(table.put(f"in/{n}.json", line(name=n)) for n in (3, 1, 2)))
    second = table.commit(table.put("in/0.json", line(name=0)))
    read, ends = drained(spark, table.source({FILES: "2"}))
    assert read == [[1, 2], [0, 3]]
    assert ends == [f"{first.completed_at}#in%2F2.json", f"{second.completed_at}#in%2F0.json"]


def test_a_commit_that_completes_late_is_read_then(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    late = table.builder.tick()
    table.commit(table.put("b.json", line(name="early")))
    source = table.source()
    first = source.next_batch(spark, None)
    assert names(first) == ["early"]
    commit = table.commit(table.put("a.json", line(name="late")), instant=late)
    second = source.next_batch(spark, first.checkpoint)
    assert names(second) == ["late"]
    assert checkpoint_text(second.checkpoint) == f"{commit.completed_at}#a.json"
    assert source.next_batch(spark, second.checkpoint).checkpoint == second.checkpoint


def test_limits_by_bytes_and_what_waits(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.commit(*(table.put(f"{n}.json", line(name=n), size=100) for n in range(5)))
    batch = table.source({BYTES: "250"}).next_batch(spark, None)
    assert names(batch) == [0, 1]
    assert batch.facts["objects"] == 2
    assert (batch.facts["bytes"], batch.facts["objects_waiting"]) == (200, 3)
    assert batch.facts["lag_ms"] == 0


def test_of_an_object_that_was_written_again_the_newest_event_counts(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    old = table.put("a.json", line(name="a"), size=10)
    table.commit(old, table.put("b.json", line(name="b")))
    last = table.commit(table.put("a.json", line(name="again")))
    table.commit(old)
    batch = table.source().next_batch(spark, None)
    assert names(batch) == ["again", "b"]
    assert checkpoint_text(batch.checkpoint) == f"{last.completed_at}#a.json"


ODD = (
    "a+b.json", "a b.json", "100%.json", "a%2Bb.json", "a#b?.json", "[x]*{y}.json", "é/ü.json",
    "_hidden.json", ".dot.json", "x=1/_y=2.json", "~$&,;@'().json",
)  # fmt: skip


@pytest.mark.parametrize("store", ["s3", "gcs"])
def test_any_key_is_read_as_it_is(store: str, spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path, store)
    table.commit(*(table.put(path, line(name=path)) for path in ODD))
    batch = table.source({CLOUD_DATA + "include.source.path.field": "true"}).next_batch(spark, None)
    assert batch.rows is not None
    paths = {row["name"]: row[SOURCE_PATH] for row in batch.rows.collect()}
    assert paths == {path: f"{tmp_path}/lake/{path}" for path in ODD}
    batch.committed()


def test_two_buckets_with_the_same_key(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.commit(
        *(table.put("a.json", line(name=bucket), bucket=bucket) for bucket in ("left", "right")),
        table.put("b.json", line(name="b")),
    )
    read, _ = drained(spark, table.source({FILES: "1"}))
    assert read == [["left", "right"], ["b"]]


def test_only_selected_objects_are_read(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    selected = ("in/a.json", "in/b.txt")
    others = ("out/a.json", "in/tmp/a.json", "in/x_old.json", "in/a.csv", "in/c.json")
    table.commit(*(table.put(path, line(name=path)) for path in (*selected, *others)))
    table.commit(table.put("in/empty.json", b""))
    options = {
        CLOUD_DATA + "select.relpath.prefix": "in/",
        CLOUD_DATA + "ignore.relpath.prefix": "in/tmp/",
        CLOUD_DATA + "ignore.relpath.substring": "_old",
        CLOUD_DATA + "select.file.extension": ".json,.txt",
        CLOUD_DATA + "select.relative.path.regex": "/[ab][.]",
    }
    assert names(table.source(options).next_batch(spark, None)) == sorted(selected)


def test_without_selected_objects_only_the_checkpoint_advances(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    commit = table.commit(table.put("a.csv"))
    source = table.source()
    batch = source.next_batch(spark, None)
    assert (batch.rows, checkpoint_text(batch.checkpoint)) == (None, commit.completed_at)
    again = source.next_batch(spark, batch.checkpoint)
    assert (again.rows, again.checkpoint) == (None, batch.checkpoint)


def test_where_to_begin_without_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    for n in range(3):
        table.commit(table.put(f"{n}.json", line(name=n)))
    strategy = "hoodie.streamer.source.hoodieincr.missing.checkpoint.strategy"
    assert names(table.source().next_batch(spark, None)) == [0, 1, 2]
    assert names(table.source({strategy: "READ_LATEST"}).next_batch(spark, None)) == [2]


def test_a_number_of_commits_bounds_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    for n in range(5):
        table.commit(table.put(f"{n}.json", line(name=n)))
    few = {"hoodie.streamer.source.hoodieincr.num_instants": "2"}
    read, _ = drained(spark, table.source(few))
    assert read == [[0, 1], [2, 3], [4]]


def test_checkpoints_of_hudi_are_translated_once(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    first = table.commit(*(table.put(f"{n}.json", line(name=n)) for n in range(3)))
    after = Checkpoint(f"{first.requested_at}#0.json", Version.V1)
    batch = table.source().next_batch(spark, after)
    assert names(batch) == [1, 2]
    text, for_hudi = f"{first.completed_at}#2.json", f"{first.requested_at}#2.json"
    assert batch.checkpoint == Checkpoint(text, Version.V2, for_hudi=for_hudi)
    end = Checkpoint(first.requested_at, Version.V1)
    idle = table.source().next_batch(spark, end)
    assert (idle.rows, idle.checkpoint) == (None, end)
    with pytest.raises(InvalidError, match="does not have"):
        table.source().next_batch(spark, Checkpoint("20200101000000000", Version.V1))


def test_an_object_that_is_missing_may_be_skipped(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    commit = table.commit(table.put("a.json", line(name="a")), table.put("b.json", None))
    source = table.source({CLOUD_DATA + "check.file.exists": "true"})
    batch = source.next_batch(spark, None)
    assert names(batch) == ["a"]
    assert checkpoint_text(batch.checkpoint) == f"{commit.completed_at}#b.json"
    assert batch.facts["objects_missing"] == 1


BROKEN = {
    "vanished": (None, "no longer exists"),
    "cut off": (b'{"name": "x"', "JSONDecodeError"),
}


@pytest.mark.parametrize(("data", "reason"), BROKEN.values(), ids=list(BROKEN))
def test_bad_objects(data: bytes | None, reason: str, spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    commit = table.commit(table.put("a.json", line(name="a")), table.put("b.json", data))
    end = f"{commit.completed_at}#b.json"
    with pytest.raises(CorruptError, match="cannot be read"):
        table.source().next_batch(spark, None)
    with pytest.warns(RuntimeWarning, match=reason):
        skipped = table.source({BAD: "skip"}).next_batch(spark, None)
    assert (names(skipped), checkpoint_text(skipped.checkpoint)) == (["a"], end)
    quarantine = str(tmp_path / "held")
    quarantined = table.source({BAD: "quarantine", QUARANTINE: quarantine}).next_batch(spark, None)
    assert (names(quarantined), checkpoint_text(quarantined.checkpoint)) == (["a"], end)
    (row,) = lw.open(quarantine, spark=spark).read().collect()
    assert (row["place"], row["source"]) == ("s3://lake/b.json", "cloud")
    assert reason in row["reason"]


def test_events_cannot_have_any_bucket_read(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    commit = table.commit(
        table.put("a.json", line(name="a")),
        table.put("b.json", line(name="secret"), bucket="payroll"),
        table.put("c.json", None, size=1, bucket="payroll"),
    )
    options = {BUCKETS: "lake, landing", CLOUD_DATA + "check.file.exists": "true"}
    end = f"{commit.completed_at}#c.json"
    assert names(
        table.source({CLOUD_DATA + "select.relpath.prefix": "b"}).next_batch(spark, None)
    ) == ["secret"]
    with pytest.raises(InvalidError, match="may not be read") as refused:
        table.source(options).next_batch(spark, None)
    assert refused.value.facts["options"] == [BUCKETS, BAD]
    with pytest.warns(RuntimeWarning, match="its bucket is not one of those"):
        skipped = table.source({**options, BAD: "skip"}).next_batch(spark, None)
    assert (names(skipped), checkpoint_text(skipped.checkpoint)) == (["a"], end)
    # The source does not check whether such an object exists either.
    assert (skipped.facts["objects_bad"], skipped.facts["objects_missing"]) == (2, 0)


def test_a_batch_of_bad_objects_alone_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    commit = table.commit(table.put("b.json", b"?"))
    with pytest.warns(RuntimeWarning, match="passed over"):
        batch = table.source({BAD: "skip"}).next_batch(spark, None)
    assert (batch.rows, checkpoint_text(batch.checkpoint)) == (
        None,
        f"{commit.completed_at}#b.json",
    )


ROWS = pa.table({"name": ["a", "b"], "n": [1, 2]})


def content(kind: str, rows: pa.Table = ROWS) -> bytes:
    sink = io.BytesIO()
    if kind == "json":
        return b"".join(line(**row) for row in rows.to_pylist())
    if kind == "csv":
        return b"name,n\na,1\nb,2\n"
    if kind == "avro":
        fields = [{"name": "name", "type": "string"}, {"name": "n", "type": "long"}]
        schema = {"type": "record", "name": "row", "fields": fields}
        fastavro.writer(sink, schema, rows.to_pylist())
    elif kind == "orc":
        orc.write_table(rows, sink)
    else:
        pq.write_table(rows, sink)
    return sink.getvalue()


KINDS = ("json", "csv", "avro", "orc", "parquet")
# Every format once, and both ways to treat bad objects.
READ = some([(kind, bad) for kind in KINDS for bad in ("error", "skip")], 0, 3, 4, 7, 8)


@pytest.mark.parametrize(("kind", "bad"), READ)
def test_reads_the_format(kind: str, bad: str, spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.commit(*(table.put(f"day=2026-01-0{n}/hour=7/x.{kind}", content(kind)) for n in (1, 2)))
    options = {
        CLOUD_DATA + "datafile.format": kind,
        CLOUD_DATA + "datasource.options": '{"header": "true"}' if kind == "csv" else "{}",
        CLOUD_DATA + "partition.fields.from.path": "day,hour,minute",
        BAD: bad,
    }
    batch = table.source(options).next_batch(spark, None)
    assert batch.rows is not None
    assert sorted(batch.rows.columns[:2]) == ["n", "name"]
    assert batch.rows.columns[2:] == ["day", "hour", "minute"]
    rows = sorted((r["name"], int(r["n"]), r["day"], r["hour"]) for r in batch.rows.collect())
    assert rows == [
        (name, n, f"2026-01-0{day}", "7") for name, n in (("a", 1), ("b", 2)) for day in (1, 2)
    ]
    assert {row["minute"] for row in batch.rows.collect()} == {None}
    batch.committed()


@pytest.mark.parametrize("kind", some(["json", "avro", "parquet"], 1))
def test_a_column_that_is_new_is_null_in_older_objects(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    wide = pa.table({"name": ["c"], "n": [3], "more": ["x"]})
    if kind == "avro":
        sink = io.BytesIO()
        fields = [{"name": name, "type": "string"} for name in ("name", "more")]
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, wide.to_pylist())
        data = sink.getvalue()
    else:
        data = content(kind, wide)
    table.commit(table.put(f"1.{kind}", content(kind)), table.put(f"2.{kind}", data))
    batch = table.source({CLOUD_DATA + "datafile.format": kind}).next_batch(spark, None)
    assert batch.rows is not None
    values = {row["name"]: row["more"] for row in batch.rows.collect()}
    assert values == {"a": None, "b": None, "c": "x"}
    batch.committed()


def test_csv_with_other_columns_is_an_error_and_not_mixed_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    table.commit(table.put("1.csv", b"name,n\na,1\n"), table.put("2.csv", b"n,name\n2,b\n"))
    options = {
        CLOUD_DATA + "datafile.format": "csv",
        CLOUD_DATA + "datasource.options": '{"header": "true"}',
    }
    target = lw.create(str(tmp_path / "target"), spark, name="target", record_key="name")
    with pytest.raises(LakewrightError):
        lw.ingest(
            spark,
            table.source(options),
            target,
            options={},
        )
    assert not any(instant.is_write for instant in target.timeline())


def test_a_schema_may_be_given(spark: SparkSession, tmp_path: Path) -> None:
    table = EventsTable(tmp_path)
    table.commit(table.put("1.json", line(name="a", n=1)))
    source = table.source({"lakewright.source.schema": "name string, n double, other date"})
    batch = source.next_batch(spark, None)
    assert batch.rows is not None
    assert batch.rows.dtypes == [("name", "string"), ("n", "double"), ("other", "date")]


def test_only_as_many_events_as_a_batch_may_have_come_to_the_driver(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    table.put("0000.json", line(name="x"))
    table.commit(*(table.put(f"{n:04d}.json", None, size=1) for n in range(5000)))
    batch = table.source({FILES: "1"}).next_batch(spark, None)
    assert names(batch) == ["x"]
    assert batch.facts["objects_waiting"] == 4999


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with moto_server() as server:
        server.create_bucket("lake")
        yield server


@pytest.mark.parametrize("kind", some(["json", "parquet", "avro"], 1))
def test_reads_from_s3_without_a_jar(
    kind: str, server: S3Server, spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    data = content(kind)
    path = f"in/a +%.{kind}"
    server.client().put_object(Bucket="lake", Key=path, Body=data)
    table.commit(table.put(path, None, size=len(data)))
    work = tmp_path / "work"
    options = {
        "lakewright.source.bucket.address": "s3://{bucket}",
        "lakewright.source.work.folder": str(work),
        CLOUD_DATA + "datafile.format": kind,
        CLOUD_DATA + "include.source.path.field": "true",
        **server.hadoop_options(),
    }
    batch = table.source(options).next_batch(spark, None)
    assert batch.rows is not None
    rows = [(row["name"], row[SOURCE_PATH]) for row in batch.rows.collect()]
    assert sorted(rows) == [("a", f"s3://lake/{path}"), ("b", f"s3://lake/{path}")]
    assert list(work.glob("*/*"))
    batch.committed()
    assert not list(work.glob("*/*"))
    server.client().delete_object(Bucket="lake", Key=path)
    with pytest.raises(CorruptError, match="no longer exists"):
        table.source(options).next_batch(spark, None)


def test_copies_on_this_machine_are_for_their_user_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    table = EventsTable(tmp_path)
    table.commit(table.put("a.avro", content("avro")))
    batch = table.source({CLOUD_DATA + "datafile.format": "avro"}).next_batch(spark, None)
    assert names(batch) == ["a", "b"]
    (folder,) = temporary.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]
    assert modes == [0o700, 0o600]
    batch.committed()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", some(["COPY_ON_WRITE", "MERGE_ON_READ"], 1))
def test_an_events_table_that_holds_the_last_event_of_each_object(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Stage one and stage two, with services in between; one object is written again."""
    bucket, path = EventsTable(tmp_path / "objects"), tmp_path / "events"
    options = {
        "hoodie.table.name": "events",
        "hoodie.datasource.write.table.type": kind,
        "hoodie.datasource.write.recordkey.field": "s3.bucket.name,s3.object.key",
        "hoodie.datasource.write.precombine.field": "eventTime",
    }
    queue = FakeQueue()
    for number, keys in enumerate(("abc", "b")):
        for key in keys:
            record = bucket.put(f"{key}.json", line(name=f"{key}{number}"))
            queue.put(json.dumps({"Records": [record]}))
        lw.ingest(spark, S3EventsSource.from_options({}, queue=queue), str(path), options=options)
    assert queue.there == {}
    source = bucket.source({FILES: "1", "hoodie.streamer.source.hoodieincr.path": str(path)})
    first = source.next_batch(spark, None)
    assert names(first) == ["a0"]
    if kind == "MERGE_ON_READ":
        due = {"hoodie.compact.inline.max.delta.commits": "1"}
        assert isinstance(lw.open(str(path), spark=spark).run("compaction", due), lw.Commit)
    read, _ = drained(spark, source, first.checkpoint)
    assert [batch for batch in read if batch] == [["c0"], ["b1"]]


def test_a_checkpoint_of_hudi_within_a_commit_is_taken_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = EventsTable(tmp_path)
    first = table.commit(*(table.put(f"in/{n}.json", line(name=n)) for n in (3, 1, 2)))
    second = table.commit(table.put("in/0.json", line(name=0)))
    by_hudi = Checkpoint(f"{first.requested_at}#in%2F2.json", Version.V1)
    batch = table.source().next_batch(spark, by_hudi)
    assert names(batch) == [0, 3]
    # And Hudi goes on where this batch ended.
    assert batch.checkpoint is not None
    assert batch.checkpoint.as_extra() == {
        "deltastreamer.checkpoint.key": f"{second.requested_at}#in%2F0.json",
        "lakewright.ingest.position": f"{second.completed_at}#in%2F0.json",
    }
    batch.committed()


def test_an_events_table_without_commit_times_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Without meta fields a row does not say of which commit it is: nothing is passed over."""
    table = EventsTable(tmp_path)
    first = table.commit(table.put("a.json", line(name="a")), table.put("b.json", line(name="b")))
    update_properties(
        table.builder.storage, lambda old: {**old, "hoodie.populate.meta.fields": "false"}
    )
    for after in (None, Checkpoint(f"{first.requested_at}#a.json", Version.V1)):
        with pytest.raises(InvalidError, match=r"hoodie\.populate\.meta\.fields"):
            table.source().next_batch(spark, after)
