"""Completion and freshness as users query them: waiting, reports, marks, commands."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lakewright
from lakewright.cli.main import app
from lakewright.errors import InvalidError, UnavailableError
from lakewright.metrics.metric import Metric
from lakewright.model.event_time import time_text
from lakewright.model.instant import format_time
from lakewright.storage.base import Storage
from lakewright.storage.local import LocalStorage
from lakewright.table.freshness_report import (
    SparkCatalog,
    catalog_properties,
    load_freshness,
    parse_event_time,
    wait_until_complete,
)
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support.event_times import (
    COMPACT_EVERY_COMMIT,
    DAY,
    NEXT_DAY,
    TIME_ZERO,
    tracked_row,
    tracked_table,
)
from support.tables import NO_SERVICES, WrittenTable

MINUTE = 60_000
MIDNIGHT = round(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)


def wait(
    table: WrittenTable,
    time: int | str | datetime,
    *,
    clock: ManualClock | None = None,
    **more: Any,
) -> Any:
    options = {"timeout": 10.0, "poll": 2.0, **more}
    return wait_until_complete(table.storage, clock or ManualClock(), time, **options)


def test_what_is_complete_is_not_waited_for() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    clock = ManualClock()
    before = clock.now_ms()
    freshness = wait(table, TIME_ZERO + 10, clock=clock)
    assert freshness.read_optimized.completion == TIME_ZERO + 10
    assert clock.now_ms() == before


class Acting(ManualClock):
    """A clock on which something happens during a sleep."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act = act
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept.append(seconds)
        if len(self.slept) == 2:
            self._act()


def test_waiting_ends_when_a_compaction_has_completed() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.upsert([tracked_row("a", 50)])
    clock = Acting(lambda: table.services(COMPACT_EVERY_COMMIT).run("compaction"))
    freshness = wait(table, TIME_ZERO + 50, clock=clock)
    assert freshness.read_optimized.completion == TIME_ZERO + 50
    assert clock.slept == [2.0, 2.0]


def test_waiting_for_the_snapshot_needs_no_compaction() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.upsert([tracked_row("a", 50)])
    assert wait(table, TIME_ZERO + 50, view="snapshot").snapshot.completion == TIME_ZERO + 50


def test_a_wait_that_times_out_names_what_holds_completion_back() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    late = table.upsert([tracked_row("a", 50)])
    clock = Acting(lambda: None)
    with pytest.raises(UnavailableError, match="not complete") as failure:
        wait(table, TIME_ZERO + 100, clock=clock)
    assert clock.slept == [2.0] * 5
    facts = failure.value.facts
    assert str(TIME_ZERO + 49) in str(facts["completion"])
    assert late.instant in str(facts["held_back_by"])
    assert str(TIME_ZERO + 50) in str(facts["held_back_by"])


def test_what_is_unknown_is_waited_for_in_vain() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.write("DELETE", [tracked_row("a", 0)])
    with pytest.raises(UnavailableError, match="completion='unknown'"):
        wait(table, TIME_ZERO)


def test_there_are_two_views() -> None:
    with pytest.raises(InvalidError, match="no such view"):
        wait(tracked_table(), TIME_ZERO, view="fast")


MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)
MOMENTS: dict[str, int | str | datetime] = {
    "milliseconds": round(MOMENT.timestamp() * 1000),
    "thirteen digits": str(round(MOMENT.timestamp() * 1000)),
    "a date and time": MOMENT,
    "a date and time of another zone": MOMENT.astimezone(),
    "a text with a zone": "2026-01-31T13:00:00+01:00",
    "a text in the table's zone": "2026-01-31 12:00:00",
    "an instant": format_time(MOMENT),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=list(MOMENTS))
def test_a_moment_may_be(moment: int | str | datetime) -> None:
    snapshot = load_snapshot(tracked_table().storage)
    assert parse_event_time(moment, snapshot) == round(MOMENT.timestamp() * 1000)


def test_what_is_no_moment_is_refused() -> None:
    with pytest.raises(InvalidError, match="not a point in time"):
        parse_event_time("yesterday", load_snapshot(tracked_table().storage))


_reports: list[tuple[str, int, dict[str, float]]] = []


def take(table: str, at_ms: int, values: Mapping[str, float]) -> None:
    _reports.append((table, at_ms, dict(values)))


