"""Creating a table: properties as real Hudi writes them, and a table that is there or is not."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hudi import HudiTableBuilder

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.format.avro.schema import arrow_schema
from lakewright.format.table_properties import parse_properties, with_table_checksum
from lakewright.model.table_config import MergeMode, TableType
from lakewright.storage.factory import storage_for
from lakewright.storage.memory import MemoryStorage
from lakewright.table.create import KEEP, TableSpec, create_table, is_table_option, table_properties
from lakewright.table.properties import BACKUP, PROPERTIES, load_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage
from support.golden import GoldenTables

MOR = TableType.MERGE_ON_READ
HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
EXTRACTOR = "hoodie.table.partition_extractor_class"
GENERATOR = "hoodie.table.keygenerator.type"
CHANGES = "hoodie.table.cdc.enabled"
LOGGING = "hoodie.table.cdc.supplemental.logging.mode"
GENERATOR_CLASS = "hoodie.datasource.write.keygenerator.class"
TIMED = {
    "hoodie.datasource.write.keygenerator.type": "TIMESTAMP",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
}
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.string()),
        ("ts", pa.int64()),
        ("in", pa.struct([("a", "i4")])),
    ]
)


def spec(**more: Any) -> TableSpec:
    plain = {"name": "t", "record_key": ("id",), "partition_by": ("day",), "ordering": ("ts",)}
    return TableSpec(**{**plain, **more})


def create(storage: Any, table_spec: TableSpec) -> dict[str, str]:
    config = create_table(storage, ManualClock(), table_spec)
    assert dict(config.properties) == load_properties(storage)
    return dict(config.properties)


# Each with what real Hudi does not have: the index and the old name of the ordering.
AS_REAL: dict[str, tuple[TableSpec, dict[str, str]]] = {
    "cow_basic": (spec(), {}),
    "cow_cdc": (spec(options={CHANGES: "TRUE"}), {}),
    "mor_parquet": (spec(table_type=MOR), {}),
    "cow_hive_complex": (
        spec(
            record_key=("id", "country"),
            partition_by=("country", "day"),
            options={HIVE_STYLE: "TRUE"},
        ),
        {},
    ),
    "cow_nonpartitioned": (spec(partition_by=()), {}),
    "cow_commit_time": (spec(ordering=()), {}),
    "mor_two_ordering": (spec(table_type=MOR, ordering=("ts", "x")), {}),
    "mor_v8": (
        spec(table_type=MOR, options={"hoodie.write.table.version": "8"}),
        {"hoodie.table.precombine.field": "ts"},
    ),
    "mor_bucket": (
        spec(
            table_type=MOR,
            options={"hoodie.index.type": "bucket", "hoodie.bucket.index.num.buckets": "4"},
        ),
        {
            "hoodie.index.type": "BUCKET",
            "hoodie.bucket.index.num.buckets": "4",
            "hoodie.datasource.write.recordkey.field": "id",
        },
    ),
    "mor_event_time_stats": (
        spec(table_type=MOR, event_time="ts"),
        {
            "hoodie.payload.event.time.field": "ts",
            "hoodie.write.track.event.time.watermark": "true",
        },
    ),
}


@pytest.mark.parametrize("name", AS_REAL)
def test_properties_are_those_that_real_hudi_writes(name: str, golden: GoldenTables) -> None:
    table_spec, more = AS_REAL[name]
    fields = {field: getattr(table_spec, field) for field in TableSpec.__dataclass_fields__}
    ours = create(MemoryStorage.fresh(), TableSpec(**{**fields, "name": name}))
    real = parse_properties((golden[name] / PROPERTIES).read_bytes())
    assert ours == {**real, **more}


KINDS: dict[str, tuple[TableSpec, dict[str, str]]] = {
    "one partition column in hive style": (
        spec(options={HIVE_STYLE: "true"}),
        {GENERATOR: "SIMPLE", EXTRACTOR: "org.apache.hudi.hive.HiveStylePartitionValueExtractor"},
    ),
    "dates with slashes": (
        spec(options={"hoodie.datasource.write.slash.separated.date.partitioning": "true"}),
        {
            "hoodie.datasource.write.slash.separated.date.partitioning": "true",
            EXTRACTOR: "org.apache.hudi.hive.SlashEncodedDayPartitionValueExtractor",
        },
    ),
    "an extractor in the options": (
        spec(options={"hoodie.datasource.hive_sync.partition_extractor_class": "my.Own"}),
        {EXTRACTOR: "my.Own"},
    ),
    "two key columns": (spec(record_key=("id", "x")), {GENERATOR: "COMPLEX"}),
    "two key columns without partitions": (
        spec(record_key=("id", "x"), partition_by=()),
        {GENERATOR: "NON_PARTITION", "hoodie.table.partition.fields": ""},
    ),
    "a key generator by its class": (
        spec(options={GENERATOR_CLASS: "org.apache.hudi.keygen.ComplexKeyGenerator"}),
        {GENERATOR: "COMPLEX"},
    ),
    "times": (spec(options=TIMED), {GENERATOR: "TIMESTAMP", **dict(list(TIMED.items())[1:])}),
    "times with the older names": (
        spec(
            options={
                key.replace("hoodie.keygen", "hoodie.deltastreamer.keygen"): value
                for key, value in TIMED.items()
            }
        ),
        {GENERATOR: "TIMESTAMP", **dict(list(TIMED.items())[1:])},
    ),
    "custom partitions": (
        spec(
            partition_by=("country:SIMPLE", "day:timestamp"), options=dict(list(TIMED.items())[1:])
        ),
        {GENERATOR: "CUSTOM", "hoodie.table.partition.fields": "country:SIMPLE,day:timestamp"},
    ),
    "a payload class that is an ordering": (
        spec(
            ordering=(),
            options={
                "hoodie.datasource.write.payload.class": (
                    "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
                )
            },
        ),
        {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
    ),
    "commit time although there is an ordering": (
        spec(options={"hoodie.record.merge.mode": "commit_time_ordering"}),
        {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING", "hoodie.table.ordering.fields": "ts"},
    ),
    "version 8 by commit time": (
        spec(ordering=(), options={"hoodie.write.table.version": "8"}),
        {
            "hoodie.record.merge.strategy.id": "ce9acb64-bde0-424c-9b91-f6ebba25356d",
            "hoodie.compaction.payload.class": (
                "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"
            ),
        },
    ),
    "a mark for deleted rows": (
        spec(options={"hoodie.payload.delete.field": "op", "hoodie.payload.delete.marker": "D"}),
        {
            "hoodie.record.merge.property.hoodie.payload.delete.field": "op",
            "hoodie.record.merge.property.hoodie.payload.delete.marker": "D",
        },
    ),
    "a bucket index with the default number": (
        spec(
            record_key=("id", "x"),
            options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.hash.field": "x"},
        ),
        {"hoodie.bucket.index.num.buckets": "256", "hoodie.bucket.index.hash.field": "x"},
    ),
    "a global index": (
        spec(options={"hoodie.index.type": "GLOBAL_SIMPLE"}),
        {"hoodie.index.type": "GLOBAL_SIMPLE"},
    ),
    "options of the table's own": (
        spec(
            options={
                "hoodie.ttl.policies": '[{"spec": "a=*", "units": "days", "value": "7"}]',
                "hoodie.table.service.plan.cancellable": "true",
                "HOODIE.Database.Name": "db",
                "hoodie.table.timeline.timezone": "local",
            }
        ),
        {
            "hoodie.ttl.policies": (
                '[{"spec":"a=*","level":"PARTITION","units":"DAYS","value":7}]'
            ),
            "hoodie.table.service.plan.cancellable": "true",
            "hoodie.database.name": "db",
            "hoodie.table.timeline.timezone": "LOCAL",
        },
    ),
    "options that say the same again": (
        spec(
            table_type=MOR,
            options={
                "hoodie.table.name": "t",
                "hoodie.datasource.write.table.type": "mor",
                "hoodie.datasource.write.recordkey.field": "id",
                "hoodie.datasource.write.precombine.field": "ts",
                "hoodie.table.cdc.enabled": "false",
            },
        ),
        {"hoodie.table.recordkey.fields": "id"},
    ),
}


@pytest.mark.parametrize(("table_spec", "expected"), KINDS.values(), ids=list(KINDS))
def test_a_spec_becomes_properties(table_spec: TableSpec, expected: dict[str, str]) -> None:
    properties = create(MemoryStorage.fresh(), table_spec)
    assert {key: properties.get(key) for key in expected} == expected


def test_write_options_are_not_stored() -> None:
    options = {"hoodie.parquet.max.file.size": "1", "hoodie.index.type": "SIMPLE"}
    properties = create(MemoryStorage.fresh(), spec(options=options))
    assert not options.keys() & properties.keys()
    assert not is_table_option("hoodie.parquet.max.file.size")
    assert is_table_option("hoodie.index.type")
    assert is_table_option("Hoodie.TTL.policies")


def test_a_schema_is_stored_under_the_name_that_real_writers_use() -> None:
    storage = MemoryStorage.fresh()
    properties = create(storage, spec(name="my-trips", schema=SCHEMA, ordering=("in.a",)))
    text = properties["hoodie.table.create.schema"]
    assert '"name":"my__trips_record","namespace":"hoodie.my__trips"' in text
    assert arrow_schema(text).names == SCHEMA.names
    snapshot = load_snapshot(storage)
    assert snapshot.schema(snapshot.view()).names[5:] == SCHEMA.names


WRONG: dict[str, tuple[TableSpec, type[Exception]]] = {
    "no name": (spec(name=" "), InvalidError),
    "a name with a line break": (spec(name="a\nb"), InvalidError),
    "no key in a merge-on-read table": (spec(record_key=(), table_type=MOR), InvalidError),
    "a column twice": (spec(record_key=("id", "id")), InvalidError),
    "an ordering twice": (spec(ordering=("ts", "ts")), InvalidError),
    "an ordering twice in different ways": (
        spec(options={"hoodie.datasource.write.precombine.field": "x"}),
        InvalidError,
    ),
    "a partition column twice": (
        spec(partition_by=("day:SIMPLE", "day:SIMPLE")),
        InvalidError,
    ),
    "a meta column as key": (spec(record_key=("_hoodie_record_key",)), InvalidError),
    "a comma in a name": (spec(record_key=("a,b",)), InvalidError),
    "an empty column name": (spec(partition_by=("",)), InvalidError),
    "a key that the schema lacks": (spec(schema=SCHEMA, record_key=("x",)), InvalidError),
    "a nested ordering that the schema lacks": (
        spec(schema=SCHEMA, ordering=("in.b",)),
        InvalidError,
    ),
    "an event time that is none": (spec(schema=SCHEMA, event_time="in"), InvalidError),
    "an event time that the options know otherwise": (
        spec(event_time="ts", options={"hoodie.payload.event.time.field": "x"}),
        InvalidError,
    ),
    "another name in the options": (spec(options={"hoodie.table.name": "u"}), InvalidError),
    "another type in the options": (spec(options={"hoodie.table.type": "MOR"}), InvalidError),
    "a type that does not exist": (spec(options={"hoodie.table.type": "x"}), InvalidError),
    "event time without ordering": (
        spec(ordering=(), options={"hoodie.record.merge.mode": "EVENT_TIME_ORDERING"}),
        InvalidError,
    ),
    "a merge mode that does not exist": (
        spec(options={"hoodie.record.merge.mode": "LATEST"}),
        InvalidError,
    ),
    "merge modes that contradict each other": (
        spec(
            options={
                "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
                "hoodie.compaction.payload.class": (
                    "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
                ),
            }
        ),
        InvalidError,
    ),
    "a merge class of one's own": (
        spec(options={"hoodie.record.merge.mode": "CUSTOM"}),
        UnsupportedError,
    ),
    "a payload class of one's own": (
        spec(options={"hoodie.datasource.write.payload.class": "my.Payload"}),
        UnsupportedError,
    ),
    "a key generator of one's own": (
        spec(options={GENERATOR_CLASS: "my.Generator"}),
        UnsupportedError,
    ),
    "two key generators": (
        spec(options={GENERATOR: "SIMPLE", "hoodie.datasource.write.keygenerator.type": "COMPLEX"}),
        InvalidError,
    ),
    "a simple generator with two keys": (
        spec(record_key=("a", "b"), options={GENERATOR: "SIMPLE"}),
        InvalidError,
    ),
    "a simple generator without partition": (
        spec(partition_by=(), options={GENERATOR: "SIMPLE"}),
        InvalidError,
    ),
    "partitions with a generator for none": (
        spec(options={GENERATOR: "NON_PARTITION"}),
        InvalidError,
    ),
    "times without a format": (spec(options={GENERATOR: "TIMESTAMP"}), InvalidError),
    "a format without times": (spec(options=dict(list(TIMED.items())[1:])), InvalidError),
    "half a custom partition": (spec(partition_by=("a:SIMPLE", "b")), InvalidError),
    "version 8 with two orderings": (
        spec(ordering=("a", "b"), options={"hoodie.write.table.version": "8"}),
        InvalidError,
    ),
    "an older version": (spec(options={"hoodie.write.table.version": "6"}), UnsupportedError),
    "half a mark for deleted rows": (
        spec(options={"hoodie.payload.delete.field": "op"}),
        InvalidError,
    ),
    "a bucket index without key": (
        spec(record_key=(), options={"hoodie.index.type": "BUCKET"}),
        InvalidError,
    ),
    "a bucket index by another column": (
        spec(options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.hash.field": "x"}),
        InvalidError,
    ),
    "no buckets": (
        spec(options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "0"}),
        InvalidError,
    ),
    "an index that does not exist": (spec(options={"hoodie.index.type": "TREE"}), InvalidError),
    "an index that is not supported": (
        spec(options={"hoodie.index.type": "RECORD_INDEX"}),
        UnsupportedError,
    ),
    "change data without keys": (
        spec(record_key=(), options={CHANGES: "true"}),
        InvalidError,
    ),
    "change data that is logged in no known way": (
        spec(options={CHANGES: "true", LOGGING: "ALL"}),
        InvalidError,
    ),
    "no meta fields": (spec(options={"hoodie.populate.meta.fields": "false"}), UnsupportedError),
    "another file format": (
        spec(options={"hoodie.table.base.file.format": "ORC"}),
        UnsupportedError,
    ),
    "a zone that does not exist": (
        spec(options={"hoodie.table.timeline.timezone": "Mars"}),
        InvalidError,
    ),
    "a flag that is none": (spec(options={HIVE_STYLE: "yes"}), InvalidError),
}


@pytest.mark.parametrize(("table_spec", "error"), WRONG.values(), ids=list(WRONG))
def test_a_wrong_spec_writes_nothing(table_spec: TableSpec, error: type[Exception]) -> None:
    storage = MemoryStorage.fresh()
    with pytest.raises(error):
        create_table(storage, ManualClock(), table_spec)
    assert list(storage.list_tree("")) == []


IN_THE_WAY = {
    "a table": (PROPERTIES, "there is a table already"),
    "a table in the middle of a change": (BACKUP, "there is a table already"),
    "instants of a deleted table": (".hoodie/timeline/1_2.commit", "remains"),
    "a metadata table of a deleted table": (".hoodie/metadata/x", "remains"),
    "a parquet file": ("a.parquet", "data files"),
    "a parquet file deep below": ("x/y/a.parquet", "data files"),
    "a log file": ("day/.f_20260101000000000.log.1_0-0-0", "data files"),
    "a file of another format": ("x/a.orc", "data files"),
}


@pytest.mark.parametrize(("path", "message"), IN_THE_WAY.values(), ids=list(IN_THE_WAY))
def test_a_place_that_is_taken_is_refused(path: str, message: str) -> None:
    storage = MemoryStorage.fresh({path: b"x"})
    with pytest.raises(InvalidError, match=message):
        create_table(storage, ManualClock(), spec())
    assert [file.path for file in storage.list_tree("")] == [path]


def test_other_files_may_be_there() -> None:
    storage = MemoryStorage.fresh({"README": b"", "x/.a.parquet.crc": b"", ".hoodie/lock": b""})
    create(storage, spec())


def test_of_two_creators_one_wins() -> None:
    storage = MemoryStorage.fresh()

    class ClockOfAnotherCreator(ManualClock):
        def now_ms(self) -> int:
            create_table(storage, ManualClock(), spec(name="rival"))
            return super().now_ms()

    with pytest.raises(InvalidError, match="there is a table already"):
        create_table(storage, ClockOfAnotherCreator(), spec(name="late"))
    assert load_properties(storage)["hoodie.table.name"] == "rival"


@pytest.mark.parametrize("after_effect", [False, True])
def test_killed_anywhere_there_is_a_whole_table_or_none(after_effect: bool) -> None:
    for survive in count():
        storage = MemoryStorage.fresh()
        try:
            create_table(
                CrashingStorage(storage, survive, after_effect=after_effect), ManualClock(), spec()
            )
        except Crash:
            if storage.exists(PROPERTIES):
                assert load_properties(storage) == with_table_checksum(table_properties(spec()))
            else:
                create(storage, spec())
        else:
            assert survive == 2
            return


def test_a_new_table_can_be_opened_by_us_and_by_hudi_rs(tmp_path: Path) -> None:
    storage = storage_for(str(tmp_path / "t"), {})
    config = create_table(storage, ManualClock(), spec(table_type=MOR, event_time="ts"))
    assert (config.name, config.merge_mode) == ("t", MergeMode.EVENT_TIME)
    assert storage.exists(KEEP)
    assert tuple(load_snapshot(storage).timeline) == ()
    assert HudiTableBuilder.from_base_uri(str(tmp_path / "t")).build().get_timeline() is not None
