"""Public names of version 0.1 warn and do what their new names do."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

import lakewright as lw
from lakewright.api.table import Table
from lakewright.model.table_config import TableType
from lakewright.storage.memory import MemoryStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.testing.clock import ManualClock
from support.event_times import tracked_row, tracked_table

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
RENAMED: dict[str, tuple[Callable[[Table], object], Callable[[Table], object]]] = {
    "Table.debt": (lambda table: table.debt(), lambda table: table.compaction_debt()),
    "Table.holding_back": (
        lambda table: table.holding_back(5),
        lambda table: table.blocking_log_files(5),
    ),
    "ttl.on": (
        lambda table: table.ttl.on(run_inline=False),
        lambda table: table.ttl.enable(run_inline=False),
    ),
    "ttl.off": (lambda table: table.ttl.off(), lambda table: table.ttl.disable()),
    "ttl.settings": (
        lambda table: table.ttl.settings(trigger_value=3),
        lambda table: table.ttl.configure(trigger_value=3),
    ),
    "ttl.empty": (lambda table: table.ttl.empty(), lambda table: table.ttl.clear_policies()),
    "ttl.show": (lambda table: table.ttl.show(), lambda table: table.ttl.config),
}


@pytest.fixture
def table() -> Table:
    storage = MemoryStorage.fresh()
    spec = TableSpec(
        name="trips",
        table_type=TableType.MERGE_ON_READ,
        record_key=("id",),
        partition_by=("day",),
        ordering=("ts",),
        event_time="ts",
        schema=SCHEMA,
    )
    create_table(storage, ManualClock(), spec)
    table = Table(storage)
    table.ttl.save({"spec": "*", "units": "DAYS", "value": 1})
    return table


@pytest.mark.parametrize("name", RENAMED)
def test_a_deprecated_method_warns_and_returns_what_the_renamed_one_does(
    name: str, table: Table
) -> None:
    old, new = RENAMED[name]
    expected = new(table)
    with pytest.warns(DeprecationWarning, match=f"^{name} is now ") as caught:
        assert old(table) == expected
    assert caught[0].filename == __file__


def test_a_table_takes_storage_options_by_their_deprecated_keyword() -> None:
    options = {"fs.s3a.endpoint": "here"}
    with pytest.warns(DeprecationWarning, match="storage_options"):
        table = Table(MemoryStorage.fresh(), places=options)
    assert table._opened_storage.options == options


@pytest.mark.parametrize(
    ("name", "current"),
    [
        ("HeldBack", "BlockingLogFile"),
        ("IngestRound", "IngestResult"),
        ("Reporter", "MetricReporter"),
    ],
)
def test_a_deprecated_class_is_the_renamed_one(name: str, current: str) -> None:
    with pytest.warns(DeprecationWarning, match=current):
        assert getattr(lw, name) is getattr(lw, current)


class FigureReporter:
    def __init__(self) -> None:
        self.reports: list[tuple[str, int, Mapping[str, float]]] = []

    def report(self, table: str, at_ms: int, values: Mapping[str, float]) -> None:
        self.reports.append((table, at_ms, values))


def test_a_reporter_with_report_alone_gets_the_figures_of_commits() -> None:
    table, reporter = tracked_table(), FigureReporter()
    with pytest.warns(DeprecationWarning, match="take"):
        remove = lw.report_to(reporter)  # type: ignore[arg-type]
    try:
        commit = table.upsert([tracked_row("a", 10)])
    finally:
        remove()
    table.upsert([tracked_row("a", 20)])
    ((root, _, values),) = reporter.reports
    assert root == table.storage.root
    assert values["snapshot.completion"] == commit.metrics["snapshot.completion"]
