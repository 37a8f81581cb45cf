"""How the options of a write are resolved against those of the table."""

from __future__ import annotations

from typing import Any

import pytest

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.partition_paths import partition_rule
from lakewright.model.table_config import TableConfig, TableType
from lakewright.options import HUDI_OPTIONS
from lakewright.services.registry import service_keys
from lakewright.table.create import TableSpec, table_properties
from lakewright.write.options import (
    NO_OP_VALUES,
    OPERATION_KEYS,
    REFUSED_WRITE_OPTIONS,
    SERVICE_PREFIXES,
    check_index,
    check_options_match_table,
    check_write_options,
    properties_to_persist,
    spec_from_options,
    with_write_time_options,
    write_settings,
)
from lakewright.write.write_config import WRITE_KEYS, IndexType, WriteSettings

INDEX, BUCKETS = "hoodie.index.type", "hoodie.bucket.index.num.buckets"
HASHED = "hoodie.bucket.index.hash.field"
KEY = "hoodie.datasource.write.recordkey.field"
EVENT_TIME = "hoodie.payload.event.time.field"
TRACKED = "hoodie.write.track.event.time.watermark"
TEXT_TIMES = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
PRECOMBINE = "hoodie.datasource.write.precombine.field"
PARTITION = "hoodie.datasource.write.partitionpath.field"
RECORD_KEY = "hoodie.datasource.write.recordkey.field"
GENERATOR = "hoodie.datasource.write.keygenerator.type"
FORMAT = "hoodie.keygen.timebased.output.dateformat"


def table(options: dict[str, str] | None = None, **more: Any) -> TableConfig:
    plain = {"name": "t", "record_key": ("id",), "partition_by": ("day",), "ordering": ("ts",)}
    spec = TableSpec(**{**plain, **more}, options=options or {})
    return TableConfig.from_properties(table_properties(spec))


def without(config: TableConfig, *names: str) -> TableConfig:
    """The table as real Hudi would have it, which does not store everything."""
    remaining = {key: value for key, value in config.properties.items() if key not in names}
    return TableConfig.from_properties(remaining)


SILENT = {
    "a setting of writes": {"hoodie.parquet.max.file.size": "1"},
    "in any case": {"Hoodie.Parquet.MAX.file.size": "1"},
    "a lock": {"hoodie.write.lock.provider": "file"},
    "a heartbeat": {"hoodie.client.heartbeat.interval_in_ms": "1"},
    "concurrency": {"hoodie.write.concurrency.mode": "SINGLE_WRITER"},
    "the operation": {"hoodie.datasource.write.operation": "upsert"},
    "the table": {"hoodie.table.name": "t", PRECOMBINE: "ts", FORMAT: "yyyy"},
    "compaction": {"hoodie.compact.inline.max.delta.commits": "3"},
    "no compaction": {"hoodie.compact.inline": "false"},
    "automatic cleaning and archiving": {
        "hoodie.clean.automatic": "true",
        "hoodie.archive.automatic": "true",
    },
    "cleaning by its older names": {"hoodie.cleaner.commits.retained": "3"},
    "archiving": {"hoodie.keep.max.commits": "30"},
    "clustering": {"hoodie.clustering.plan.strategy.sort.columns": "id"},
    "what only we have": {"hoodie.compaction.event.time.lateness": "2h", "hoodie.ttl.enabled": "1"},
    "what is so anyway": {"hoodie.metadata.enable": "false", "hoodie.write.markers.type": "DIRECT"},
    "Hudi's own merger": {
        "hoodie.datasource.write.record.merger.impls": "org.apache.hudi.DefaultSparkRecordMerger"
    },
    "a refused option that says nothing": {
        "hoodie.index.bucket.engine": "SIMPLE",
        "hoodie.write.schema": "",
    },
    "a note for the commit": {"_note": "kept"},
    "a note with a prefix of its own": {
        "hoodie.datasource.write.commitmeta.key.prefix": "by.",
        "by.whom": "kept",
    },
    "what the caller knows": {"hoodie.of.the.caller": "1"},
}


@pytest.mark.parametrize("options", SILENT.values(), ids=list(SILENT))
def test_known_options_pass(options: dict[str, str]) -> None:
    checked = check_write_options(options, also=["hoodie.of.the.caller", *service_keys()])
    assert checked.ignored == ()


