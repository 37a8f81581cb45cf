"""Progress: what it shows is true, and only a terminal gets it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lakewright.cli import progress
from lakewright.cli.progress import byte_bar, following, waiting, watching
from lakewright.cli.spark import SparkWork
from lakewright.services.runner import ServiceRunner
from lakewright.table.markers import WriteProgress, write_progress
from lakewright.utils.terminal import SafeConsole
from lakewright.write.writer import Commit
from support.processes import wait_until
from support.tables import NO_SERVICES, WrittenTable, row

AT = "20260101000100000"


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal would show."""
    file = io.StringIO()

    def console(**_: object) -> SafeConsole:
        return SafeConsole(file=file, force_terminal=True, width=200)

    monkeypatch.setattr(progress, "SafeConsole", console)
    monkeypatch.setattr(progress, "_POLL_S", 0.001)
    return file


@pytest.fixture
def table() -> WrittenTable:
    return WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ")


def _begin(table: WrittenTable, *, finished: bool) -> None:
    name = f"d/ffffffff-0000-0000-0000-000000000000-0_0-0-0_{AT}.parquet"
    table.storage.create(f".hoodie/.temp/{AT}/{name}.marker.CREATE", b"")
    if finished:
        table.storage.create(name, b"12345")


def test_markers_count_begun_files_and_files_completed_ones(table: WrittenTable) -> None:
    assert write_progress(table.storage, AT) == WriteProgress()
    _begin(table, finished=False)
    assert write_progress(table.storage, AT) == WriteProgress(begun=1)
    name = f"d/ffffffff-0000-0000-0000-000000000000-0_0-0-0_{AT}.parquet"
    table.storage.create(name, b"12345")
    assert write_progress(table.storage, AT) == WriteProgress(begun=1, finished=1, bytes=5)


def test_a_bar_shows_bytes_and_rows(screen: io.StringIO) -> None:
    with byte_bar("reading", 4096) as bar:
        bar.add_rows(7)
        bar.advance(2048)
        bar.add_rows(3)
    shown = screen.getvalue()
    assert "10 rows" in shown
    assert "2.0 KB of 4.0 KB" in shown


def test_progress_shows_what_was_planned(screen: io.StringIO) -> None:
    with waiting("reading with Spark", 1 << 20):
        pass
    assert "1.0 MB planned" in screen.getvalue()


def test_progress_shows_how_far_spark_is(screen: io.StringIO) -> None:
    with waiting("reading with Spark", 1 << 20, lambda: "3 of 8 tasks"):
        _wait_for(screen, "1.0 MB planned; 3 of 8 tasks")


def test_the_work_of_spark_in_words() -> None:
    assert SparkWork().text() == ""
    assert SparkWork((1,), 8).text(5) == "0 of 8 tasks"
    work = SparkWork((1,), tasks=8, completed_tasks=2, rows=1000, bytes=2048)
    assert work.text(5) == "2 of 8 tasks, 1000 rows, 2.0 KB, about 15 s left"


def test_an_execution_is_watched_by_what_lies_on_storage(
    screen: io.StringIO, table: WrittenTable
) -> None:
    _begin(table, finished=True)
    with watching(table.storage, AT, 2, 2048):
        _wait_for(screen, "1 files written, 5 bytes; 2.0 KB to read in 2 pieces")


def test_pending_writes_are_reported(table: WrittenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_POLL_S", 0.001)
    texts: list[str] = []

    def other_process() -> None:
        with following(table.storage, texts.append):
            while not any(text.startswith("writing") for text in texts):
                table.clock.sleep(0)

    table.upsert([row("k0")], before_commit=other_process)
    assert " 1 files, " in texts[-1]


def test_nothing_is_shown_where_there_is_no_terminal(
    table: WrittenTable, capsys: pytest.CaptureFixture[str]
) -> None:
    with byte_bar("reading", 10) as bar, watching(table.storage, AT, 1, 1), waiting("x", 1):
        bar.advance(5)
        bar.add_rows(1)
    assert capsys.readouterr() == ("", "")


def test_the_progress_of_a_runner_gets_the_instant_and_the_work() -> None:
    reported: list[tuple[str, int]] = []

    @contextmanager
    def watch(instant: str, items: int, size: int) -> Iterator[None]:
        reported.append((instant, items))
        assert size > 0
        yield

    table = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ")
    for ts in (1, 2):
        table.upsert([row("k0", ts)])
    at_once = {"hoodie.compact.inline.max.delta.commits": "1"}
    plain = table.services(at_once)
    runner = ServiceRunner(plain.storage, plain.clock, plain.engine, plain.options, watch)
    commit = runner.run("compaction")
    assert isinstance(commit, Commit)
    assert reported == [(commit.instant, 1)]


def _wait_for(screen: io.StringIO, text: str) -> None:
    wait_until(
        lambda: text in screen.getvalue(), lambda: f"never shown: {text}: {screen.getvalue()}"
    )
