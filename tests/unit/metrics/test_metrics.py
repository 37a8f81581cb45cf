"""Metrics of commits, services and storage, their reporters, and that no commit fails for them."""

from __future__ import annotations

import json
import pickle
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import lakewright as lw
from lakewright.client.ttl import TableTtl
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.metrics import meter
from lakewright.metrics.metric import METRICS, Metric, MetricKind
from lakewright.metrics.options import metrics_settings
from lakewright.metrics.reporters import JsonLines, Prometheus, json_line, prometheus_name
from lakewright.storage.base import VersionedStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.metered import CALL_KINDS, MeteredStorage, metered
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.processes import free_port
from support.cancellable_plans import PlanFixture
from support.ingestion import CountingSource, ingester
from support.tables import NO_SERVICES, WrittenTable, row

ON = {"hoodie.metrics.on": "true"}
T = 1_767_000_000_000


class RecordingReporter:
    """Keeps the metrics it receives."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []

    def take(self, metrics: Sequence[Metric]) -> None:
        self.metrics += metrics

    def last(self, name: str, **labels: str) -> float:
        return [
            m.value for m in self.metrics if m.name == name and labels.items() <= m.labels.items()
        ][-1]

    def total(self, name: str, **labels: str) -> float:
        return sum(
            m.value for m in self.metrics if m.name == name and labels.items() <= m.labels.items()
        )

    @property
    def names(self) -> set[str]:
        return {metric.name for metric in self.metrics}


@pytest.fixture
def recorded() -> Iterator[RecordingReporter]:
    reporter = RecordingReporter()
    end = lw.report_to(reporter)
    yield reporter
    end()
    end()


def test_a_commit_is_reported_by_hudis_names(recorded: RecordingReporter) -> None:
    table = WrittenTable(options=NO_SERVICES).create(name="trips")
    table.upsert([row("a"), row("b", day="2026-01-02")])
    table.upsert([row("a", 2), row("c")])
    assert recorded.last("commit.totalPartitionsWritten") == 1
    assert recorded.last("commit.totalInsertRecordsWritten") == 1
    assert recorded.last("commit.totalUpdateRecordsWritten") == 1
    assert recorded.last("commit.totalFilesUpdate") == 1
    assert recorded.last("commit.totalFilesInsert") == 0
    assert recorded.last("commit.totalBytesWritten") > 0
    assert recorded.last("commit.duration") >= 0
    assert recorded.total("commit.completed.counter") == 2
    assert recorded.total("storage.calls", kind="create") > 0
    assert recorded.total("storage.calls", kind="list") > 0
    assert {m.labels["table"] for m in recorded.metrics} == {"trips"}


def test_every_reported_metric_is_declared(recorded: RecordingReporter) -> None:
    table = WrittenTable().create("MERGE_ON_READ", event_time="ts")
    for number in range(4):
        table.upsert([row("a", T + number), row("b", T + number, day="2026-01-02")])
    services = table.services(
        {"hoodie.compact.inline.max.delta.commits": "1", **ON, **IN_MEMORY, **DEBT}
    )
    services.run("compaction")
    services.run("clean")
    services.run("archive")
    assert recorded.names <= METRICS.keys()
    for metric in recorded.metrics:
        assert metric.kind is METRICS[metric.name].kind
        assert set(metric.labels) == {"table", *METRICS[metric.name].labels}
    assert recorded.total("compaction.completed.counter") == 1
    assert recorded.last("compaction.totalLogFilesCompacted") > 0
    assert recorded.last("compaction.pendingCompactionInstantCount") == 0
    assert recorded.last("debt.logFiles") == 0
    assert recorded.total("service.skipped", service="clean") > 0
    assert recorded.total("service.skipped", service="clean", reason="not_due") > 0
    assert {"snapshot.completion", "read_optimized.freshness"} <= recorded.names
    assert "deltacommit.commitLatencyInMs" in recorded.names


IN_MEMORY = {"hoodie.metrics.reporter.type": "inmemory"}
DEBT = {"lakewright.metrics.debt": "true"}


def test_a_clean_and_what_archiving_moved_are_reported(recorded: RecordingReporter) -> None:
    table = WrittenTable(options={**NO_SERVICES, "hoodie.clean.commits.retained": "1"}).create()
    for number in range(4):
        table.upsert([row("a", number)])
    commit = table.services().run("clean")
    assert isinstance(commit, lw.Commit)
    assert recorded.last("clean.numFilesDeleted") == commit.files > 0
    assert recorded.total("clean.completed.counter") == 1
    options = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    moved = table.services(options).run("archive")
    assert isinstance(moved, lw.Commit)
    assert recorded.last("archive.numInstantsArchived") == moved.files > 0


def test_a_rollback_is_reported(recorded: RecordingReporter) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a")])
    last = table.upsert([row("b", day="2026-01-02")])
    table.writer().rollback(last.instant)
    assert recorded.last("rollback.numFilesDeleted") == 1
    assert recorded.total("rollback.completed.counter") == 1


def test_conflicts_with_another_writer_are_counted(recorded: RecordingReporter) -> None:
    both = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control", **NO_SERVICES}
    table = WrittenTable(options=both).create()
    table.upsert([row("a")])

    def other() -> None:
        table.upsert([row("a", 3)])

    with pytest.raises(ConflictError):
        table.upsert([row("a", 2)], before_commit=other)
    assert recorded.total("conflict_resolution.failure.counter") == 1
    assert recorded.total("conflict_resolution.success.counter") == 2


def test_expired_partitions_are_counted(recorded: RecordingReporter) -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    table.upsert([row("a", day="2026-01-01"), row("b", day="2026-01-02")])
    ttl = TableTtl.for_table(table.storage, {}, table.clock)
    ttl.save({"spec": "*", "level": "PARTITION", "units": "DAYS", "value": 1})
    ttl.enable()
    table.clock.sleep(3 * 86_400)
    commit = table.services().run("ttl")
    assert isinstance(commit, lw.Commit)
    assert recorded.total("ttl.numPartitionsExpired") == 2


class Broken:
    def take(self, metrics: Sequence[Metric]) -> None:
        raise RuntimeError("no connection")


def test_a_reporter_that_fails_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_warned", set())
    table = WrittenTable(options=NO_SERVICES).create()
    end = lw.report_to(Broken())
    try:
        with pytest.warns(RuntimeWarning, match="not reported by Broken.*no connection") as caught:
            _ = [table.upsert([row(key)]) for key in "ab"]
    finally:
        end()
    assert len(caught) == 1
    assert len(table.rows()) == 2


def test_a_port_that_is_taken_fails_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_warned", set())
    port = free_port()
    Prometheus("x").serve(port, "127.0.0.1")
    options = {
        **ON,
        **NO_SERVICES,
        "hoodie.metrics.reporter.type": "PROMETHEUS",
        "hoodie.metrics.prometheus.port": str(port),
    }
    table = WrittenTable(options=options).create()
    with pytest.warns(RuntimeWarning, match="not reported by PROMETHEUS"):
        table.upsert([row("a")])
    assert len(table.rows()) == 1


def test_prometheus_is_served_and_written(tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "lake.prom"
    options = {
        **ON,
        **NO_SERVICES,
        "hoodie.metrics.reporter.type": "prometheus",
        "hoodie.metrics.prometheus.port": str(port),
        "lakewright.metrics.prometheus.textfile": str(file),
    }
    table = WrittenTable(options=options).create(name="trips")
    table.upsert([row("a")])
    table.upsert([row("b")])
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        served = answer.read().decode()
    for text in (served, file.read_text()):
        samples = {
            s.name: s.value
            for f in text_string_to_metric_families(text)
            for s in f.samples
            if s.labels.get("table") == "trips"
        }
        assert samples["hudi_commit_totalInsertRecordsWritten"] == 1
        assert samples["hudi_commit_completed_counter_total"] == 2


def test_a_push_gateway_gets_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Prometheus, "push", lambda self, *values: pushed.append((self, *values)))
    options = {
        **ON,
        **NO_SERVICES,
        "hoodie.metrics.reporter.type": "PROMETHEUS_PUSHGATEWAY",
        "hoodie.metrics.pushgateway.host": "gateway",
        "hoodie.metrics.pushgateway.job.name": "rides",
        "hoodie.metrics.pushgateway.report.labels": "env:test",
    }
    WrittenTable(options=options).create().upsert([row("a")])
    reporter, *rest = pushed[-1]
    assert rest == ["gateway:9091", "rides", {"env": "test"}]
    assert (
        reporter.registry.get_sample_value("hudi_commit_totalRecordsWritten", {"table": "written"})
        == 1
    )


def _add_lines(path: str, label: str) -> None:
    reporter = JsonLines(path)
    for number in range(200):
        metric = Metric("storage.calls", MetricKind.COUNTER, number, {"table": label * 50})
        reporter.take([metric] * 3)


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    context = get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        both = [context.Process(target=_add_lines, args=(str(path), label)) for label in "ab"]
        for process in both:
            process.start()
    for process in both:
        process.join()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == 2 * 600
    assert {line["labels"]["table"] for line in records} == {"a" * 50, "b" * 50}


def test_json_lines_by_option(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    options = {**ON, **NO_SERVICES, "lakewright.metrics.jsonl.file": str(path)}
    WrittenTable(options=options).create().upsert([row("a")])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (record,) = [line for line in lines if line["name"] == "hudi.commit.totalRecordsWritten"]
    assert record["value"] == 1
    assert record["kind"] == "gauge"
    assert record["labels"] == {"table": "written"}


BAD: dict[str, Mapping[str, str]] = {
    "no file for lines": {},
    "a reporter that there is not": {"hoodie.metrics.reporter.type": "GRAPHITE"},
    "no port": {"hoodie.metrics.prometheus.port": "70000"},
    "no label": {"hoodie.metrics.pushgateway.report.labels": "env"},
    "a strange prefix": {"hoodie.metrics.reporter.metricsname.prefix": "a b"},
}


@pytest.mark.parametrize("options", BAD.values(), ids=list(BAD))
def test_what_cannot_be_is_refused_before_a_write(options: Mapping[str, str]) -> None:
    table = WrittenTable().create()
    with pytest.raises(InvalidError):
        table.upsert([row("a")], {**ON, **options})
    assert not load_snapshot(table.storage).timeline.instants


def test_names_fit_prometheus() -> None:
    assert prometheus_name("commit.duration", "my-lake") == "my_lake_commit_duration"
    assert prometheus_name("commit.duration", "") == "commit_duration"
    metric = Metric("a.b", MetricKind.GAUGE, 1.0, {"table": "t"}, 5)
    assert (
        json_line(metric)
        == '{"time":5,"name":"a.b","kind":"gauge","labels":{"table":"t"},"value":1.0}'
    )


def test_calls_are_counted_for_each_path_and_not_sent_to_workers() -> None:
    storage = metered(MemoryStorage.fresh())
    assert metered(storage) is storage
    assert isinstance(storage, VersionedStorage)
    storage.create("a", b"1")
    storage.create("b", b"1")
    storage.read_many(["a", "b"])
    storage.exists("c")
    assert storage.take_counts() == {"create": 2, "read": 2, "status": 1}
    assert storage.take_counts() == {}
    assert not isinstance(pickle.loads(pickle.dumps(storage)), MeteredStorage)
    assert set(CALL_KINDS.values()) == {"list", "status", "read", "create", "replace", "delete"}


def test_nothing_is_counted_or_reported_without_a_reporter() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    assert not isinstance(table.writer().storage, MeteredStorage)
    assert not metrics_settings({}).on


def test_a_preempted_plan_is_counted(recorded: RecordingReporter) -> None:
    fixture = PlanFixture("clustering")
    at = fixture.schedule()
    assert fixture.table.upsert([row("a", 9, "ninth")])
    # It completes without the partition of the write.
    fixture.runner().execute(at)
    assert recorded.total("service.preempted", service="clustering") == 1
    assert recorded.total("service.failed", error="ConflictError") == 0
    fixture.runner().cancel(fixture.schedule())
    assert recorded.total("plan.cancelled") == 1


def test_rounds_of_ingestion_are_reported(recorded: RecordingReporter) -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    for _ in range(4):
        ingester(storage, CountingSource(), clock).run()
    assert recorded.total("ingest.rounds", outcome="commit", source="counting") == 3
    assert recorded.total("ingest.rounds", outcome="nothing_new") == 1
    assert recorded.total("ingest.rows") == 10
    assert recorded.last("ingest.lagInMs") == 7

    def fail() -> None:
        raise UnavailableError("no source")

    with pytest.raises(UnavailableError):
        ingester(storage, CountingSource(total=20, on_read=fail), clock).run()
    assert recorded.total("ingest.rounds", outcome="UnavailableError") == 1
    assert {metric.labels["table"] for metric in recorded.metrics} == {"t"}
