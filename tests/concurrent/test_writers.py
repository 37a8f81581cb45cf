"""Four processes write to one table at the same time: nothing is lost, nothing is there twice."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from crew import (
    Crew,
    Fate,
    Model,
    Process,
    Step,
    assert_no_orphans,
    assert_tidy,
    assert_well_formed,
    steps_on,
)

from lakewright.clock import SystemClock
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.testing.s3 import S3Server
from support.soak import SOAK, sized
from support.tables import NO_SERVICES, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

PROCESSES = 4
COMMITS = sized(6, soak=25)
FEWER = sized(4, soak=COMMITS)
SHARED = "shared"
COMMON = {
    **NO_SERVICES,
    "hoodie.time.generator.max_expected_clock_skew_ms": "2",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
}
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
RETRIES = {"hoodie.write.num.retries.on.conflict.failures": "1000"}
# Each waits there with its first files written and nothing completed, until all do.
START = Fate("SIGSTOP", pattern="list_tree .hoodie/.temp")
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"}


@dataclass(frozen=True)
class Case:
    """A kind of table, how its writers get along, and how much they write."""

    kind: str
    mode: Mapping[str, str] = field(default_factory=lambda: OPTIMISTIC)
    table: Mapping[str, str] = field(default_factory=dict)
    on_s3: bool = False
    commits: int = COMMITS

    @property
    def is_conflict_free(self) -> bool:
        return self.mode is NON_BLOCKING


CASES = {
    "copy on write": Case("COPY_ON_WRITE"),
    "copy on write, each insert into a group of its own": Case(
        "COPY_ON_WRITE", table={"hoodie.parquet.small.file.limit": "0"}, commits=FEWER
    ),
    "copy on write, buckets": Case("COPY_ON_WRITE", table=BUCKETS, commits=FEWER),
    "merge on read": Case("MERGE_ON_READ"),
    "merge on read, buckets": Case("MERGE_ON_READ", table=BUCKETS, commits=FEWER),
    "merge on read, buckets, non-blocking": Case("MERGE_ON_READ", NON_BLOCKING, BUCKETS),
    "merge on read on S3": Case("MERGE_ON_READ", on_s3=True, commits=FEWER),
}
if SOAK:
    CASES["copy on write on S3"] = Case("COPY_ON_WRITE", on_s3=True, commits=FEWER)


def steps_of(process: int, case: Case) -> list[Step]:
    """What a process writes: to keys of its own and to shared ones, old and new, and deletes.

    A shared key is deleted by one process only, and only after an upsert of its own: so a delete
    finds its key, and is in conflict with every other write to it.
    """
    chance = Random(process)
    own, mine = f"own{process}", f"counter{process}"
    steps = []
    for number in range(case.commits):
        name, ts = f"{process}-{number}", number * PROCESSES + process
        alone = [row(f"{own}-{number}", ts, name, own), row(f"{own}-0", ts, name, own)]
        counters = [mine, f"counter{chance.randrange(PROCESSES)}"]
        together = [row(key, ts, name, SHARED) for key in counters]
        # The others insert some of these keys at about the same time; the first of them for sure.
        raced = [row(f"raced{number + k}", ts, name, SHARED) for k in range(8)]
        match number % 5:
            case 0:
                steps.append(Step(name, [*alone, *raced]))
            case 1:
                steps.append(Step(name, alone))
            case 2:
                steps.append(Step(name, together))
            case 3:
                steps.append(Step(name, [*alone, *together]))
            case _:
                deleted = [row(f"{own}-{number - 1}", ts, name, own), row(mine, ts, name, SHARED)]
                steps.append(Step(name, deleted, "DELETE"))
    return steps


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    param = request.param
    assert isinstance(param, Case)
    return param


def test_every_commit_of_every_process_is_in_the_table(
    case: Case, crew: Crew, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = {}
    storage: Storage = LocalStorage(f"{tmp_path}/table")
    if case.on_s3:
        moto = request.getfixturevalue("moto")
        assert isinstance(moto, S3Server)
        client = moto.options()
        storage = storage_for(f"s3://lake/{secrets.token_hex(4)}", client)
    table = WrittenTable(storage, SystemClock()).create(case.kind, options=case.table)
    plans = [steps_of(number, case) for number in range(PROCESSES)]
    # Half of them try again by themselves, and half report every conflict.
    retrying = [RETRIES if number % 2 else {} for number in range(PROCESSES)]
    processes = [
        crew.start(storage, plan, {**COMMON, **case.mode, **retries}, client=client, fate=START)
        for plan, retries in zip(plans, retrying, strict=True)
    ]
    assert [process.wait() for process in processes] == ["stopped"] * PROCESSES
    for process in processes:
        process.send("SIGCONT")
    for process in processes:
        assert process.wait() == "done", process.errors
    assert_journals_and_timeline_agree(storage, processes, plans)
    assert bool([p for p in processes if p.conflicts]) is not case.is_conflict_free
    assert not [line for p in processes[1::2] for line in p.conflicts]
    assert table.rows() == rows_after(storage, case, plans)
    assert_well_formed(storage)
    assert_no_orphans(storage)
    assert_tidy(storage)


def assert_journals_and_timeline_agree(
    storage: Storage, processes: list[Process], plans: list[list[Step]]
) -> None:
    reported = {line["step"]: line for process in processes for line in process.commits}
    assert sorted(reported) == sorted(step.name for plan in plans for step in plan)
    assert {
        name: (instant.requested_at, instant.completed_at)
        for name, instant in steps_on(storage).items()
    } == {name: (line["instant"], line["completed_at"]) for name, line in reported.items()}
    on_timeline = {file.name[:17] for file in storage.list_files(".hoodie/timeline")}
    refused = {line["instant"] for process in processes for line in process.conflicts}
    assert not refused & on_timeline


def rows_after(storage: Storage, case: Case, plans: list[list[Step]]) -> list[dict[str, object]]:
    """The rows that the steps leave, taken in the order in which they completed."""
    by_name = {step.name: step for plan in plans for step in plan}
    model = Model(remembers_deletes=case.kind == "MERGE_ON_READ")
    for name in steps_on(storage):
        model.take(by_name[name])
    return model.rows
