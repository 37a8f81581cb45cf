"""Laws of the metadata formats: what is written comes back, and damage never surprises."""

from __future__ import annotations

import types
import typing
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format import archived_file, archived_timeline, timeline_metadata
from lakewright.format.partition_metadata import (
    PartitionMetadata,
    format_partition_metadata,
    parse_partition_metadata,
)
from lakewright.format.table_properties import format_properties, parse_properties
from lakewright.model.commit_metadata import (
    CleanMetadata,
    CommitMetadata,
    IndexCommitMetadata,
    RestoreMetadata,
    RollbackMetadata,
    SavepointMetadata,
)
from lakewright.model.plans import (
    CleanPlan,
    CompactionPlan,
    IndexPlan,
    RequestedReplace,
    RestorePlan,
    RollbackPlan,
)
from support.soak import sized

GOLDEN = Path(__file__).parents[1] / "golden"
INT_FIELDS = {"files_deleted", "log_version", "output_groups", "version"}
TEXT = st.text(max_size=12)
SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=12),
    types.NoneType: st.none(),
}


def values(kind: Any, **fixed: Any) -> st.SearchStrategy[Any]:
    """Any value of a dataclass, field by field from its annotations."""
    hints = typing.get_type_hints(kind)
    parts = {
        attribute.name: st.just(fixed[attribute.name])
        if attribute.name in fixed
        else _field(hints[attribute.name], 31 if attribute.name in INT_FIELDS else 63)
        for attribute in fields(kind)
    }
    return st.builds(kind, **parts)


def _field(hint: Any, bits: int) -> st.SearchStrategy[Any]:
    if hint in SIMPLE:
        return SIMPLE[hint]
    if hint is int:
        return st.integers(-(2**bits), 2**bits - 1)
    if is_dataclass(hint):
        return values(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        return st.lists(_field(arguments[0], bits), max_size=3).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, _field(arguments[1], bits), max_size=3)
    assert origin in (types.UnionType, typing.Union), hint
    return st.one_of([_field(argument, bits) for argument in arguments])


ROUND_TRIPS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], bytes], Any]] = {
    "commit": (
        values(CommitMetadata, replaced={}),
        timeline_metadata.format_commit,
        timeline_metadata.parse_commit,
    ),
    "replacecommit": (
        values(CommitMetadata),
        timeline_metadata.format_replace_commit,
        timeline_metadata.parse_commit,
    ),
    "compaction plan": (
        values(CompactionPlan),
        timeline_metadata.format_compaction_plan,
        timeline_metadata.parse_compaction_plan,
    ),
    "requested replace": (
        values(RequestedReplace),
        timeline_metadata.format_requested_replace,
        timeline_metadata.parse_requested_replace,
    ),
    "clean plan": (
        values(CleanPlan),
        timeline_metadata.format_clean_plan,
        timeline_metadata.parse_clean_plan,
    ),
    "clean": (values(CleanMetadata), timeline_metadata.format_clean, timeline_metadata.parse_clean),
    "rollback plan": (
        values(RollbackPlan),
        timeline_metadata.format_rollback_plan,
        timeline_metadata.parse_rollback_plan,
    ),
    "rollback": (
        values(RollbackMetadata),
        timeline_metadata.format_rollback,
        timeline_metadata.parse_rollback,
    ),
    "savepoint": (
        values(SavepointMetadata),
        timeline_metadata.format_savepoint,
        timeline_metadata.parse_savepoint,
    ),
    "restore plan": (
        values(RestorePlan),
        timeline_metadata.format_restore_plan,
        timeline_metadata.parse_restore_plan,
    ),
    "restore": (
        values(RestoreMetadata),
        timeline_metadata.format_restore,
        timeline_metadata.parse_restore,
    ),
    "index plan": (
        values(IndexPlan),
        timeline_metadata.format_index_plan,
        timeline_metadata.parse_index_plan,
    ),
    "index commit": (
        values(IndexCommitMetadata),
        timeline_metadata.format_index_commit,
        timeline_metadata.parse_index_commit,
    ),
    "partition metadata": (
        st.builds(
            PartitionMetadata,
            commit_time=st.text("0123456789", min_size=1),
            depth=st.integers(0, 99),
            last_update_time=st.none() | TEXT,
            extra=st.dictionaries(TEXT.map("x".__add__), TEXT, max_size=3),
        ),
        format_partition_metadata,
        parse_partition_metadata,
    ),
    "properties": (st.dictionaries(TEXT, TEXT), format_properties, parse_properties),
    "archived instants": (
        st.lists(
            st.builds(
                archived_file.ArchivedInstant,
                TEXT.filter(bool),
                TEXT.filter(bool),
                TEXT.filter(bool),
                st.none() | st.binary(),
                st.none() | st.binary(),
            ),
            max_size=5,
            unique_by=lambda entry: (entry.requested_at, entry.completed_at),
        ).map(lambda all_: tuple(sorted(all_, key=lambda e: (e.requested_at, e.completed_at)))),
        archived_file.format_archived_file,
        archived_file.parse_archived_file,
    ),
    "manifest": (
        st.lists(
            st.builds(
                archived_timeline.ArchivedTimelineFile,
                st.text("0123456789", min_size=1),
                st.text("0123456789", min_size=1),
                st.integers(0, 9),
                st.integers(0, 2**63),
            )
        ).map(lambda files: archived_timeline.Manifest(tuple(files))),
        archived_timeline.format_manifest,
        archived_timeline.parse_manifest,
    ),
}


