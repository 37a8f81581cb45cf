"""Writers with inline services every few commits, in processes that also crash: rows stay right."""

from __future__ import annotations

from pathlib import Path

import pytest
from crew import Crew, Model, Process, Step, assert_nothing_strange, steps_on

from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.soak import sized
from support.tables import WrittenTable, row

OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.time.generator.max_expected_clock_skew_ms": "2",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
    "hoodie.write.lock.provider": "storage",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.clean.commits.retained": "2",
    "hoodie.keep.min.commits": "4",
    "hoodie.keep.max.commits": "6",
}
KINDS = {"copy on write": "COPY_ON_WRITE", "merge on read": "MERGE_ON_READ"}
DAYS = ("2026-01-01", "2026-01-02")
ENDLESS = 1000


def plan_of(process: int, commits: int) -> list[Step]:
    return [
        Step(
            f"{process}-{n}",
            [
                row("shared", 4 * n + process, f"{process}-{n}", DAYS[n % 2]),
                row(f"own{process}-{n % 5}", n, f"{process}-{n}", DAYS[0]),
            ],
        )
        for n in range(commits)
    ]


def rows_after(storage: LocalStorage, plans: list[list[Step]]) -> list[dict[str, object]]:
    by_name = {step.name: step for plan in plans for step in plan}
    model = Model()
    for name in steps_on(storage):
        if name in by_name:
            model.take(by_name[name])
    return model.rows


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("killed", sized([2], soak=[0, 2]), ids=lambda killed: f"{killed} crashes")
def test_writers_whose_services_follow(crew: Crew, tmp_path: Path, kind: str, killed: int) -> None:
    storage = LocalStorage(f"{tmp_path}/table")
    table = WrittenTable(storage, SystemClock(), OPTIONS).create(kind)
    lengths = [ENDLESS] * killed + [sized(5, soak=40)] * (4 - killed)
    plans = [plan_of(process, length) for process, length in enumerate(lengths)]
    processes = [crew.start(storage, plan, OPTIONS) for plan in plans]
    for victim in processes[:killed]:
        victim.wait_for_commits(4)
        victim.kill()
    ends = [process.wait() for process in processes[killed:]]
    assert ends == ["done"] * (4 - killed), errors_of(processes)
    reported = {line["step"] for process in processes for line in process.commits}
    assert reported <= steps_on(storage).keys()
    assert table.rows() == rows_after(storage, plans)
    # The next writers complete or roll back what crashed processes left.
    for number in range(2):
        table.upsert([row(f"after{number}", day=DAYS[1])])
    expected = [*rows_after(storage, plans), *(row(f"after{n}", day=DAYS[1]) for n in range(2))]
    assert table.rows() == sorted(expected, key=str)
    snapshot = load_snapshot(storage)
    assert not snapshot.timeline.pending()
    assert snapshot.archived_times
    assert bool(snapshot.timeline.plans) is (kind == "MERGE_ON_READ")
    assert_nothing_strange(storage)


def errors_of(processes: list[Process]) -> list[str]:
    return [error for process in processes for error in process.errors]
