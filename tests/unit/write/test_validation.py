"""Writers that overlap: no column vanishes, and no key is there twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import ConflictError
from lakewright.storage.base import Storage
from lakewright.table.transaction import TransactionManager
from lakewright.testing.storage import _Wrapped
from support.tables import NO_SERVICES, SCHEMA, WrittenTable, row

SEVERAL = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.parquet.small.file.limit": "0",
}
WIDER = pa.schema([*SCHEMA, ("extra", pa.string())])
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
RETRIED = {"hoodie.write.num.retries.on.conflict.failures": "3"}


@each_kind
def test_a_column_that_a_slow_writer_adds_is_not_hidden_by_a_later_one(kind: str) -> None:
    table = WrittenTable(options=SEVERAL).create(kind)
    table.upsert([row("z")])
    new = {**row("a", day="2026-01-02"), "extra": "precious"}

    def other() -> None:
        table.upsert([row("b", day="2026-01-03")])

    with pytest.raises(ConflictError, match="old columns"):
        table.write("UPSERT", [new], schema=WIDER, before_commit=other)
    table.write("UPSERT", [new], schema=WIDER, before_commit=None)
    assert new in table.rows()


@each_kind
def test_a_column_that_a_slow_writer_adds_is_there_once_it_tries_again(kind: str) -> None:
    table = WrittenTable(options={**SEVERAL, **RETRIED}).create(kind)
    table.upsert([row("z")])
    new = {**row("a", day="2026-01-02"), "extra": "precious"}

    def other() -> None:
        table.upsert([row("b", day="2026-01-03")])

    table.write("UPSERT", [new], schema=WIDER, before_commit=other)
    assert new in table.rows()


@each_kind
def test_an_overwrite_and_an_upsert_do_not_both_insert_a_key(kind: str) -> None:
    table = WrittenTable(options=SEVERAL).create(kind)
    table.upsert([row("z")])

    def other() -> None:
        table.upsert([row("k", 2)])

    with pytest.raises(ConflictError, match="same keys"):
        table.write("INSERT_OVERWRITE", [row("k", 1)], before_commit=other)
    assert table.rows() == [row("k", 2), row("z")]


@each_kind
def test_two_inserts_that_drop_duplicates_do_not_both_insert_a_key(kind: str) -> None:
    drop = {**SEVERAL, "hoodie.datasource.insert.dup.policy": "drop"}
    table = WrittenTable(options=drop).create(kind)
    table.upsert([row("z")])

    def other() -> None:
        table.write("INSERT", [row("k", 2)])

    with pytest.raises(ConflictError, match="same keys"):
        table.write("INSERT", [row("k", 1)], before_commit=other)
    assert table.rows() == [row("k", 2), row("z")]


class WatchedFiles(_Wrapped):
    """Records the data files that are opened, and whether the lock of the table was held."""

    __slots__ = ("locked", "opened")

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.locked = False
        self.opened: list[tuple[bool, str]] = []

    def open_input(self, path: str) -> pa.NativeFile:
        self.opened.append((self.locked, path))
        return super().open_input(path)


@pytest.mark.parametrize("operation", ["UPSERT", "INSERT_OVERWRITE"])
@each_kind
def test_keys_of_overlapping_writers_are_compared_without_the_lock(
    kind: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = WrittenTable(options=SEVERAL).create(kind)
    table.upsert([row("z")])
    watched = WatchedFiles(table.storage)
    run_locked = TransactionManager.run_locked

    def recorded(manager: TransactionManager, work: Callable[..., Any]) -> Any:
        watched.locked = True
        try:
            return run_locked(manager, work)
        finally:
            watched.locked = False

    def other() -> None:
        for number in range(3):
            table.upsert([row(f"other {number}")])
        watched.opened.clear()

    monkeypatch.setattr(TransactionManager, "run_locked", recorded)
    slow = replace(table, storage=watched)
    slow.write(operation, [row("k")], before_commit=other)
    assert watched.opened
    assert not [path for locked, path in watched.opened if locked]