class Listener:
    """A reporter that collects metrics, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self.heard: dict[str, float] = {}
        self._fails = fails

    def take(self, metrics: Sequence[Metric]) -> None:
        if self._fails:
            raise RuntimeError("no connection")
        self.heard |= {metric.name: metric.value for metric in metrics}


def test_a_commit_reports_its_latency_and_freshness() -> None:
    table = tracked_table()
    table.clock.sleep(1)
    listener = Listener()
    end = lakewright.report_to(listener)
    try:
        commit = table.upsert([tracked_row("a", 10), tracked_row("b", 30)])
    finally:
        end()
    values = listener.heard
    at_ms = values["deltacommit.commitTime"]
    assert format_time(datetime.fromtimestamp(at_ms / 1000, UTC)) == commit.completed_at
    assert values["deltacommit.commitLatencyInMs"] == at_ms - (TIME_ZERO + 10)
    assert values["deltacommit.commitFreshnessInMs"] == at_ms - (TIME_ZERO + 30)
    assert values["read_optimized.completion"] == TIME_ZERO + 10
    assert commit.metrics["commitLatencyInMs"] == at_ms - (TIME_ZERO + 10)
    assert commit.metrics["read_optimized.completion"] == TIME_ZERO + 10
    listener.heard.clear()
    table.upsert([tracked_row("a", 40)])
    assert listener.heard == {}


def test_a_service_reports_the_freshness_after_it() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.upsert([tracked_row("a", 40)])
    commit = table.services(COMPACT_EVERY_COMMIT).run("compaction")
    assert dict(commit.metrics) == {  # type: ignore[union-attr]
        "snapshot.completion": TIME_ZERO + 40,
        "snapshot.freshness": TIME_ZERO + 40,
        "read_optimized.completion": TIME_ZERO + 40,
        "read_optimized.freshness": TIME_ZERO + 40,
    }


def test_a_table_without_event_times_has_no_figures() -> None:
    table = WrittenTable(options=NO_SERVICES).create("MERGE_ON_READ")
    listener = Listener()
    end = lakewright.report_to(listener)
    try:
        assert table.upsert([tracked_row("a", 10)]).metrics == {}
    finally:
        end()
    assert not any("Latency" in name or "completion" in name for name in listener.heard)


def test_a_reporter_without_its_method_is_refused() -> None:
    with pytest.raises(InvalidError, match="take"):
        lakewright.report_to(object())  # type: ignore[arg-type]


def test_a_reporter_that_fails_is_a_warning() -> None:
    table = tracked_table()
    end = lakewright.report_to(Listener(fails=True))
    try:
        with pytest.warns(RuntimeWarning, match="no connection"):
            table.upsert([tracked_row("a", 10)])
    finally:
        end()
    assert len(table.rows()) == 1


def test_an_option_names_a_reporter() -> None:
    _reports.clear()
    table = tracked_table(write_options={"lakewright.metrics.reporter": f"{__name__}:take"})
    table.upsert([tracked_row("a", 10)])
    ((root, _, values),) = _reports
    assert root == table.storage.root
    assert values["snapshot.completion"] == TIME_ZERO + 10


BAD_FUNCTIONS = {
    "a reporter must be there": {"lakewright.metrics.reporter": "nowhere.at.all:take"},
    "so must its function": {"lakewright.metrics.reporter": f"{__name__}:nothing"},
    "it must be a function": {"lakewright.metrics.reporter": f"{__name__}:T"},
    "it must be named as one": {"lakewright.metrics.reporter": "take"},
    "so must what marks partitions": {"lakewright.partition.done.mark": "yes"},
    "a length of time must be one": {"lakewright.partition.done.interval": "soon"},
}


@pytest.mark.parametrize("options", BAD_FUNCTIONS.values(), ids=list(BAD_FUNCTIONS))
def test_a_bad_option_is_refused_before_anything_is_written(options: dict[str, str]) -> None:
    table = tracked_table()
    with pytest.raises(InvalidError):
        table.upsert([tracked_row("a", 10)], options)
    assert len(load_snapshot(table.storage).timeline) == 0


SUCCESS = {"lakewright.partition.done.mark": "success_file"}


def marks(table: WrittenTable) -> list[str]:
    return [
        file.path
        for file in table.storage.list_tree("")
        if file.name in ("_SUCCESS", ".lakewright_done")
    ]


def later(key: str, minutes: int, day: str = DAY) -> Any:
    """A row some minutes after the first day is over."""
    return tracked_row(key, MIDNIGHT + minutes * MINUTE - TIME_ZERO, day)


def test_a_partition_is_marked_when_completion_passes_its_end() -> None:
    table = tracked_table(write_options=SUCCESS)
    table.upsert([later("a", -90), later("z", 5, NEXT_DAY)])
    assert marks(table) == []
    table.upsert([later("z", 9, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]
    assert len(table.rows()) == 2
    table.upsert([later("z", 11, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_a_log_file_keeps_a_partition_from_being_marked_until_it_is_compacted() -> None:
    table = tracked_table(write_options=SUCCESS)
    table.upsert([later("a", -90), later("z", 5, NEXT_DAY)])
    table.upsert([later("a", -60)])
    table.upsert([later("z", 9, NEXT_DAY)])
    assert marks(table) == []
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_the_snapshot_view_does_not_wait_for_compactions() -> None:
    table = tracked_table(write_options={**SUCCESS, "lakewright.partition.done.view": "snapshot"})
    table.upsert([later("a", -90), later("z", 5, NEXT_DAY)])
    table.upsert([later("a", -60)])
    table.upsert([later("z", 9, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_the_commit_of_the_first_late_row_of_a_partition_does_not_mark_it() -> None:
    table = tracked_table(write_options=SUCCESS)
    table.upsert([later("z", 5, NEXT_DAY)])
    table.upsert([later("z", 9, NEXT_DAY)])
    table.upsert([later("a", -90)])
    assert marks(table) == []
    table.upsert([later("z", 11, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_no_commit_marks_a_partition_that_it_writes_to() -> None:
    """Its rows are of the next day, so that completion alone would have marked it."""
    table = tracked_table(write_options={**SUCCESS, "lakewright.partition.done.view": "snapshot"})
    table.upsert([later("a", 5)])
    assert marks(table) == []
    table.upsert([later("z", 9, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


def test_a_wait_for_more_than_the_snapshot_has_blames_no_log_file() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.upsert([tracked_row("a", 100)])
    table.upsert([tracked_row("z", 50, NEXT_DAY)])
    with pytest.raises(UnavailableError, match="the last commit") as failure:
        wait(table, TIME_ZERO + 60)
    assert failure.value.facts["held_back_by"] == []


def test_a_partition_lasts_for_the_interval_of_the_options() -> None:
    table = tracked_table(write_options={**SUCCESS, "lakewright.partition.done.interval": "1d10m"})
    table.upsert([later("a", -90), later("z", 5, NEXT_DAY)])
    table.upsert([later("z", 9, NEXT_DAY)])
    assert marks(table) == []
    assert table.services(COMPACT_EVERY_COMMIT).run("compaction")
    table.write("BULK_INSERT", [later("y", 10, NEXT_DAY)])
    assert marks(table) == [f"{DAY}/_SUCCESS"]


_called: list[tuple[str, str, int]] = []
_failing: list[bool] = []


def called(table: str, partition: str, completion: int) -> None:
    if _failing:
        raise RuntimeError("not now")
    _called.append((table, partition, completion))


def test_a_function_is_called_until_it_has_returned_once() -> None:
    _called.clear()
    _failing[:] = [True]
    table = tracked_table(write_options={"lakewright.partition.done.mark": f"{__name__}:called"})
    table.upsert([later("a", -90), later("z", 5, NEXT_DAY)])
    with pytest.warns(RuntimeWarning, match="not now"):
        table.upsert([later("z", 9, NEXT_DAY)])
    _failing.clear()
    for minutes in (11, 12, 13):
        table.upsert([later("z", minutes, NEXT_DAY)])
    assert _called == [(table.storage.root, DAY, MIDNIGHT + 9 * MINUTE - 1)]
    assert len(table.rows()) == 2


def test_a_deleted_partition_is_not_marked() -> None:
    table = tracked_table(write_options=SUCCESS)
    table.upsert([later("a", -90), later("z", 5, NEXT_DAY)])
    table.delete_partitions(DAY)
    table.write("BULK_INSERT", [later("y", 10, NEXT_DAY)])
    assert marks(table) == []


class Names:
    """A catalog of nothing but names, and the statements that it received."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.statements: list[str] = []
        self.catalog = self

    def tableExists(self, name: str) -> bool:
        return name in self.names

    def sql(self, statement: str) -> None:
        self.statements.append(statement)


