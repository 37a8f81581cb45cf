"""Asynchronous services: threads of the writer beside its writes, whose commits never lose."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakewright.client.stream_sink import StreamSink
from lakewright.clock import SystemClock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import UnavailableError
from lakewright.model.instant import Action
from lakewright.model.plans import Skip
from lakewright.services import asynchronous
from lakewright.services.asynchronous import AsyncServices, CommitTurns, async_services
from lakewright.services.maintenance_loop import ServiceOutcome
from lakewright.services.runner import ServiceRunner
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource
from support.tables import NO_SERVICES, WrittenTable, row

DAY = 86_400
CLEAN = {
    "hoodie.clean.automatic": "true",
    "hoodie.clean.async.enabled": "true",
    "hoodie.clean.commits.retained": "1",
}
ARCHIVE = {
    **CLEAN,
    "hoodie.archive.automatic": "true",
    "hoodie.archive.async": "true",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
}
CLUSTER = {
    "hoodie.clustering.async.enabled": "true",
    "hoodie.clustering.async.max.commits": "1",
    "hoodie.clustering.plan.strategy.single.group.clustering.enabled": "true",
}
COMPACT = {
    "hoodie.datasource.compaction.async.enable": "true",
    "hoodie.compact.inline.max.delta.commits": "1",
}
TTL = {
    "hoodie.ttl.enabled": "true",
    "hoodie.ttl.run.inline": "false",
    "hoodie.ttl.policies": json.dumps([{"spec": "*", "units": "DAYS", "value": 7}]),
}
OLD, NEW = "2026-01-01", "2026-01-02"


def made(table_type: str = "COPY_ON_WRITE") -> WrittenTable:
    """A table whose writer and threads wait for its lock by the machine's clock."""
    options = {**NO_SERVICES, "hoodie.time.generator.max_expected_clock_skew_ms": "1"}
    return WrittenTable(options=options, clock=SystemClock()).create(table_type)


def actions(table: WrittenTable) -> list[str]:
    return [str(i.action) for i in load_snapshot(table.storage).timeline if i.is_completed]


SETTINGS: dict[str, tuple[dict[str, str], bool, set[str]]] = {
    "none by default": ({}, True, set()),
    "a clean": (CLEAN, False, {"clean"}),
    "by its older name": ({"hoodie.clean.async": "true"}, False, {"clean"}),
    "no clean where there is none": ({**CLEAN, "hoodie.clean.automatic": "false"}, False, set()),
    "archiving too": (ARCHIVE, False, {"clean", "archive"}),
    "clusterings": (CLUSTER, False, {"clustering"}),
    "compactions of a stream": (COMPACT, True, {"compaction"}),
    "but not of a batch": (COMPACT, False, set()),
}


@pytest.mark.parametrize(("options", "stream", "names"), SETTINGS.values(), ids=list(SETTINGS))
def test_options_name_the_services(options: dict[str, str], stream: bool, names: set[str]) -> None:
    assert async_services(options, stream=stream) == names


# Beside one write.


def seen_beside(
    table: WrittenTable, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, service: str
) -> Commit:
    """Write so that the service must have run before the commit of the write."""
    ran = threading.Event()
    run = ServiceRunner.run

    def signal(self: ServiceRunner, name: str, **how: bool) -> Commit | Skip:
        try:
            return run(self, name, **how)
        finally:
            if name == service:
                ran.set()

    monkeypatch.setattr(ServiceRunner, "run", signal)
    beside: list[bool] = []
    commit = table.upsert(
        [row("a", 9)], options, before_commit=lambda: beside.append(ran.wait(timeout=600))
    )
    assert beside == [True]
    return commit


def test_a_clean_runs_beside_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    table = made()
    for ts in range(4):
        table.upsert([row("a", ts)])
    commit = seen_beside(table, CLEAN, monkeypatch, "clean")
    (cleaned,) = commit.services
    assert isinstance(cleaned, Commit)
    assert cleaned.action == "clean"
    assert cleaned.completed_at < commit.completed_at


