"""Partitions that leave by TTL: real Hudi sees it, goes on, and what it wrote is judged right."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_hudi import RealHudi, Row

from lakewright.client.ttl import TableTtl
from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.table.properties import load_properties
from lakewright.testing.clock import ManualClock
from lakewright.write.writer import Commit
from support.soak import some
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

DAY_MS = 86_400_000
DDL = "id string, day string, ts long, note string"
THEIR_OPTIONS = {
    "hoodie.table.name": "written",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.clean.automatic": "false",
    "hoodie.compact.inline": "false",
}
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
CLEAN_SOON = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}


def theirs(hudi: RealHudi, path: Path, rows: list[Row], more: dict[str, str] | None = None) -> None:
    hudi.write(path, rows, DDL, {**THEIR_OPTIONS, **(more or {})})


def keys(rows: list[Row]) -> list[tuple[str, int]]:
    return sorted((record["id"], record["ts"]) for record in rows)


@pytest.mark.parametrize("table_type", some(TYPES, 1))
def test_ttl_deletes_old_partitions_of_a_table_that_both_write_to(
    table_type: str, real_hudi: RealHudi, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    now_ms = SystemClock().now_ms()
    storage = LocalStorage.at(str(path), {})
    old = WrittenTable(storage, ManualClock(now_ms - 30 * DAY_MS), NO_SERVICES).create(table_type)
    old.upsert([row(f"k{n}", 1, day=f"p{n}") for n in range(1, 4)])
    ttl = TableTtl.for_table(storage, clock=SystemClock())
    ttl.save({"spec": "p*", "units": "DAYS", "value": 10})
    ttl.enable()
    assert ttl.update_partitions() == 3

    # Real Hudi renews no line, and keeps our properties when it adds its own.
    theirs(real_hudi, path, [row("k2", 2, day="p2")])
    assert load_properties(storage)["hoodie.ttl.enabled"] == "true"
    assert [policy.spec for policy in ttl.config.policies] == ["p*"]
    before = {status.partition: status.expired for status in ttl.explain()}
    assert before == {"p1": True, "p2": False, "p3": True}

    table = WrittenTable(storage, SystemClock(), NO_SERVICES)
    commit = table.services().run("ttl")
    assert isinstance(commit, Commit)
    assert commit.partitions == ("p1", "p3")
    assert keys(real_hudi.read(path)) == keys(table.rows()) == [("k2", 2)]
    earlier = str(int(commit.instant) - 1)
    then = real_hudi.read(path, {"as.of.instant": earlier})
    assert keys(then) == [("k1", 1), ("k2", 2), ("k3", 1)]

    theirs(real_hudi, path, [row("k4", 3, day="p4"), row("k1", 3, day="p1")])
    for ts in (5, 6):
        theirs(real_hudi, path, [row("k2", ts, day="p2")], CLEAN_SOON)
    expected = [("k1", 3), ("k2", 6), ("k4", 3)]
    assert keys(real_hudi.read(path)) == keys(table.rows()) == expected
    assert not [
        file.name for file in storage.list_files("p3") if not file.name.startswith(".hoodie")
    ]
    assert not table.services().run("ttl")
    assert [policy.spec for policy in ttl.config.policies] == ["p*"]


@pytest.mark.parametrize("table_type", some(TYPES, 0))
def test_ttl_deletes_old_rows_of_a_table_that_both_write_to(
    table_type: str, real_hudi: RealHudi, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    now_ms = SystemClock().now_ms()
    storage = LocalStorage.at(str(path), {})
    old = WrittenTable(storage, ManualClock(now_ms - 30 * DAY_MS), NO_SERVICES).create(table_type)
    old.upsert([row(f"k{n}", 1, day=f"p{n % 2}") for n in range(6)])
    theirs(real_hudi, path, [row("k2", 2, day="p0"), row("k9", 1, day="p1")])
    ttl = TableTtl.for_table(storage, clock=SystemClock())
    ttl.save({"spec": "*", "units": "DAYS", "value": 10, "level": "RECORD"})
    ttl.enable()
    table = WrittenTable(storage, SystemClock(), NO_SERVICES)
    commit = table.services().run("ttl")
    assert isinstance(commit, Commit)
    assert (commit.operation, commit.deleted) == ("DELETE", 5)
    assert keys(real_hudi.read(path)) == keys(table.rows()) == [("k2", 2), ("k9", 1)]
    theirs(real_hudi, path, [row("k0", 3, day="p0")])
    expected = [("k0", 3), ("k2", 2), ("k9", 1)]
    assert keys(real_hudi.read(path)) == keys(table.rows()) == expected
    assert not table.services().run("ttl")
