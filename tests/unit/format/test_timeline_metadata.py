"""Timeline metadata against files of real Hudi, and the rules that real readers depend on."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import fastavro
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format import timeline_metadata
from lakewright.format.archived_file import parse_archived_file
from lakewright.format.avro.container import encode_record, record_name
from lakewright.format.avro.schema import RecordSchema, load_schema
from lakewright.model.commit_metadata import CommitMetadata, RollbackMetadata, WriteStat
from lakewright.model.plans import (
    CompactionOperation,
    CompactionPlan,
    InstantRef,
    RequestedReplace,
    RestorePlan,
    RollbackPlan,
)

GOLDEN = Path(__file__).parents[2] / "golden"
Pair = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]

PAIRS: dict[str, Pair] = {
    "HoodieCommitMetadata": (timeline_metadata.parse_commit, timeline_metadata.format_commit),
    "HoodieReplaceCommitMetadata": (
        timeline_metadata.parse_commit,
        timeline_metadata.format_replace_commit,
    ),
    "HoodieCompactionPlan": (
        timeline_metadata.parse_compaction_plan,
        timeline_metadata.format_compaction_plan,
    ),
    "HoodieRequestedReplaceMetadata": (
        timeline_metadata.parse_requested_replace,
        timeline_metadata.format_requested_replace,
    ),
    "HoodieCleanerPlan": (timeline_metadata.parse_clean_plan, timeline_metadata.format_clean_plan),
    "HoodieCleanMetadata": (timeline_metadata.parse_clean, timeline_metadata.format_clean),
    "HoodieRollbackPlan": (
        timeline_metadata.parse_rollback_plan,
        timeline_metadata.format_rollback_plan,
    ),
    "HoodieRollbackMetadata": (timeline_metadata.parse_rollback, timeline_metadata.format_rollback),
    "HoodieSavepointMetadata": (
        timeline_metadata.parse_savepoint,
        timeline_metadata.format_savepoint,
    ),
    "HoodieRestorePlan": (
        timeline_metadata.parse_restore_plan,
        timeline_metadata.format_restore_plan,
    ),
    "HoodieRestoreMetadata": (timeline_metadata.parse_restore, timeline_metadata.format_restore),
    "HoodieIndexPlan": (timeline_metadata.parse_index_plan, timeline_metadata.format_index_plan),
    "HoodieIndexCommitMetadata": (
        timeline_metadata.parse_index_commit,
        timeline_metadata.format_index_commit,
    ),
}


def timeline_files(archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Every metadata file of a table and of its metadata table, archived ones included."""
    for name in archive.namelist():
        if re.search(r"/timeline/[^/.]+\.[^/]+$", name):
            yield name, archive.read(name)
        elif re.search(r"/history/[^/.]+\.parquet$", name):
            for entry in parse_archived_file(archive.read(name)):
                yield f"{name}#{entry.requested_at}", entry.metadata or b""
                yield f"{name}#{entry.requested_at}.plan", entry.plan or b""


