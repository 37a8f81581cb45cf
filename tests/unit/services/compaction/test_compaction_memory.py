"""What a worker holds in memory goes by the file group, however many a partition has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from support.tables import NO_SERVICES, WrittenTable, row

DUE = {"hoodie.compact.inline.max.delta.commits": "1"}
ROWS_OF_A_GROUP = 3000
SERVICES = {
    "compaction": DUE,
    "logcompaction": {"hoodie.log.compaction.blocks.threshold": "2"},
}


@contextmanager
def tracked() -> Iterator[pa.MemoryPool]:
    """What Arrow takes in the block is taken from a pool that knows its peak."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def peak_of(service: str, groups: int) -> int:
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(groups)}
    table = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ", options=buckets)
    keys = range(ROWS_OF_A_GROUP * groups)
    for ts in range(3):
        table.upsert([row(f"k{n}", ts, f"note {n * 7919 % 10007} " * 8) for n in keys])
    with tracked() as pool:
        commit = table.services(SERVICES[service]).run(service)
    assert commit
    return int(pool.max_memory())


@pytest.mark.parametrize("service", SERVICES)
def test_many_groups_of_a_partition_take_no_more_memory_than_few(service: str) -> None:
    few, many = peak_of(service, 1), peak_of(service, 8)
    assert few > 500_000
    assert many < 1.6 * few
