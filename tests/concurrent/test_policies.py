"""Processes that change policies at once, and one that is killed at it."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pytest
from crew import Crew

from lakewright.client.ttl import TableTtl
from lakewright.storage.local import LocalStorage
from support.processes import wait_until
from support.soak import sized
from support.tables import WrittenTable

OPTIONS = {
    "hoodie.write.lock.filesystem.expire": "600",
    "hoodie.write.lock.wait_time_ms": "600000",
    "hoodie.write.lock.wait_time_ms_between_retry": "10",
}


def specs(table: WrittenTable) -> list[str]:
    return sorted(policy.spec for policy in TableTtl.for_table(table.storage).config.policies)


@pytest.fixture
def table(tmp_path: Path) -> WrittenTable:
    return WrittenTable(LocalStorage.at(str(tmp_path / "t"), {})).create()


def test_what_two_processes_save_at_once_is_all_there(crew: Crew, table: WrittenTable) -> None:
    saved = {name: [f"{name}{n}" for n in range(8)] for name in ("a", "b")}
    processes = [crew.start_saving(table.storage, names, OPTIONS) for names in saved.values()]
    for process in processes:
        assert process.wait() == "done", process.errors
    assert specs(table) == sorted(saved["a"] + saved["b"])


def test_a_killed_process_leaves_the_old_policies_or_the_new(
    crew: Crew, table: WrittenTable
) -> None:
    TableTtl.for_table(table.storage).save({"spec": "*", "units": "YEARS", "value": 1})
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for round_ in range(sized(5, soak=200)):
        before = specs(table)
        names = [f"r{round_}-{n}" for n in range(200)]
        process = crew.start_saving(table.storage, names, OPTIONS)
        lines = chance.randrange(1, 20)
        wait_until(lambda: len(process.journal) >= lines, lambda: process.errors)  # noqa: B023
        process.kill()
        reported = {line["saved"] for line in process.journal}
        added = set(specs(table)) - set(before)
        assert added >= reported, f"seed {seed}"
        assert len(added) <= len(reported) + 1, f"seed {seed}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            TableTtl.for_table(table.storage, OPTIONS).save(
                {"spec": "*", "units": "DAYS", "value": 9}
            )
        assert set(specs(table)) == {*before, *added}
