"""A clock, and a storage that goes by it, for tests of locks and heartbeats."""

from __future__ import annotations

import pytest

from lakewright.storage.memory import MemoryStorage
from lakewright.testing.clock import ManualClock
from support.faults import UnreliableStorage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> MemoryStorage:
    return MemoryStorage.fresh(now_ms=clock.now_ms)


@pytest.fixture
def storage(memory: MemoryStorage) -> UnreliableStorage:
    return UnreliableStorage(memory)
