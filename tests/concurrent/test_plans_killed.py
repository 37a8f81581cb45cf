"""Processes that write, plan, execute, clean and cancel on one table, and are killed at random.

Readers check at any time: rows of reported commits are there, each key once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, Process
from roles import DAY, KEYS, SERVICES

from lakewright.clock import SystemClock
from lakewright.model.instant import REWRITES, Action
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.s3 import S3Server
from support.processes import wait_until
from support.soak import sized, some
from support.tables import NO_SERVICES, WrittenTable, row

OPTIONS = {
    **NO_SERVICES,
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.time.generator.max_expected_clock_skew_ms": "2",
    "hoodie.write.lock.provider": "storage",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
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
# The lines that the processes add to their journals between two deaths.
LIFE = (1, 25)
HAPPENS = ("wrote", "planned", "executed", "cleaned", "cancelled")


def test_on_a_disk(crew: Crew, tmp_path: Path) -> None:
    for name, kind in KINDS.items():
        storage = LocalStorage(f"{tmp_path}/{name.replace(' ', '-')}")
        play(crew, storage, kind, {}, deaths=sized(6, soak=500))


@pytest.mark.thorough
def test_on_s3(crew: Crew, moto: S3Server) -> None:
    for name in some(list(KINDS), 1):
        options = moto.options()
        storage = storage_for(f"s3://lake/{name.replace(' ', '-')}", options)
        play(crew, storage, KINDS[name], options, deaths=sized(3, soak=150))


def play(
    crew: Crew,
    storage: Storage,
    kind: tuple[str, str],
    client: Mapping[str, str],
    *,
    deaths: int,
) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    table = WrittenTable(storage, SystemClock(), OPTIONS).create(kind[0])
    for n in range(KEYS):
        table.write("BULK_INSERT", [row(f"k{n}", 1, "first", DAY)])
    options = {**OPTIONS, SERVICES: kind[1]}

    def started(role: str) -> Process:
        return crew.start_role(storage, role, options, seed=chance.randrange(2**32), client=client)

    processes = [started(role) for role in ROLES]
    live = list(range(len(ROLES)))

    def watched(condition: Callable[[list[dict[str, Any]]], bool]) -> bool:
        look(table, processes, seed)
        return condition(lines_of(processes))

    def errors() -> list[str]:
        return [error for process in processes for error in process.errors]

    try:
        for _ in range(deaths):
            enough = len(lines_of(processes)) + chance.randint(*LIFE)
            wait_until(partial(watched, lambda lines: len(lines) >= enough), errors)  # noqa: B023
            role = chance.randrange(len(ROLES))
            processes[live[role]].kill()
            live[role] = len(processes)
            processes.append(started(ROLES[role]))
        wait_until(partial(watched, something_of_everything), errors)
    finally:
        for number in live:
            processes[number].kill()
    assert not errors(), f"seed {seed}"
    recover(table)
    look(table, processes, seed)


def lines_of(processes: list[Process]) -> list[dict[str, Any]]:
    return [line for process in processes for line in process.journal]


def something_of_everything(lines: list[dict[str, Any]]) -> bool:
    plans = {line["cancellable"] for line in lines if "cancellable" in line}
    return len(plans) == 2 and all(any(what in line for line in lines) for what in HAPPENS)


def look(table: WrittenTable, processes: list[Process], seed: int) -> None:
    """Check that each key is there once, and not older than the version its writers reported."""
    reported = {f"k{n}": 1 for n in range(KEYS)}
    for process in processes:
        for line in process.journal:
            if "wrote" in line:
                reported[line["wrote"]] = max(reported[line["wrote"]], line["ts"])
    versions = [(record["id"], record["ts"]) for record in table.rows()]
    assert len(versions) == KEYS, f"seed {seed}: {versions}"
    behind = {key: (ts, reported[key]) for key, ts in versions if ts < reported[key]}
    assert not behind, f"seed {seed}: {behind}"


def recover(table: WrittenTable) -> None:
    """What the next processes do once the heartbeats of the dead have expired."""
    services = table.services()
    services.run("clean")
    for instant in load_snapshot(table.storage).timeline.pending(*REWRITES, Action.CLEAN):
        services.execute(instant.requested_at)
    table.upsert([row("k0", SystemClock().now_ms(), "last", DAY)])
    services.run("clean")
    assert not load_snapshot(table.storage).timeline.pending()