def test_keys_of_hudi_have_no_case_and_others_keep_theirs() -> None:
    checked = check_write_options({"HOODIE.Table.Name": "T", "_Note": "N"})
    assert checked.values == {"hoodie.table.name": "T", "_Note": "N"}


def test_options_without_effect_are_reported() -> None:
    options = {"hoodie.metadata.enable": "true", "hoodie.metrics.jmx.port": "1"}
    ignored = check_write_options(options).ignored
    assert ignored == ("hoodie.metadata.enable", "hoodie.metrics.jmx.port")


REFUSED = {
    "no meta fields": ("hoodie.populate.meta.fields", "false"),
    "a record index": ("hoodie.metadata.record.index.enable", "true"),
    "partition columns left out": ("hoodie.datasource.write.drop.partition.columns", "true"),
    "schema on read": ("hoodie.schema.on.read.enable", "true"),
    "schemas reconciled": ("hoodie.datasource.write.reconcile.schema", "true"),
    "a bootstrapped table": ("hoodie.bootstrap.base.path", "/x"),
    "another file format": ("hoodie.base.file.format", "ORC"),
    "rows not combined": ("hoodie.combine.before.upsert", "false"),
    "a merger of one's own": ("hoodie.datasource.write.record.merger.impls", "my.Merger"),
    "consistent hashing": ("hoodie.index.bucket.engine", "CONSISTENT_HASHING"),
    "a catalogue that plain Spark would misread": (
        "hoodie.datasource.hive_sync.sync_as_datasource",
        "false",
    ),
    "validators": ("hoodie.precommit.validators", "my.Validator"),
}