def test_a_catalog_gets_known_times_and_drops_unknown_ones() -> None:
    table = tracked_table()
    table.upsert([tracked_row("a", 10)])
    table.write("DELETE", [tracked_row("a", 0)])
    properties = catalog_properties(load_freshness(table.storage, ManualClock()))
    assert properties["lakewright.snapshot.completion"] == str(TIME_ZERO + 10)
    assert properties["lakewright.read_optimized.completion"] is None
    session: Any = Names("trips")
    SparkCatalog(session, "memory://x").set_properties("trips", properties)
    put, dropped = session.statements
    assert put.startswith("ALTER TABLE trips SET TBLPROPERTIES (")
    assert f"'lakewright.snapshot.completion' = '{TIME_ZERO + 10}'" in put
    assert dropped == (
        "ALTER TABLE trips UNSET TBLPROPERTIES IF EXISTS ('lakewright.read_optimized.completion', "
        "'lakewright.snapshot.watermark', 'lakewright.read_optimized.watermark', "
        "'lakewright.completion.late_rows')"
    )


def test_a_table_that_is_not_in_the_catalog_is_an_error_that_says_how_to_create_it() -> None:
    session: Any = Names()
    with pytest.raises(InvalidError, match="CREATE TABLE trips USING hudi LOCATION 'memory://x'"):
        SparkCatalog(session, "memory://x").set_properties("trips", {"a": "1"})