def all_metadata() -> dict[str, bytes]:
    metadata: dict[str, bytes] = {}
    for path in sorted(GOLDEN.glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            metadata |= {name: data for name, data in timeline_files(archive) if data}
    return metadata


METADATA = all_metadata()


def decoded(data: bytes) -> Any:
    (record,) = fastavro.reader(io.BytesIO(data))
    return record


def without_null_collections(schema: Any, value: Any) -> Any:
    """What null means where the schema has a list or map: empty."""
    if isinstance(schema, list):
        branch = next(option for option in schema if option != "null")
        is_collection = isinstance(branch, dict) and branch["type"] in ("array", "map")
        if value is None and is_collection:
            return [] if branch["type"] == "array" else {}
        return None if value is None else without_null_collections(branch, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {
            field["name"]: without_null_collections(field["type"], value[field["name"]])
            for field in schema["fields"]
        }
    if kind == "array":
        return [without_null_collections(schema["items"], item) for item in value]
    if kind == "map":
        return {k: without_null_collections(schema["values"], item) for k, item in value.items()}
    return value


def test_the_golden_tables_hold_all_kinds_but_those_of_restore_and_indexing() -> None:
    kinds = {record_name(data) for data in METADATA.values()}
    assert kinds == {name for name in PAIRS if "Restore" not in name and "Index" not in name}
    assert len(METADATA) > 230


@pytest.mark.parametrize("data", METADATA.values(), ids=list(METADATA))
def test_real_files_are_written_back_as_they_were(data: bytes) -> None:
    parse, format_ = PAIRS[record_name(data)]
    ours = format_(parse(data))
    original = decoded(data)
    if decoded(ours) != original:
        schema = json.loads(load_schema(record_name(data)).text)
        # A clustering group and a requested replace of real Hudi leave maps out.
        assert record_name(data) == "HoodieRequestedReplaceMetadata"
        assert decoded(ours) == without_null_collections(schema, original)
    assert parse(ours) == parse(data)


EXACT = {
    name: data
    for name, data in METADATA.items()
    if record_name(data)
    in (
        "HoodieCommitMetadata",
        "HoodieReplaceCommitMetadata",
        "HoodieCleanMetadata",
        "HoodieRollbackMetadata",
        "HoodieSavepointMetadata",
    )
}


def test_commits_and_outcomes_are_written_back_byte_for_byte_but_for_the_sync_marker() -> None:
    assert len(EXACT) > 200
    for name, data in EXACT.items():
        parse, format_ = PAIRS[record_name(data)]
        ours = format_(parse(data))
        assert ours.replace(ours[-16:], data[-16:]) == data, name


@pytest.mark.parametrize("name", PAIRS)
def test_our_schemas_are_those_of_real_files(name: str) -> None:
    texts = {header(data) for data in METADATA.values() if record_name(data) == name}
    for text in texts:
        ours, theirs = json.loads(load_schema(name).text), json.loads(text)
        assert json.dumps(ours) == json.dumps(without_documentation(theirs))


def header(data: bytes) -> str:
    text = fastavro.reader(io.BytesIO(data)).metadata["avro.schema"]
    return str(text)


def without_documentation(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_documentation(item) for item in schema]
    if isinstance(schema, dict):
        return {k: without_documentation(item) for k, item in schema.items() if k != "doc"}
    return schema


def test_write_statistics_cover_every_field_of_the_format() -> None:
    stat = json.loads(load_schema("HoodieCommitMetadata").text)["fields"][0]["type"][1]
    stored = [field["name"] for field in stat["values"]["items"]["fields"]]
    snake = [re.sub(r"[A-Z]", lambda m: f"_{m[0].lower()}", name) for name in stored]
    assert [field.name for field in fields(WriteStat)] == snake
    assert len(snake) == 31


@pytest.mark.parametrize("name", PAIRS)
def test_no_field_of_the_format_is_forgotten(name: str) -> None:
    """A record with every field set keeps them all."""
    schema = load_schema(name)
    parse, format_ = PAIRS[name]
    record = filled(json.loads(schema.text), {}, iter(range(1, 10_000)))
    assert decoded(format_(parse(encode_record(record, schema)))) == record


def filled(schema: Any, named_types: dict[str, Any], numbers: Iterator[int]) -> Any:
    if isinstance(schema, list):
        return filled(next(option for option in schema if option != "null"), named_types, numbers)
    if isinstance(schema, str) and schema in named_types:
        return filled(named_types[schema], named_types, numbers)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        named_types[schema["name"]] = schema
        return {
            field["name"]: filled(field["type"], named_types, numbers) for field in schema["fields"]
        }
    if kind == "array":
        return [filled(schema["items"], named_types, numbers) for _ in range(2)]
    if kind == "map":
        return {
            str(next(numbers)): filled(schema["values"], named_types, numbers) for _ in range(2)
        }
    number = next(numbers)
    return {"string": str(number), "boolean": True, "double": number / 2}.get(kind, number)


def test_a_replacecommit_in_flight_holds_a_plain_commit() -> None:
    names = [name for name in METADATA if name.endswith(".replacecommit.inflight")]
    assert names
    for name in names:
        assert record_name(METADATA[name]) == "HoodieCommitMetadata"
        assert timeline_metadata.parse_commit(METADATA[name]).replaced == {}


def test_real_values() -> None:
    (name,) = [n for n in METADATA if "cow_clustered" in n and n.endswith(".replacecommit")]
    commit = timeline_metadata.parse_commit(METADATA[name])
    assert (commit.operation, commit.compacted, commit.version) == ("CLUSTER", False, None)
    assert len(commit.replaced) == 3
    assert commit.schema is not None
    assert json.loads(commit.schema)["name"] == "cow_clustered_record"
    (name,) = [n for n in METADATA if "mor_pending" in n and n.endswith("compaction.requested")]
    plan = timeline_metadata.parse_compaction_plan(METADATA[name])
    assert plan.version == 2
    assert plan.missing_partitions == ()
    assert {operation.next_base_instant for operation in plan.operations} == {None}
    assert all(log.startswith(".") for operation in plan.operations for log in operation.logs)


NULLS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a commit without anything": (
        "HoodieCommitMetadata",
        {"partitionToWriteStats": None, "extraMetadata": None, "compacted": None, "version": 1},
        CommitMetadata(version=1),
    ),
    "a replacecommit without replaced groups": (
        "HoodieReplaceCommitMetadata",
        {"partitionToReplaceFileIds": None, "version": None},
        CommitMetadata(),
    ),
    "a requested replace without anything": (
        "HoodieRequestedReplaceMetadata",
        {"extraMetadata": None, "version": None},
        RequestedReplace(version=None),
    ),
    "a compaction plan of a planner that is not incremental": (
        "HoodieCompactionPlan",
        {"operations": None, "missingSchedulePartitions": None, "version": None},
        CompactionPlan(version=None),
    ),
}


