"""Processes that stall for long and then continue: the commits of the others stay."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from crew import (
    Crew,
    Fate,
    Process,
    Step,
    assert_no_orphans,
    assert_tidy,
    assert_well_formed,
    steps_on,
)

from lakewright.clock import SystemClock
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.testing.s3 import S3Server
from support.soak import sized
from support.tables import NO_SERVICES, WrittenTable, row

SEVERAL = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
}
FILE_LOCK = {**SEVERAL, "hoodie.write.lock.filesystem.expire": "600"}
OTHER_DAY = "2026-01-02"
FIRST = [row("k1", 1), row("k2", 1, day=OTHER_DAY)]
ALONE = row("k2", 2, "stalled", OTHER_DAY)
STALLED = Step("stalled", [row("k1", 2, "stalled"), row("new", 2, "stalled"), ALONE])
THEIRS = [row("k1", 3, "theirs"), row("new", 3, "theirs")]

KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))

# Between its last look at lock and heartbeat and this call nothing can keep a process back: that is
# why it must have a third of the lock's validity before it.
COMMIT = r"create .hoodie/timeline/\d+_\d+\.\w*commit"


@dataclass(frozen=True)
class Scenario:
    """A table of which each stalled process gets a copy."""

    crew: Crew
    folder: Path

    def table(self, name: str) -> WrittenTable:
        shutil.copytree(self.folder / "start", self.folder / name)
        return WrittenTable(LocalStorage(f"{self.folder}/{name}"), SystemClock(), FILE_LOCK)

    def calls(self) -> list[str]:
        """What the write asks of storage."""
        calls = self.folder / "calls.jsonl"
        process = self.start(self.table("counted"), calls=calls)
        assert process.wait() == "done"
        return [json.loads(line)["call"] for line in calls.read_text().splitlines()]

    def start(
        self, table: WrittenTable, fate: Fate | None = None, calls: Path | None = None
    ) -> Process:
        return self.crew.start(table.storage, [STALLED], FILE_LOCK, fate=fate, calls=calls)


@pytest.fixture
def scenario(crew: Crew, tmp_path: Path, kind: str) -> Scenario:
    storage = LocalStorage(f"{tmp_path}/start")
    WrittenTable(storage, SystemClock(), FILE_LOCK).create(kind).upsert(FIRST)
    return Scenario(crew, tmp_path)


def assert_both_are_there(table: WrittenTable) -> None:
    """Each write is in the table once, in an order in which the newer versions win."""
    assert table.rows() == sorted([*THEIRS, ALONE], key=str)
    assert len(steps_on(table.storage)) == 3
    assert_well_formed(table.storage)
    assert_no_orphans(table.storage)
    assert_tidy(table.storage)


@each_kind
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_process_that_stands_still_at_any_call_to_storage(
    scenario: Scenario, *, after: bool
) -> None:
    calls = scenario.calls()
    commit = next(n for n, call in enumerate(calls) if re.match(COMMIT, call))
    stride = sized(14, soak=1)
    moments = {*range(int(after) * stride // 2, len(calls), stride)} | {commit - int(after)}
    for nth in sorted(moments):
        table = scenario.table(f"stalled-{nth}")
        process = scenario.start(table, Fate("SIGSTOP", nth, after=after))
        assert process.wait() == "stopped"
        process.oversleep()
        table.upsert(THEIRS)
        process.send("SIGCONT")
        assert process.wait() == "done", process.errors
        assert_both_are_there(table)


ON_S3 = {
    "as it begins": r"create .hoodie/timeline/\d+\.\w*commit\.requested",
    "before a file appears": "(open_output|create) 2026",
    "as it completes": "status .hoodie/.heartbeat/",
}


def stalled_on_s3(crew: Crew, moto: S3Server, moment: str) -> tuple[WrittenTable, Process]:
    storage = storage_for(f"s3://lake/{secrets.token_hex(4)}", moto.options())
    table = WrittenTable(storage, SystemClock(), SEVERAL).create("MERGE_ON_READ")
    table.upsert(FIRST)
    fate = Fate("SIGSTOP", pattern=moment)
    process = crew.start(storage, [STALLED], SEVERAL, fate=fate, client=moto.options())
    assert process.wait() == "stopped"
    return table, process


def test_a_process_that_stands_still_longer_than_its_storage_lock_is_valid(
    crew: Crew, moto: S3Server
) -> None:
    stalled = {name: stalled_on_s3(crew, moto, moment) for name, moment in ON_S3.items()}
    for name, (table, process) in stalled.items():
        process.oversleep()
        table.upsert(THEIRS)
        process.send("SIGCONT")
        assert process.wait() == "done", (name, process.errors)
        assert process.conflicts, name
        assert_both_are_there(table)


@each_kind
@pytest.mark.parametrize("limit", ["0", "104857600"], ids=["new groups", "small files"])
def test_of_two_processes_that_insert_the_same_new_key_one_has_to_do_it_again(
    crew: Crew, tmp_path: Path, kind: str, limit: str
) -> None:
    options = {**SEVERAL, "hoodie.parquet.small.file.limit": limit}
    storage = LocalStorage(f"{tmp_path}/table")
    table = WrittenTable(storage, SystemClock(), options).create(kind)
    table.upsert([row("old")])
    steps = [Step(name, [row("new", ts, name)]) for ts, name in enumerate(("one", "two"), 2)]
    # Both have written their files and want to complete.
    fate = Fate("SIGSTOP", pattern="list_tree .hoodie/.temp")
    processes = [crew.start(storage, [step], options, fate=fate) for step in steps]
    assert [process.wait() for process in processes] == ["stopped", "stopped"]
    for process in processes:
        process.send("SIGCONT")
    assert [process.wait() for process in processes] == ["done", "done"]
    assert len([line for process in processes for line in process.conflicts]) == 1
    assert table.rows() == [row("new", 3, "two"), row("old")]
    assert_well_formed(storage)
    assert_no_orphans(storage)
    assert_tidy(storage)