def on_disk(path: Path) -> WrittenTable:
    storage: Storage = LocalStorage(str(path))
    table = tracked_table(storage=storage)
    table.upsert([tracked_row("a", 10), tracked_row("z", 20, NEXT_DAY)])
    table.upsert([tracked_row("a", 50)])
    return table


def run(*arguments: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CliRunner().invoke(app, list(arguments))


def test_the_command_shows_both_views(tmp_path: Path) -> None:
    table = on_disk(tmp_path)
    shown = run("freshness", str(tmp_path), "--json", "--holding", "--partitions")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert [view["completion"] for view in document["views"]] == [TIME_ZERO + 50, TIME_ZERO + 49]
    assert document["views"][1]["complete_until"] == time_text(TIME_ZERO + 49)
    assert document["as_of"] == load_snapshot(table.storage).timeline.by_completion[-1].requested_at
    assert [entry["event_time"] for entry in document["holding_back"]] == [TIME_ZERO + 50]
    assert [part["partition"] for part in document["partitions"]] == [DAY, DAY, NEXT_DAY, NEXT_DAY]
    text = run("freshness", str(tmp_path))
    assert text.exit_code == 0
    assert "read_optimized" in text.stdout
    assert "holding" not in text.stdout


def test_the_command_waits_and_reports_what_it_waited_for_in_vain(tmp_path: Path) -> None:
    on_disk(tmp_path)
    waited = run("freshness", str(tmp_path), "--wait", str(TIME_ZERO + 49), "--json")
    assert waited.exit_code == 0, waited.output
    timed_out = run("freshness", str(tmp_path), "--wait", str(TIME_ZERO + 50), "--timeout", "0")
    assert timed_out.exit_code == 4
    assert "held_back_by" in timed_out.output
    on_snapshot = run(
        "freshness", str(tmp_path), "--wait", str(TIME_ZERO + 50), "--view", "snapshot"
    )
    assert on_snapshot.exit_code == 0


def test_an_option_sets_where_the_future_begins() -> None:
    table = tracked_table()
    soon = table.clock.now_ms() + 100_000
    table.upsert(
        [tracked_row("a", soon - TIME_ZERO)], {"lakewright.event.time.future.tolerance.ms": "0"}
    )
    clock = ManualClock()
    assert load_freshness(table.storage, clock).future == ((DAY, soon),)
    tolerant = {"lakewright.event.time.future.tolerance.ms": "200000"}
    assert load_freshness(table.storage, clock, tolerant).future == ()