@pytest.mark.parametrize(
    ("strategy", "format_", "parse"), ROUND_TRIPS.values(), ids=list(ROUND_TRIPS)
)
def test_what_is_written_comes_back(
    strategy: st.SearchStrategy[Any], format_: Callable[[Any], bytes], parse: Any
) -> None:
    @settings(max_examples=sized(15, soak=400), deadline=None)
    @given(strategy)
    def comes_back(value: Any) -> None:
        data = format_(value)
        assert parse(data) == value
        assert format_(parse(data)) == data

    comes_back()


def golden(table: str, ending: str) -> bytes:
    with zipfile.ZipFile(GOLDEN / f"{table}.zip") as archive:
        names = [
            name
            for name in archive.namelist()
            if name.endswith(ending) and not name.rpartition("/")[2].startswith(".")
        ]
        return archive.read(sorted(names)[0])


SAMPLES: dict[str, tuple[bytes, Callable[[bytes], Any]]] = {
    "commit": (golden("cow_basic", ".commit"), timeline_metadata.parse_commit),
    "deltacommit": (golden("mor_avro", ".deltacommit"), timeline_metadata.parse_commit),
    "replacecommit": (golden("cow_clustered", ".replacecommit"), timeline_metadata.parse_commit),
    "compaction plan": (
        golden("mor_compacted", ".compaction.requested"),
        timeline_metadata.parse_compaction_plan,
    ),
    "clustering plan": (
        golden("cow_clustered", ".clustering.requested"),
        timeline_metadata.parse_requested_replace,
    ),
    "clean plan": (golden("cow_archived", ".clean.requested"), timeline_metadata.parse_clean_plan),
    "clean": (golden("cow_archived", ".clean"), timeline_metadata.parse_clean),
    "rollback plan": (
        golden("cow_rolled_back", ".rollback.requested"),
        timeline_metadata.parse_rollback_plan,
    ),
    "rollback": (golden("cow_rolled_back", ".rollback"), timeline_metadata.parse_rollback),
    "savepoint": (golden("cow_savepoint", ".savepoint"), timeline_metadata.parse_savepoint),
    "restore": (
        timeline_metadata.format_restore(
            RestoreMetadata(
                started_at="1", rollbacks={"2": (RollbackMetadata(started_at="3", commits=("2",)),)}
            )
        ),
        timeline_metadata.parse_restore,
    ),
    "index plan": (
        timeline_metadata.format_index_plan(IndexPlan()),
        timeline_metadata.parse_index_plan,
    ),
    "archived instants": (
        golden("cow_archived", "_0.parquet"),
        archived_file.parse_archived_file,
    ),
    "manifest": (golden("cow_archived", "manifest_3"), archived_timeline.parse_manifest),
    "properties": (golden("cow_basic", "hoodie.properties"), parse_properties),
    "partition metadata": (
        format_partition_metadata(PartitionMetadata(commit_time="20260101000000000", depth=1)),
        parse_partition_metadata,
    ),
}


@st.composite
def damages(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` after a few accidents; half of them behind the header, where the record is."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        last = max(len(damaged) - 1, 0)
        first = draw(st.sampled_from([0, last * 3 // 4]))
        start = draw(st.integers(first, last))
        end = draw(st.integers(start, min(start + 8, len(damaged))))
        match draw(st.sampled_from(["bit", "bytes", "cut", "drop"])):
            case "bit" if damaged:
                damaged[start] ^= 1 << draw(st.integers(0, 7))
            case "bytes":
                damaged[start:end] = draw(st.binary(max_size=12))
            case "cut":
                del damaged[start:]
            case _:
                del damaged[start:end]
    return bytes(damaged)


@pytest.mark.parametrize(("data", "parse"), SAMPLES.values(), ids=list(SAMPLES))
def test_damaged_metadata_is_a_value_or_a_named_error(
    data: bytes, parse: Callable[[bytes], Any]
) -> None:
    @settings(max_examples=sized(40, soak=1500), deadline=2_000)
    @given(damages(data) | st.binary(max_size=64))
    def parses_or_fails(damaged: bytes) -> None:
        try:
            value = parse(damaged)
        except (CorruptError, UnsupportedError):
            return
        assert value is not None

    parses_or_fails()
