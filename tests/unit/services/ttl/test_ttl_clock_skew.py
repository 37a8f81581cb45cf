"""Clocks that are off: nothing is taken out by one that is far ahead of the storage's."""

from __future__ import annotations

import pytest

from lakewright.errors import UnavailableError
from lakewright.model.ttl import ENABLED, POLICIES
from lakewright.storage.base import FileStatus
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

DAY_MS = 86_400_000
WEEK = '[{"spec":"*","units":"DAYS","value":7}]'


class Timed(CountingStorage):
    """A storage with a clock of its own."""

    def __init__(self, inner: MemoryStorage, clock: ManualClock) -> None:
        super().__init__(inner)
        self.clock = clock

    @property
    def has_own_clock(self) -> bool:
        return True

    def status(self, path: str) -> FileStatus | None:
        status = super().status(path)
        return status and FileStatus(status.path, status.size, self.clock.now_ms())


AHEAD = {
    "a day": (DAY_MS, False),
    "an hour and a bit": (3_700_000, False),
    "minutes": (600_000, True),
}


@pytest.mark.parametrize(("ahead_ms", "runs"), AHEAD.values(), ids=list(AHEAD))
def test_a_clock_that_is_far_ahead_takes_nothing_out(ahead_ms: int, runs: bool) -> None:
    right = ManualClock()
    storage = Timed(MemoryStorage.fresh(), right)
    table = WrittenTable(storage, ManualClock(), NO_SERVICES)
    table.create(options={ENABLED: "true", POLICIES: WEEK})
    table.upsert([row("a")])
    right.advance(7 * DAY_MS - ahead_ms // 2)
    ahead = ManualClock(right.now_ms() + ahead_ms)
    before = storage.inner.files()  # type: ignore[attr-defined]
    service = WrittenTable(storage, ahead, NO_SERVICES).services()
    if runs:
        assert isinstance(service.run("ttl"), Commit)
        return
    with pytest.raises(UnavailableError, match="ahead of the storage"):
        service.run("ttl")
    assert storage.inner.files() == before  # type: ignore[attr-defined]


def test_a_clock_that_is_behind_takes_out_later() -> None:
    right = ManualClock()
    storage = Timed(MemoryStorage.fresh(), right)
    table = WrittenTable(storage, ManualClock(), NO_SERVICES)
    table.create(options={ENABLED: "true", POLICIES: WEEK})
    table.upsert([row("a")])
    right.advance(8 * DAY_MS)
    behind = ManualClock(right.now_ms() - 2 * DAY_MS)
    assert not WrittenTable(storage, behind, NO_SERVICES).services().run("ttl")
    assert isinstance(WrittenTable(storage, right, NO_SERVICES).services().run("ttl"), Commit)