@pytest.mark.parametrize(("key", "value"), REFUSED.values(), ids=list(REFUSED))
def test_an_option_that_would_change_what_is_written_is_refused(key: str, value: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        check_write_options({key: value})
    assert raised.value.facts == {"option": key, "value": value}


def test_every_refused_option_is_refused_even_if_others_would_know_it() -> None:
    for key in REFUSED_WRITE_OPTIONS:
        with pytest.raises(UnsupportedError):
            check_write_options({key: "something else"}, also=[key])


UNKNOWN = {
    "a typing error": ("hoodie.parquet.max.file.sice", "hoodie.parquet.max.file.size"),
    "one in a service": ("hoodie.compact.inlin", "hoodie.compact.inline"),
    "one without a prefix": ("duable", "durable"),
    "one of this library": (
        "lakewright.metrics.reportr",
        "lakewright.metrics.reporter",
    ),
    "one in a key generator": (
        "hoodie.keygen.timebased.timestamp.typ",
        "hoodie.keygen.timebased.timestamp.type",
    ),
    "one in a lock": ("hoodie.write.lock.providr", "hoodie.write.lock.provider"),
}


@pytest.mark.parametrize(("key", "suggestion"), UNKNOWN.values(), ids=list(UNKNOWN))
def test_an_unknown_option_is_an_error_with_the_nearest_name(key: str, suggestion: str) -> None:
    with pytest.raises(InvalidError) as raised:
        check_write_options({key: "1"})
    assert raised.value.facts["did_you_mean"] == suggestion


def test_the_lists_hold_no_typing_errors_and_do_not_contradict_each_other() -> None:
    listed = {*REFUSED_WRITE_OPTIONS, *NO_OP_VALUES, *OPERATION_KEYS}
    assert sorted(listed - HUDI_OPTIONS) == []
    assert not WRITE_KEYS & REFUSED_WRITE_OPTIONS.keys()
    for prefix in SERVICE_PREFIXES:
        assert any(key.startswith(prefix) for key in HUDI_OPTIONS), prefix
    assert all(value == value.lower() for value in REFUSED_WRITE_OPTIONS.values())


def test_a_table_remembers_its_index_and_its_event_time() -> None:
    options = {INDEX: "BUCKET", BUCKETS: "8", HASHED: "id"}
    config = table(options, event_time="ts")
    settings = write_settings(config, {})
    assert (settings.index_type, settings.buckets) == (IndexType.BUCKET, 8)
    assert (settings.bucket_hash_fields, settings.event_time_field) == (("id",), "ts")
    assert settings.track_event_time
    assert settings.event_time == "ts"
    assert properties_to_persist(config, settings) == {}


def test_options_of_a_write_take_precedence() -> None:
    config = table(event_time="ts")
    assert not write_settings(config, {TRACKED: "false"}).track_event_time
    assert write_settings(None, {BUCKETS: "3"}).buckets == 3
    assert write_settings(config, {}).index_type is IndexType.SIMPLE


def test_an_event_time_that_is_not_tracked_is_not_remembered() -> None:
    assert write_settings(table({EVENT_TIME: "ts"}), {}).event_time is None
    assert write_settings(table({EVENT_TIME: "ts", TRACKED: "true"}), {}).event_time == "ts"
    assert write_settings(table(), {}).event_time is None


def test_the_first_write_with_an_index_stores_its_properties() -> None:
    bucket = WriteSettings(index_type=IndexType.BUCKET, buckets=4, bucket_hash_fields=("id",))
    expected = {INDEX: "BUCKET", BUCKETS: "4", HASHED: "id", KEY: "id"}
    assert properties_to_persist(table(), bucket) == expected
    assert properties_to_persist(table({INDEX: "BUCKET", BUCKETS: "4", HASHED: "id"}), bucket) == {}
    everywhere = WriteSettings(index_type=IndexType.GLOBAL_SIMPLE)
    assert properties_to_persist(table(), everywhere) == {INDEX: "GLOBAL_SIMPLE"}
    assert properties_to_persist(table(), WriteSettings(index_type=IndexType.BLOOM)) == {}


def test_options_that_disagree_about_duplicates_are_refused() -> None:
    drop, policy = (
        "hoodie.datasource.write.insert.drop.duplicates",
        ("hoodie.datasource.insert.dup.policy"),
    )
    with pytest.raises(InvalidError, match="duplicates"):
        write_settings(None, {drop: "true", policy: "fail"})
    assert write_settings(None, {drop: "true", policy: "drop"}).duplicate_policy == "drop"
    assert write_settings(None, {drop: "false", policy: "fail"}).duplicate_policy == "fail"


UUID = "4fab0c1d-3f3e-4c58-b0a5-4a7d3e5b7c11-0"
BUCKET_0, BUCKET_3 = "00000000-3f3e-4c58-b0a5-4a7d3e5b7c11-0", "00000003-0000-0000-0000-0-0"
BUCKET = WriteSettings(index_type=IndexType.BUCKET, buckets=4)
FITTING: dict[str, tuple[WriteSettings, list[str]]] = {
    "nothing there yet": (BUCKET, []),
    "nothing there without buckets": (WriteSettings(), []),
    "buckets": (BUCKET, [BUCKET_0, BUCKET_3]),
    "others": (WriteSettings(), [UUID]),
    "others, one of them by chance like a bucket": (WriteSettings(), [UUID, BUCKET_0]),
    "an id of digits that is no bucket": (WriteSettings(), ["82345678-3f3e-4c58-b0a5-4a7d-0"]),
    "digits with naughts before them": (WriteSettings(), ["00045678-3f3e-4c58-b0a5-4a7d-0"]),
}
MISFITTING: dict[str, tuple[WriteSettings, list[str]]] = {
    "buckets without an option": (WriteSettings(), [BUCKET_0, BUCKET_3]),
    "very many buckets": (WriteSettings(), [BUCKET_0, "00045678-3f3e-4c58-b0a5-4a7d-0"]),
    "no buckets": (BUCKET, [UUID]),
    "one that is no bucket": (BUCKET, [BUCKET_0, UUID]),
    "a bucket too many": (WriteSettings(index_type=IndexType.BUCKET, buckets=3), [BUCKET_3]),
}


@pytest.mark.parametrize(("settings", "ids"), FITTING.values(), ids=list(FITTING))
def test_file_groups_that_fit_the_index_are_written_to(
    settings: WriteSettings, ids: list[str]
) -> None:
    assert check_index(settings, ids) is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(("settings", "ids"), MISFITTING.values(), ids=list(MISFITTING))
def test_file_groups_of_another_index_are_not_written_to(
    settings: WriteSettings, ids: list[str]
) -> None:
    with pytest.raises(InvalidError):
        check_index(settings, ids)


TIMED = {
    GENERATOR: "TIMESTAMP",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    FORMAT: "yyyy-MM-dd",
}
CUSTOM: dict[str, Any] = {
    "options": {k: v for k, v in TIMED.items() if k != GENERATOR},
    "partition_by": ("d:TIMESTAMP",),
}
MARK = {"hoodie.payload.delete.field": "op", "hoodie.payload.delete.marker": "D"}
AGREEING: dict[str, tuple[TableConfig, dict[str, str]]] = {
    "no options": (table(), {}),
    "everything as it is": (
        table(),
        {
            "hoodie.table.name": "T",
            "hoodie.datasource.write.table.type": "COPY_ON_WRITE",
            RECORD_KEY: "id",
            PARTITION: "day",
            PRECOMBINE: "ts",
            GENERATOR: "SIMPLE",
            "hoodie.datasource.write.keygenerator.class": (
                "org.apache.hudi.keygen.SimpleKeyGenerator"
            ),
            "hoodie.datasource.write.hive_style_partitioning": "false",
            "hoodie.record.merge.mode": "event_time_ordering",
            "hoodie.database.name": "any",
            "hoodie.table.timeline.timezone": "utc",
        },
    ),
    "no partitions": (table(partition_by=()), {PARTITION: ""}),
    "bloom instead of simple": (table({INDEX: "BLOOM"}), {INDEX: "SIMPLE"}),
    "an index that is not stored": (table(), {INDEX: "BUCKET", BUCKETS: "4"}),
    "the same buckets": (table({INDEX: "BUCKET", BUCKETS: "4"}), {BUCKETS: "4", HASHED: "id"}),
    "times that are not stored": (without(table(TIMED), FORMAT), {FORMAT: "yyyy"}),
    "the same times by the older name": (
        table(TIMED),
        {FORMAT.replace("keygen", "deltastreamer.keygen", 1): "yyyy-MM-dd"},
    ),
    "custom partitions without their kinds": (table(**CUSTOM), {PARTITION: "d"}),
    "custom partitions in another case": (table(**CUSTOM), {PARTITION: "d:timestamp"}),
    "a mode that has no effect for want of an ordering": (
        TableConfig.from_properties(
            {
                **table(ordering=()).properties,
                "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
            }
        ),
        {"hoodie.record.merge.mode": "EVENT_TIME_ORDERING"},
    ),
    "the same mark for deleted rows": (table(MARK), MARK),
    "text of times where the table does not say": (table(), {TEXT_TIMES: "true"}),
}


@pytest.mark.parametrize(("config", "options"), AGREEING.values(), ids=list(AGREEING))
def test_options_that_agree_with_the_table_pass(
    config: TableConfig, options: dict[str, str]
) -> None:
    values = check_write_options(options).values
    assert check_options_match_table(config, values) is None  # type: ignore[func-returns-value]


CONFLICTING: dict[str, tuple[TableConfig, dict[str, str], list[tuple[str, str, str]]]] = {
    "the name": (table(), {"hoodie.table.name": "u"}, [("hoodie.table.name", "u", "t")]),
    "the database": (
        table({"hoodie.database.name": "a"}),
        {"hoodie.database.name": "b"},
        [("hoodie.database.name", "b", "a")],
    ),
    "the type": (
        table(),
        {"hoodie.table.type": "MERGE_ON_READ"},
        [("hoodie.table.type", "MERGE_ON_READ", "COPY_ON_WRITE")],
    ),
    "the key": (table(), {RECORD_KEY: "x"}, [(RECORD_KEY, "x", "id")]),
    "a key where there is none": (table(record_key=()), {RECORD_KEY: "x"}, [(RECORD_KEY, "x", "")]),
    "the partitions": (table(), {PARTITION: "x"}, [(PARTITION, "x", "day")]),
    "no partitions": (table(), {PARTITION: ""}, [(PARTITION, "", "day")]),
    "partitions where there are none": (
        table(partition_by=()),
        {PARTITION: "day"},
        [(PARTITION, "day", "")],
    ),
    "the kind of a custom partition": (
        table(**CUSTOM),
        {PARTITION: "d:simple"},
        [(PARTITION, "d:simple", "d:TIMESTAMP")],
    ),
    "the ordering": (table(), {PRECOMBINE: "x"}, [(PRECOMBINE, "x", "ts")]),
    "an ordering where there is none": (
        table(ordering=()),
        {PRECOMBINE: "x"},
        [(PRECOMBINE, "x", "")],
    ),
    "the key generator": (table(), {GENERATOR: "COMPLEX"}, [(GENERATOR, "COMPLEX", "SIMPLE")]),
    "hive style": (
        table(),
        {"hoodie.datasource.write.hive_style_partitioning": "true"},
        [("hoodie.datasource.write.hive_style_partitioning", "true", "false")],
    ),
    "encoded paths": (
        table({"hoodie.datasource.write.partitionpath.urlencode": "true"}),
        {"hoodie.datasource.write.partitionpath.urlencode": "false"},
        [("hoodie.datasource.write.partitionpath.urlencode", "false", "true")],
    ),
    "the merge mode": (
        table(),
        {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
        [("hoodie.record.merge.mode", "COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING")],
    ),
    "the merge mode by a payload class": (
        table(ordering=()),
        {
            "hoodie.datasource.write.payload.class": (
                "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
            )
        },
        [("hoodie.record.merge.mode", "EVENT_TIME_ORDERING", "COMMIT_TIME_ORDERING")],
    ),
    "the index": (
        table({INDEX: "BUCKET"}),
        {INDEX: "SIMPLE"},
        [(INDEX, "SIMPLE", "BUCKET")],
    ),
    "a global index": (
        table({INDEX: "GLOBAL_SIMPLE"}),
        {INDEX: "BLOOM"},
        [(INDEX, "BLOOM", "GLOBAL_SIMPLE")],
    ),
    "the number of buckets": (
        table({INDEX: "BUCKET", BUCKETS: "4"}),
        {BUCKETS: "8"},
        [(BUCKETS, "8", "4")],
    ),
    "what buckets are made of": (
        table({INDEX: "BUCKET", HASHED: "id"}, record_key=("id", "x")),
        {HASHED: "x"},
        [(HASHED, "x", "id")],
    ),
    "the event time": (table(event_time="ts"), {EVENT_TIME: "x"}, [(EVENT_TIME, "x", "ts")]),
    "how times become folders": (
        table(TIMED),
        {FORMAT: "yyyy-mm-dd"},
        [(FORMAT, "yyyy-mm-dd", "yyyy-MM-dd")],
    ),
    "how times become keys": (
        table({TEXT_TIMES: "true"}),
        {TEXT_TIMES: "false"},
        [(TEXT_TIMES, "false", "true")],
    ),
    "the mark for deleted rows": (
        table(MARK),
        {**MARK, "hoodie.payload.delete.marker": "X"},
        [("hoodie.payload.delete.marker", "X", "D")],
    ),
    "several at once": (
        table(),
        {"hoodie.table.name": "u", RECORD_KEY: "x"},
        [("hoodie.table.name", "u", "t"), (RECORD_KEY, "x", "id")],
    ),
}


@pytest.mark.parametrize(
    ("config", "options", "expected"), CONFLICTING.values(), ids=list(CONFLICTING)
)
def test_options_that_contradict_the_table_are_refused_all_at_once(
    config: TableConfig, options: dict[str, str], expected: list[tuple[str, str, str]]
) -> None:
    with pytest.raises(InvalidError, match="Config conflict") as raised:
        check_options_match_table(config, check_write_options(options).values)
    assert raised.value.facts["conflicts"] == expected


def test_rules_that_real_hudi_does_not_store_are_taken_from_the_options() -> None:
    config = without(table(TIMED), *TIMED)
    older_keys = {key.replace("keygen.", "deltastreamer.keygen.", 1): v for key, v in TIMED.items()}
    whole = with_write_time_options(config, {**older_keys, TEXT_TIMES: "true"})
    assert whole.flag(TEXT_TIMES)
    assert partition_rule("TIMESTAMP", ("day",), whole.properties).fields[0].time is not None
    assert with_write_time_options(table(TIMED), {FORMAT: "other"}) == table(TIMED)


def test_a_first_write_describes_its_table() -> None:
    options = {
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        RECORD_KEY: "id, x",
        PARTITION: "day",
        "hoodie.table.ordering.fields": "ts,n",
        INDEX: "BUCKET",
    }
    assert spec_from_options(options) == TableSpec(
        name="trips",
        table_type=TableType.MERGE_ON_READ,
        record_key=("id", "x"),
        partition_by=("day",),
        ordering=("ts", "n"),
        options=options,
    )


def test_a_first_write_may_name_its_partitions_by_the_dataframe() -> None:
    options = {"hoodie.datasource.write.table.name": "t", PARTITION: " "}
    assert spec_from_options(options, partition_by=["a", "b"]).partition_by == ("a", "b")
    assert spec_from_options(options).partition_by == ()
    same = {**options, PARTITION: "a"}
    assert spec_from_options(same, partition_by=["a"]).partition_by == ("a",)
    with pytest.raises(InvalidError, match="two ways"):
        spec_from_options(same, partition_by=["b"])


def test_a_first_write_needs_a_name() -> None:
    with pytest.raises(InvalidError, match="needs a name"):
        spec_from_options({RECORD_KEY: "id"})
