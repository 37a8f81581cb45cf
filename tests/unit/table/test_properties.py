"""Changes of a table's properties: after any crash a reader finds the old ones or the new ones."""

from __future__ import annotations

from itertools import count

import pytest

from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.format.table_properties import (
    format_properties,
    parse_properties,
    with_table_checksum,
)
from lakewright.storage.memory import MemoryStorage
from lakewright.table.properties import (
    BACKUP,
    PROPERTIES,
    load_properties,
    update_properties,
)
from lakewright.testing.storage import Crash, CrashingStorage

OLD = with_table_checksum(
    {
        "hoodie.table.name": "t",
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": "9",
        "hoodie.timeline.layout.version": "2",
        "own.key": "a: b=c # d! ø",
    }
)
NEW = {**OLD, "hoodie.ttl.enabled": "true"}


def table() -> MemoryStorage:
    return MemoryStorage.fresh({PROPERTIES: format_properties(OLD)})


def enable(properties: dict[str, str]) -> dict[str, str]:
    return {**properties, "hoodie.ttl.enabled": "true"}


def test_a_change_is_there_and_leaves_no_backup() -> None:
    storage = table()
    assert update_properties(storage, enable) == NEW
    assert load_properties(storage) == NEW
    assert not storage.exists(BACKUP)


def test_no_change_writes_nothing() -> None:
    storage = CrashingStorage(table(), survive=0)
    assert update_properties(storage, dict) == OLD


@pytest.mark.parametrize("after_effect", [False, True])
def test_killed_anywhere_a_reader_finds_the_table_and_the_next_change_succeeds(
    after_effect: bool,
) -> None:
    for survive in count():
        storage = table()
        try:
            update_properties(CrashingStorage(storage, survive, after_effect=after_effect), enable)
        except Crash:
            assert load_properties(storage) in (OLD, NEW)
            assert update_properties(storage, enable) == NEW
            assert not storage.exists(BACKUP)
        else:
            assert survive >= 3
            return


def test_a_table_mid_way_through_a_change_by_hudi_is_read_from_the_backup() -> None:
    data = format_properties(OLD)
    for main in (None, b"", *(data[:end] for end in range(0, len(data), 7))):
        files = {BACKUP: data} if main is None else {BACKUP: data, PROPERTIES: main}
        assert load_properties(MemoryStorage.fresh(files)) == OLD


def test_a_change_that_breaks_the_table_is_refused() -> None:
    storage = table()
    with pytest.raises(CorruptError):
        update_properties(storage, lambda properties: {"own.key": "x"})
    assert load_properties(storage) == OLD


def test_a_concurrent_change_is_a_conflict() -> None:
    storage = table()

    def concurrent_update(properties: dict[str, str]) -> dict[str, str]:
        storage.create(BACKUP, format_properties(OLD))
        return enable(properties)

    with pytest.raises(ConflictError, match="another process"):
        update_properties(storage, concurrent_update)
    assert parse_properties(storage.read(PROPERTIES)) == OLD


def test_no_table_is_reported() -> None:
    with pytest.raises(InvalidError, match="no table at this path"):
        load_properties(MemoryStorage.fresh())
