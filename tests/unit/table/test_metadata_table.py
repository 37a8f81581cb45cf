"""Dropping real Hudi's metadata table, and the tables that are not written at all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import pytest

from lakewright.errors import ConflictError, InvalidError, UnsupportedError
from lakewright.format.table_properties import format_properties, with_table_checksum
from lakewright.model.table_config import TableConfig
from lakewright.model.timeline import Timeline
from lakewright.storage.factory import storage_for
from lakewright.storage.memory import MemoryStorage
from lakewright.table.feature_checks import check_writable, check_write_can_begin
from lakewright.table.options import Concurrency
from lakewright.table.properties import (
    METADATA_FOLDER,
    PROPERTIES,
    drop_metadata_table,
    has_metadata_table,
    load_properties,
    metadata_partitions,
)
from lakewright.testing.storage import CountingStorage, Crash, CrashingStorage
from lakewright.testing.timeline_drawing import draw
from support.golden import GoldenTables

TRUSTED = "hoodie.table.metadata.partitions"
BUILDING = "hoodie.table.metadata.partitions.inflight"
PLAIN = {
    "hoodie.table.name": "t",
    "hoodie.table.type": "COPY_ON_WRITE",
    "hoodie.table.version": "9",
    "hoodie.timeline.layout.version": "2",
    "own.key": "kept",
}
FOLDER = {f"{METADATA_FOLDER}/.hoodie/hoodie.properties": b"x", f"{METADATA_FOLDER}/files/f": b"y"}


def config(extra: Mapping[str, str]) -> TableConfig:
    return TableConfig.from_properties({**PLAIN, **extra})


def table(extra: Mapping[str, str]) -> MemoryStorage:
    data = format_properties(with_table_checksum({**PLAIN, **extra}))
    return MemoryStorage.fresh({PROPERTIES: data, **FOLDER})


def loaded(storage: MemoryStorage) -> TableConfig:
    return TableConfig.from_properties(load_properties(storage))


def folder(storage: MemoryStorage) -> list[str]:
    return sorted(file.path for file in storage.list_tree(METADATA_FOLDER))


DROPPED: dict[str, Mapping[str, str]] = {
    "one that readers trust": {TRUSTED: "column_stats,files", BUILDING: ""},
    "one that is being built": {TRUSTED: "", BUILDING: "files"},
    "one whose drop crashed": {TRUSTED: "", BUILDING: ""},
}


@pytest.mark.parametrize("extra", DROPPED.values(), ids=list(DROPPED))
def test_a_metadata_table_is_dropped_with_its_properties(extra: Mapping[str, str]) -> None:
    storage = table(extra)
    new = drop_metadata_table(storage, loaded(storage))
    assert new == loaded(storage)
    assert not has_metadata_table(new)
    assert new.properties["own.key"] == "kept"
    assert folder(storage) == []


def test_a_table_that_never_had_one_costs_nothing() -> None:
    storage = CountingStorage(table({}))
    assert drop_metadata_table(storage, config({})) == config({})
    assert not storage.calls


@pytest.mark.parametrize("after_effect", [False, True])
def test_after_a_crash_no_partial_metadata_table_is_trusted_and_the_next_drop_completes(
    after_effect: bool,
) -> None:
    for survive in count():
        storage = table({TRUSTED: "files", BUILDING: ""})
        crashing = CrashingStorage(storage, survive, after_effect=after_effect)
        try:
            drop_metadata_table(crashing, loaded(storage))
        except Crash:
            if folder(storage) != sorted(FOLDER):
                assert metadata_partitions(loaded(storage)) == ()
            drop_metadata_table(storage, loaded(storage))
            assert not has_metadata_table(loaded(storage))
            assert folder(storage) == []
        else:
            assert survive >= 8
            return


def test_the_metadata_table_of_real_hudi_is_found(golden: GoldenTables) -> None:
    properties = load_properties(storage_for(str(golden["mor_mdt"])))
    partitions = metadata_partitions(TableConfig.from_properties(properties))
    assert partitions == ("column_stats", "files", "partition_stats")


REFUSED = {
    "no meta fields": {"hoodie.populate.meta.fields": "false"},
    "a merger of its own": {"hoodie.record.merge.mode": "CUSTOM"},
    "a payload of its own": {"hoodie.compaction.payload.class": "org.example.Payload"},
    "partial updates": {"hoodie.table.partial.update.mode": "IGNORE_DEFAULTS"},
    "a record index": {TRUSTED: "files,record_index"},
    "a record index that is being built": {TRUSTED: "files", BUILDING: "record_index"},
    "a secondary index": {TRUSTED: "files,secondary_index_idx_city"},
    "an expression index": {TRUSTED: "files,expr_index_idx_day"},
    "an unknown index": {TRUSTED: "files,vector_index"},
}


@pytest.mark.parametrize("extra", REFUSED.values(), ids=list(REFUSED))
def test_a_table_that_our_write_would_break_is_refused(extra: Mapping[str, str]) -> None:
    with pytest.raises(UnsupportedError, match="Hudi") as refused:
        check_writable(config(extra))
    assert refused.value.facts.keys() & {*extra, "hoodie.record.merge.mode", TRUSTED}


WRITABLE: dict[str, Mapping[str, str]] = {
    "a plain one": {},
    "one that logs changes": {"hoodie.table.cdc.enabled": "true"},
    "one with a metadata table that is only faster": {
        TRUSTED: "bloom_filters,column_stats,files,partition_stats"
    },
    "one that says no to everything": {
        "hoodie.populate.meta.fields": "true",
        "hoodie.record.merge.mode": "COMMIT_TIME_ORDERING",
        "hoodie.table.partial.update.mode": "",
        TRUSTED: "",
    },
}


@pytest.mark.parametrize("extra", WRITABLE.values(), ids=list(WRITABLE))
def test_a_table_that_is_written(extra: Mapping[str, str]) -> None:
    check_writable(config(extra))
    check_write_can_begin(config(extra), Timeline(), Concurrency.OPTIMISTIC)


def test_writers_of_copy_on_write_tables_block_each_other() -> None:
    with pytest.raises(InvalidError, match="merge-on-read"):
        check_write_can_begin(config({}), Timeline(), Concurrency.NON_BLOCKING)


def test_nothing_begins_on_a_table_that_is_half_restored() -> None:
    half = draw("restore |--")
    with pytest.raises(ConflictError, match="restore"):
        check_write_can_begin(config({}), half, Concurrency.SINGLE)