@pytest.mark.parametrize(("name", "record", "expected"), NULLS.values(), ids=list(NULLS))
def test_null_collections_are_read_as_empty(
    name: str, record: dict[str, Any], expected: object
) -> None:
    assert PAIRS[name][0](encode_record(record, load_schema(name))) == expected


def test_empty_maps_are_written_and_never_null() -> None:
    record = decoded(timeline_metadata.format_replace_commit(CommitMetadata()))
    assert record["partitionToWriteStats"] == {}
    assert record["partitionToReplaceFileIds"] == {}
    assert record["extraMetadata"] == {}


OPERATION = CompactionOperation(partition="p", file_id="f", base_instant="20260101000000000")
NEXT = replace(OPERATION, next_base_instant="20260101000000001")


def plan_fields(data: bytes) -> list[str]:
    schema = json.loads(header(data))
    return [field["name"] for field in schema["fields"][0]["type"][1]["items"]["fields"]]


def test_an_ordinary_plan_has_the_schema_of_real_hudi() -> None:
    data = timeline_metadata.format_compaction_plan(CompactionPlan(operations=(OPERATION,)))
    assert "nextBaseInstantTime" not in plan_fields(data)


def test_a_next_base_instant_is_written_as_the_last_field_and_survives() -> None:
    plan = CompactionPlan(operations=(OPERATION, NEXT))
    data = timeline_metadata.format_compaction_plan(plan)
    assert plan_fields(data)[-1] == "nextBaseInstantTime"
    assert timeline_metadata.parse_compaction_plan(data) == plan


