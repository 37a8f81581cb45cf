"""Processes that write, plan, execute, clean and cancel on one table, and are killed at random.

Readers look all the time: rows that were told to be written are there, each key once.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crew import Crew, Process
from roles import DAY, KEYS
from sizes import sized
from written import NO_SERVICES, WrittenTable, row

from lakewright.clock import SystemClock
from lakewright.core.instant import COMPLETED_NAME
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.storage.locate import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.s3 import S3Server

OPTIONS = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.time.generator.max_expected_clock_skew_ms": "2",
    "hoodie.write.lock.provider": "storage",
    "hoodie.write.lock.storage.validity.timeout.secs": "3",
    "hoodie.write.lock.storage.renew.interval.secs": "1",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
    "hoodie.client.heartbeat.interval_in_ms": "1000",
    "hoodie.client.heartbeat.tolerable.misses": "3",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "2",
    "hoodie.clean.commits.retained": "3",
    "hoodie.table.service.rollback.delay.minutes": "0",
}
KINDS = {
    "copy on write": ("COPY_ON_WRITE", "clustering"),
    "merge on read": ("MERGE_ON_READ", "compaction,logcompaction,clustering"),
}
ROLES = ("ingest", "ingest", "plan", "execute", "execute", "clean", "cancel")
SECONDS = int(os.environ.get("LAKEWRIGHT_SECONDS", sized(15, soak=600)))
# On a busy machine little happens before somebody is killed: then nobody is, for a while.
PATIENCE_S = 120
HAPPENS = ("wrote", "planned", "executed", "cleaned", "cancelled")


def test_on_a_disk(crew: Crew, tmp_path: Path) -> None:
    lines = []
    for name, kind in KINDS.items():
        storage = LocalStorage(f"{tmp_path}/{name.replace(' ', '-')}")
        lines += play(crew, storage, kind, {}, life_s=(0.3, 2.0))
    assert_played(lines)


def test_on_s3(crew: Crew, moto: S3Server) -> None:
    lines = []
    for name, kind in KINDS.items():
        options = moto.options()
        storage = storage_for(f"s3://lake/{name.replace(' ', '-')}", options)
        lines += play(crew, storage, kind, options, life_s=(2.0, 5.0))
    assert_played(lines)


def play(
    crew: Crew,
    storage: Storage,
    kind: tuple[str, str],
    client: Mapping[str, str],
    *,
    life_s: tuple[float, float],
) -> list[dict[str, Any]]:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    table = WrittenTable(storage, SystemClock(), OPTIONS).create(kind[0])
    for n in range(KEYS):
        table.write("BULK_INSERT", [row(f"k{n}", 1, "first", DAY)])
    told = {**OPTIONS, "test.services": kind[1]}

    def started(role: str) -> Process:
        return crew.start_role(storage, role, told, seed=chance.randrange(2**32), client=client)

    processes = [started(role) for role in ROLES]
    gone: list[Process] = []
    deadline = time.monotonic() + SECONDS
    looks, next_death = 0, 0.0
    try:
        while is_going_on(deadline, [*processes, *gone]):
            look(table, [*processes, *gone], seed)
            looks += 1
            if next_death < time.monotonic() < deadline:
                next_death = time.monotonic() + chance.uniform(*life_s)
                number = chance.randrange(len(processes))
                processes[number].send("SIGKILL")
                processes[number].wait()
                gone.append(processes[number])
                processes[number] = started(ROLES[number])
    finally:
        for process in processes:
            process.send("SIGKILL")
            process.wait()
    assert looks > 1
    everybody = [*processes, *gone]
    assert not [error for process in everybody for error in process.errors], f"seed {seed}"
    put_right(table)
    look(table, everybody, seed)
    return [line for process in everybody for line in process.journal]


def is_going_on(deadline: float, processes: list[Process]) -> bool:
    """Until the time is over; or longer, until something of everything has happened."""
    now = time.monotonic()
    if now < deadline or now > deadline + PATIENCE_S:
        return now < deadline
    lines = [line for process in processes for line in process.journal]
    return any(not any(what in line for line in lines) for what in HAPPENS)


def look(table: WrittenTable, processes: list[Process], seed: int) -> None:
    """Each key once, and not older than what its writers had told before."""
    told = {f"k{n}": 1 for n in range(KEYS)}
    for process in processes:
        for line in process.journal:
            if "wrote" in line:
                told[line["wrote"]] = max(told[line["wrote"]], line["ts"])
    found = [(each["id"], each["ts"]) for each in table.rows()]
    assert len(found) == KEYS, f"seed {seed}: {found}"
    behind = {key: (ts, told[key]) for key, ts in found if ts < told[key]}
    assert not behind, f"seed {seed}: {behind}"


def put_right(table: WrittenTable) -> None:
    """What the next processes do once the dead are known to be dead."""
    time.sleep(4.5)
    services = table.services()
    services.run("clean")
    for instant in load_snapshot(table.storage).timeline.pending(*COMPLETED_NAME, "clean"):
        services.execute(instant.requested_at)
    table.upsert([row("k0", SystemClock().now_ms(), "last", DAY)])
    services.run("clean")
    assert not load_snapshot(table.storage).timeline.pending()


def assert_played(lines: list[dict[str, Any]]) -> None:
    """Something of everything has happened."""
    for what in HAPPENS:
        assert any(what in line for line in lines), what
    assert {line["cancellable"] for line in lines if "cancellable" in line} == {"true", "false"}
