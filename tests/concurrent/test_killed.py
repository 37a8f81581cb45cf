"""Processes that are killed in the middle of a write: readers and the next writer do not mind."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from crew import (
    Crew,
    Fate,
    Model,
    Step,
    assert_no_orphans,
    assert_well_formed,
    let_age,
    steps_on,
    sweep_markers,
)

from lakewright.clock import SystemClock
from lakewright.errors import UnavailableError
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.soak import sized
from support.tables import NO_SERVICES, Row, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
FIRST = [row(f"k{n}", 1, "first", DAYS[n % 2]) for n in range(6)]
SECOND = [row(f"k{n}", 2, "second", DAYS[n % 2]) for n in range(4)]
# An update, an insert into a known partition, and one into a new partition.
CHANGED = [
    row("k0", 3, "third", DAYS[0]),
    row("k8", 3, "third", DAYS[1]),
    row("k9", 3, "third", DAYS[2]),
]
AFTER = row("last", 1, "after", DAYS[1])
ONE_WRITER = NO_SERVICES
SEVERAL = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
    "hoodie.write.lock.filesystem.expire": "600",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
}
NO_EXPIRY = {
    "hoodie.write.lock.filesystem.expire": "0",
    "hoodie.write.lock.wait_time_ms": "50",
}
STORAGE_LOCK = {"hoodie.write.lock.provider": "storage"}
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
MODES = {"one writer": ONE_WRITER, "several writers": SEVERAL}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
each_mode = pytest.mark.parametrize("options", MODES.values(), ids=list(MODES))


@dataclass(frozen=True)
class Scenario:
    """A table of which each killed process gets a copy."""

    crew: Crew
    folder: Path
    options: dict[str, str]

    def table(self, name: str) -> WrittenTable:
        shutil.copytree(self.folder / "start", self.folder / name)
        return WrittenTable(LocalStorage(f"{self.folder}/{name}"), SystemClock(), self.options)

    def run(self, table: WrittenTable, fate: Fate | None = None, calls: Path | None = None) -> str:
        steps = [Step("victim", CHANGED)]
        victim = self.crew.start(table.storage, steps, self.options, fate=fate, calls=calls)
        status = victim.wait()
        assert not victim.errors
        return status

    def calls(self) -> int:
        """How many calls to storage the write takes."""
        calls = self.folder / "calls.jsonl"
        assert self.run(self.table("counted"), calls=calls) == "done"
        return len(calls.read_text().splitlines())


@pytest.fixture
def scenario(crew: Crew, tmp_path: Path, kind: str, options: dict[str, str]) -> Scenario:
    start = WrittenTable(LocalStorage(f"{tmp_path}/start"), SystemClock(), options).create(kind)
    start.upsert(FIRST)
    start.upsert(SECOND)
    return Scenario(crew, tmp_path, options)


def assert_repaired(table: WrittenTable, expected: list[Row]) -> None:
    """The next writer finds the rows that readers saw, and leaves nothing of the dead one."""
    assert isinstance(table.storage, LocalStorage)
    let_age(table.storage)
    table.upsert([AFTER])
    assert table.rows() == sorted([*expected, AFTER], key=str)
    assert_no_orphans(table.storage)
    assert_well_formed(table.storage)
    # A writer that died right after completing may have left its markers, which have no meaning.
    sweep_markers(table.storage)
    completed = {i.requested_at for i in load_snapshot(table.storage).timeline.completed_writes}
    marked = {file.path.split("/")[2] for file in table.storage.list_tree(".hoodie/.temp")}
    assert marked <= completed
    assert not table.storage.exists(".hoodie/lock")


@each_mode
@each_kind
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_writer_killed_at_any_call_to_storage(scenario: Scenario, *, after: bool) -> None:
    old = scenario.table("old").rows()
    complete = scenario.table("complete")
    complete.upsert(CHANGED)
    new = complete.rows()
    calls = scenario.calls()
    step = sized(16, soak=1)
    # The calls that one of these tests leaves out, another takes.
    first = (2 * after + (scenario.options is SEVERAL)) * step // 4
    reads = []
    for nth in range(first, calls, step):
        table = scenario.table(f"killed-{nth}")
        assert scenario.run(table, Fate("SIGKILL", nth, after=after)) == "SIGKILL"
        rows = table.rows()
        assert rows in (old, new)
        reads.append(rows)
        assert_repaired(table, rows)
    assert reads[0] == old


LOCKED = {
    "as it begins": r"create .hoodie/timeline/\d+\.\w*commit\.requested",
    "as it completes": r"create .hoodie/timeline/\d+_\d+\.\w*commit",
}


@pytest.mark.parametrize("options", [SEVERAL], ids=["several writers"])
@pytest.mark.parametrize("call", LOCKED.values(), ids=list(LOCKED))
@each_kind
def test_a_writer_killed_while_it_holds_the_lock(scenario: Scenario, call: str) -> None:
    table = scenario.table("killed")
    before = table.rows()
    assert scenario.run(table, Fate("SIGKILL", pattern=call)) == "SIGKILL"
    holder = table.storage.read(".hoodie/lock").decode()
    with pytest.raises(UnavailableError, match="not free in time") as refused:
        table.upsert([AFTER], NO_EXPIRY)
    assert refused.value.facts["holder"] == holder
    assert table.rows() == before
    assert_repaired(table, before)


@each_mode
@each_kind
def test_a_writer_killed_at_any_time_loses_nothing_that_it_reported(
    crew: Crew, tmp_path: Path, kind: str, options: dict[str, str]
) -> None:
    storage = LocalStorage(f"{tmp_path}/table")
    table = WrittenTable(storage, SystemClock(), options).create(kind)
    model = Model()
    for life in range(sized(2, soak=30)):
        steps = [
            Step(f"{life}-{n}", [row(f"k{n % 5}", life * 1000 + n), row(f"new{life}-{n}", n)])
            for n in range(1000)
        ]
        victim = crew.start(storage, steps, options)
        victim.wait_for_commits(3 + life % 3)
        victim.kill()
        reported = len(victim.commits)
        completed = [name for name in steps_on(storage) if name.startswith(f"{life}-")]
        # The last one may have completed and not been written down.
        assert completed in (
            [step.name for step in steps[:reported]],
            [s.name for s in steps[: reported + 1]],
        )
        for step in steps[: len(completed)]:
            model.take(step)
        assert table.rows() == model.rows
    assert_repaired(table, model.rows)


@each_kind
def test_the_others_go_on_when_some_are_killed(crew: Crew, tmp_path: Path, kind: str) -> None:
    options = {**SEVERAL, **STORAGE_LOCK}
    storage = LocalStorage(f"{tmp_path}/table")
    table = WrittenTable(storage, SystemClock(), options).create(kind)
    # The first two would never come to an end.
    lengths = (1000, 1000, *[sized(8, soak=25)] * 2)
    plans = [plan_of(process, length) for process, length in enumerate(lengths)]
    processes = [crew.start(storage, plan, options) for plan in plans]
    for victim in processes[:2]:
        victim.wait_for_commits(3)
        victim.kill()
    assert [process.wait() for process in processes[2:]] == ["done", "done"]
    reported = {line["step"] for process in processes for line in process.commits}
    completed = steps_on(storage)
    assert reported <= completed.keys()
    assert completed.keys() - reported <= {
        plans[n][len(p.commits)].name for n, p in enumerate(processes[:2])
    }
    assert table.rows() == rows_after(storage, plans)
    assert_repaired(table, rows_after(storage, plans))


def plan_of(process: int, commits: int) -> list[Step]:
    return [
        Step(
            f"{process}-{n}",
            [row("shared", 4 * n + process, f"{process}-{n}"), row(f"own{process}-{n}", n)],
        )
        for n in range(commits)
    ]


def rows_after(storage: Storage, plans: list[list[Step]]) -> list[Row]:
    by_name = {step.name: step for plan in plans for step in plan}
    model = Model()
    for name in steps_on(storage):
        model.take(by_name[name])
    return model.rows