def test_a_next_base_instant_is_found_wherever_its_writer_put_it() -> None:
    schema = json.loads(load_schema("HoodieCompactionPlan").text)
    operation_fields = schema["fields"][0]["type"][1]["items"]["fields"]
    operation_fields.insert(0, {"name": "nextBaseInstantTime", "type": ["null", "string"]})
    text = json.dumps(schema)
    foreign = RecordSchema(schema["name"], text, fastavro.parse_schema(schema), None)
    stored = {"baseInstantTime": "1", "fileId": "f", "nextBaseInstantTime": "2"}
    data = encode_record({"operations": [stored]}, foreign)
    (operation,) = timeline_metadata.parse_compaction_plan(data).operations
    assert operation.next_base_instant == "2"
    assert operation.partition == ""


TARGET = InstantRef("20260101000000000", "commit")
ROLLBACKS: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "a plan": (
        RollbackPlan(instant=TARGET),
        timeline_metadata.format_rollback_plan,
        timeline_metadata.parse_rollback_plan,
    ),
    "its outcome": (
        RollbackMetadata(started_at="20260101000000001", instants=(TARGET,)),
        timeline_metadata.format_rollback,
        timeline_metadata.parse_rollback,
    ),
}


@pytest.mark.parametrize(("value", "write", "read"), ROLLBACKS.values(), ids=list(ROLLBACKS))
def test_only_a_rollback_with_a_cause_has_fields_that_real_hudi_does_not_know(
    value: Any, write: Callable[[Any], bytes], read: Callable[[bytes], Any]
) -> None:
    plain, with_cause = write(value), write(replace(value, caused_by="clean", reason="too old"))
    names = [field["name"] for field in json.loads(header(plain))["fields"]]
    more = [field["name"] for field in json.loads(header(with_cause))["fields"]]
    assert more == [*names, "lakewrightCausedBy", "lakewrightReason"]
    assert (read(plain).caused_by, read(plain).reason) == (None, None)
    assert (read(with_cause).caused_by, read(with_cause).reason) == ("clean", "too old")


MEANINGLESS = {
    "an operation without a file id": (
        "HoodieCompactionPlan",
        {"operations": [{"baseInstantTime": "1", "fileId": None}]},
        "a file id",
    ),
    "an operation without a base instant": (
        "HoodieCompactionPlan",
        {"operations": [{"baseInstantTime": None, "fileId": "f"}]},
        "a base instant",
    ),
    "a rollback of nothing": ("HoodieRollbackPlan", {"instantToRollback": None}, "the instant"),
    "a file to clean without a path": (
        "HoodieCleanerPlan",
        {"policy": "", "filePathsToBeDeletedPerPartition": {"p": [{"filePath": None}]}},
        "the path",
    ),
}


@pytest.mark.parametrize(("name", "record", "missing"), MEANINGLESS.values(), ids=list(MEANINGLESS))
def test_records_that_mean_nothing_are_corrupt(
    name: str, record: dict[str, Any], missing: str
) -> None:
    with pytest.raises(CorruptError, match=f"lacks {missing}"):
        PAIRS[name][0](encode_record(record, load_schema(name)))


@pytest.mark.parametrize("name", PAIRS)
def test_json_of_older_tables_is_unsupported(name: str) -> None:
    with pytest.raises(UnsupportedError, match="before version 8"):
        PAIRS[name][0](b'{\n  "operationType" : "UPSERT"\n}')


@pytest.mark.parametrize("name", PAIRS)
def test_an_empty_file_is_corrupt(name: str) -> None:
    with pytest.raises(CorruptError):
        PAIRS[name][0](b"")


def test_a_plain_commit_cannot_replace_file_groups() -> None:
    with pytest.raises(InvalidError, match="only a replacecommit"):
        timeline_metadata.format_commit(CommitMetadata(replaced={"p": ("f",)}))


def test_a_value_of_the_wrong_type_is_invalid() -> None:
    wrong = InstantRef(requested_at=5, action="commit")  # type: ignore[arg-type]
    with pytest.raises(InvalidError):
        timeline_metadata.format_restore_plan(RestorePlan(instants=(wrong,)))
