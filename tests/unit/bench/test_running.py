"""The small parts around a race: memory, progress, the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from bench.__main__ import listing, main, parse_order
from bench.crew import Environment, Member
from bench.memory import PeakMemory, children_of
from bench.plan import FULL, Do, Kind, Size, Step
from bench.progress import Progress, bar
from bench.race import Ledger, request_of
from bench.results import Total
from bench.source import Source


def test_a_tree_of_processes_is_a_process_and_all_below_it() -> None:
    parents = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    assert children_of(parents, 2) == {2, 3, 4}


def test_the_peak_of_memory_is_measured() -> None:
    with PeakMemory(os.getpid()) as peak:
        allocated = bytearray(os.urandom(1)) * 2**26
    assert peak.bytes > 0
    del allocated


def test_a_bar_shows_progress_and_remaining_time() -> None:
    line = bar(5, 20, 65, "round 1", 100)
    assert line.startswith("[######..................] 5/20  1:05  round 1  3:15 left")
    assert len(line) == 99


def test_without_a_terminal_every_step_is_a_line() -> None:
    stream = StringIO()
    progress = Progress(2, stream)
    progress.at("one")
    progress.at("two")
    assert [line.split()[1:] for line in stream.getvalue().splitlines()] == [
        ["1/2", "one"],
        ["2/2", "two"],
    ]


def test_flags_change_single_sizes() -> None:
    assert parse_order([])[0].size == Size()
    assert parse_order(["--full"])[0].size == FULL
    assert parse_order(["--scale", "2", "--rounds", "4"])[0].size == Size(scale=2, rounds=4)


def test_a_wrong_word_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "swim"]) == 2
    assert "no workload has such a name" in capsys.readouterr().err


def test_the_list_names_the_workloads() -> None:
    names = [line.split()[0] for line in listing().splitlines()]
    assert {"upsert_hot", "ttl_500", "ttl_10000"} <= set(names)


def test_a_cluster_is_for_the_load_test_of_ttl(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hdfs", "--only", "load"]) == 2
    assert main(["--hdfs", "--only", "ttl", "--scale", "0.01"]) == 2
    assert capsys.readouterr().err.count("none of these fits the scale") == 2


def test_a_system_whose_environment_is_missing_names_the_command_that_makes_it() -> None:
    with pytest.raises(ValueError, match=r"LAKEWRIGHT_PEERS_PYTHON.*start it by \./dev bench"):
        Environment.of("delta", {})
    environment = Environment.of("hudi", {
        "LAKEWRIGHT_INTEROP_PYTHON": "python", "LAKEWRIGHT_HUDI_JAR": "a.jar", "JAVA_HOME": "java",
    })  # fmt: skip
    assert environment == Environment("python", "a.jar", "java")


class _Accountant:
    """Adds up nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.requests: list[Mapping[str, Any]] = []

    def send(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        return {"rows": 3, "checksum": 4}


def test_after_ttl_the_rows_of_new_partitions_must_be_there(tmp_path: Path) -> None:
    accountant = _Accountant()
    ledger = Ledger(Source(tmp_path), cast(Member, accountant))
    step = Step(0, "ttl_500", "hudi", Do.CHECK, Kind.AGED, count=500)
    assert ledger.expected(step) == Total(3, 4)
    assert accountant.requests[0]["where"] == "l_suppkey <= 500 and l_suppkey % 2 = 1"


def test_a_request_names_its_files(tmp_path: Path) -> None:
    for number in range(4):
        file = tmp_path / "tiny" / f"{number}.parquet"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    step = Step(1, "tiny_commit", "hudi", Do.COMMITS, Kind.TINY, "tiny", first=1, count=2)
    request = request_of(step, Source(tmp_path))
    assert [Path(file).name for file in request["files"]] == ["1.parquet", "2.parquet"]
