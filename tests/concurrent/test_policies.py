"""Processes that change policies at once, and one that is killed at it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from crew import let_age
from policy_process import OPTIONS
from sizes import sized
from written import WrittenTable

from lakewright.interfaces.ttl import TableTtl
from lakewright.storage.local import LocalStorage

PROCESS = Path(__file__).with_name("policy_process.py")


def saving(table: WrittenTable, name: str, count: int) -> subprocess.Popen[str]:
    path = table.storage.root.removeprefix("file://")
    command = [sys.executable, str(PROCESS), path, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def specs(table: WrittenTable) -> list[str]:
    return sorted(policy.spec for policy in TableTtl.of(table.storage).show().policies)


@pytest.fixture
def table(tmp_path: Path) -> WrittenTable:
    return WrittenTable(LocalStorage.at(str(tmp_path / "t"), {})).create()


def test_what_two_processes_save_at_once_is_all_there(table: WrittenTable) -> None:
    writers = [saving(table, name, 8) for name in ("a", "b")]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    assert specs(table) == sorted(f"{name}{n}" for name in ("a", "b") for n in range(8))


def test_who_is_killed_leaves_the_old_policies_or_the_new(table: WrittenTable) -> None:
    TableTtl.of(table.storage).save({"spec": "*", "units": "YEARS", "value": 1})
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for round_ in range(sized(4, 40)):
        before = specs(table)
        with saving(table, f"r{round_}-", 200) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline().strip()]
            time.sleep(chance.uniform(0, 0.3))
            writer.kill()
            said += writer.stdout.read().split()
        assert isinstance(table.storage, LocalStorage)
        let_age(table.storage)
        found = set(specs(table)) - set(before)
        assert found >= set(said), f"seed {seed}"
        assert len(found) <= len(said) + 1, f"seed {seed}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            TableTtl.of(table.storage, OPTIONS).save({"spec": "*", "units": "DAYS", "value": 9})
        assert set(specs(table)) == {*before, *found}
