"""A live writer that is rolled back while it writes leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from lakewright.client.write_client import WriteClient
from lakewright.errors import ConflictError
from lakewright.model.instant import Action
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from support.tables import WrittenTable, row

Result = TypeVar("Result")

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")


class Overtaken(CountingStorage):
    """Rolls the write back right before its `nth` data file appears."""

    def __init__(self, inner: Storage, nth: int) -> None:
        super().__init__(inner)
        self.remaining = nth

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        if method.__name__ == "create" and arguments[0].startswith(DAYS):
            self.remaining -= 1
            if self.remaining == -1:
                (pending,) = load_snapshot(self.inner).timeline.pending(Action.DELTA_COMMIT)
                WriteClient.create(self.inner, {}, ManualClock()).rollback(pending.requested_at)
        return super()._call(method, *arguments)


@pytest.mark.parametrize("nth", range(len(DAYS)))
def test_files_that_appear_after_the_rollback_are_deleted(nth: int) -> None:
    table = WrittenTable().create("MERGE_ON_READ")
    table.upsert([row("a", 1, day=day) for day in DAYS])
    storage, old = table.storage, table.rows()
    files = {file.path for day in DAYS for file in storage.list_files(day)}
    table.storage = Overtaken(storage, nth)
    with pytest.raises(ConflictError):
        table.upsert([row("a", 2, day=day) for day in DAYS])
    table.storage = storage
    assert {file.path for day in DAYS for file in storage.list_files(day)} == files
    assert table.rows() == old
    assert not load_snapshot(storage).timeline.pending()