def test_archiving_runs_beside_a_write(monkeypatch: pytest.MonkeyPatch) -> None:
    table = made()
    for ts in range(8):
        table.upsert([row("a", ts)])
    commit = seen_beside(table, ARCHIVE, monkeypatch, "archive")
    assert [type(outcome) for outcome in commit.services] == [Commit, Commit]
    assert load_snapshot(table.storage).archived


def test_a_write_with_services_beside_it_has_a_heartbeat() -> None:
    table = made()
    beats: list[int] = []
    options = {**CLEAN, "hoodie.write.concurrency.mode": "SINGLE_WRITER"}
    table.upsert(
        [row("a")],
        options,
        before_commit=lambda: beats.append(
            len(list(table.storage.list_files(".hoodie/.heartbeat")))
        ),
    )
    assert beats == [1]


def test_no_thread_is_left_after_a_write() -> None:
    table = made()
    table.upsert([row("a")], {**ARCHIVE, **CLUSTER})
    assert not [t for t in threading.enumerate() if t.name.startswith("lakewright-services")]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: ServiceRunner, name: str, **how: bool) -> Commit | Skip:
        raise UnavailableError("the storage does not answer")

    monkeypatch.setattr(ServiceRunner, "run", fail)


@pytest.mark.usefixtures("failing")
def test_an_error_of_a_service_is_shown_and_the_write_stands() -> None:
    table = made()
    with pytest.raises(UnavailableError, match="does not answer") as error:
        table.upsert([row("a")], CLEAN)
    assert str(error.value).startswith("the write has completed, do not repeat it; the clean")
    assert not error.value.retryable
    assert (
        error.value.committed
        == load_snapshot(table.storage).timeline.completed_writes[-1].requested_at
    )
    assert table.rows() == [row("a")]


@pytest.mark.usefixtures("failing")
def test_an_error_of_a_service_is_a_warning_if_configured() -> None:
    table = made()
    lenient = {**CLEAN, "hoodie.fail.writes.on.inline.table.service.exception": "false"}
    with pytest.warns(RuntimeWarning, match="clean beside a write failed"):
        commit = table.upsert([row("a")], lenient)
    assert isinstance(commit.services[0], Skip)


@pytest.mark.usefixtures("failing")
def test_the_error_of_the_write_counts_and_its_services_are_waited_for() -> None:
    table = made()

    def refuse() -> None:
        raise UnavailableError("the rows cannot be written")

    with (
        pytest.warns(RuntimeWarning, match="clean beside a write failed"),
        pytest.raises(UnavailableError, match="rows cannot be written"),
    ):
        table.upsert([row("a")], CLEAN, before_commit=refuse)
    assert not [t for t in threading.enumerate() if t.name.startswith("lakewright-services")]


# TTL.


def expired() -> WrittenTable:
    table = WrittenTable(options=NO_SERVICES).create(options=TTL)
    table.upsert([row("a", day=OLD)])
    table.clock.sleep(8 * DAY)
    return table


def test_ttl_beside_a_write_deletes_after_its_commit() -> None:
    table = expired()
    commit = table.upsert([row("b", day=NEW)])
    (deletion,) = commit.services
    assert isinstance(deletion, Commit)
    assert deletion.partitions == (OLD,)
    assert deletion.instant > commit.completed_at
    assert table.rows() == [row("b", day=NEW)]


def test_a_write_to_an_expired_partition_keeps_it() -> None:
    table = expired()
    commit = table.upsert([row("b", day=OLD)])
    assert [type(outcome) for outcome in commit.services] == [Skip]
    assert table.rows() == [row("a", day=OLD), row("b", day=OLD)]


# Clusterings: the write wins.


def test_a_write_preempts_the_clustering_of_its_own_writer() -> None:
    table = made()
    table.upsert([row("a"), row("b")], CLUSTER)
    (pending,) = load_snapshot(table.storage).timeline.pending(Action.CLUSTERING)
    worked = threading.Event()

    class Engine(LocalEngine):
        def map(self, function: Any, items: Any, size: Any) -> Any:
            answers = super().map(function, items, size)
            worked.set()
            return answers

    class Slow(LocalEngine):
        def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
            # The clustering has done its work, and waits for its turn.
            waited.append(worked.wait(timeout=600))
            return super().write(task, rows)

    waited: list[bool] = []
    rows = ArrowRows(pa.Table.from_pylist([row("a", 5, "fifth")], table.schema))
    writer = replace(table.writer(CLUSTER), engine=Engine, local_engine=Slow())
    commit = writer.write(Operation.UPSERT, rows)
    assert waited == [True]
    assert row("a", 5, "fifth") in table.rows()
    assert len(table.rows()) == 2
    assert not [o for o in commit.services if isinstance(o, Commit)]
    assert pending not in load_snapshot(table.storage).timeline.pending(Action.CLUSTERING)


def test_a_clustering_is_scheduled_by_a_write_and_executed_beside_the_next() -> None:
    table = made()
    table.upsert([row("a"), row("b")], CLUSTER)
    commit = table.upsert([row("c", day=NEW)], CLUSTER)
    assert "cluster" in [o.operation.lower() for o in commit.services if isinstance(o, Commit)]
    assert len(table.rows()) == 3


# Streams.


def test_a_stream_compacts_beside_its_batches_and_close_waits() -> None:
    table = made("MERGE_ON_READ")
    sink = StreamSink(table.storage, {**table.options, **COMPACT}, clock=table.clock)
    sink._writer = replace(sink._writer, engine=LocalEngine)
    sink._writer = replace(sink._writer, stream_services=sink._writer.async_services())
    for batch in range(3):
        rows = pa.Table.from_pylist([row("a", batch + 1)], table.schema)
        sink.write(ArrowRows(rows), batch)
    sink.close()
    assert load_snapshot(table.storage).timeline.pending(Action.COMPACTION) == ()
    assert "commit" in actions(table)
    assert table.rows() == [row("a", 3)]
    assert not [t for t in threading.enumerate() if t.name.startswith("lakewright-services")]


def test_failures_beside_a_stream_are_warnings_with_the_next_batch() -> None:
    table = made()
    services = AsyncServices(table.services(), frozenset())
    error = UnavailableError("the storage does not answer")

    def task() -> Iterator[ServiceOutcome]:
        yield ServiceOutcome("compaction", error)

    services.start("services", task)
    outcomes = services.close()
    with pytest.warns(RuntimeWarning, match="compaction beside a write failed"):
        asynchronous.outcomes_for_writer(outcomes, {}, stream=True)


def test_an_unexpected_error_is_raised_not_swallowed() -> None:
    services = AsyncServices(made().services(), frozenset())

    def task() -> Iterator[ServiceOutcome]:
        yield from ()
        raise AssertionError("a bug")

    services.start("services", task)
    with pytest.raises(AssertionError, match="a bug"):
        services.close()


def test_turns_are_taken_in_order() -> None:
    turns, order = CommitTurns(), list[str]()
    first = turns.acquire()
    waiting = threading.Event()

    def take(name: str) -> None:
        waiting.set()
        with turns.taken():
            order.append(name)

    thread = threading.Thread(target=take, args=("service",))
    thread.start()
    assert waiting.wait(timeout=600)
    order.append("write")
    turns.release(first)
    thread.join()
    assert order == ["write", "service"]


AT_THE_END = """
import threading
from concurrent.futures import thread
from lakewright.errors import UnavailableError
from lakewright.services.asynchronous import AsyncServices
from lakewright.services.maintenance_loop import ServiceOutcome

def task():
    while not thread._shutdown:  # until the process is about to end
        threading.Event().wait(0.01)
    print("the service has ended", flush=True)
    yield ServiceOutcome("compaction", UnavailableError("the storage does not answer"))

AsyncServices(None).start("services", task)
"""


def test_a_process_waits_for_its_services_and_shows_their_errors() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True, timeout=600
    )
    assert ended.stdout == "the service has ended\n"
    assert "compaction beside a write failed: the storage does not answer" in ended.stderr
