"""The example of a service that users write themselves: what it gets without doing anything."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.format.timeline_metadata import parse_requested_replace
from lakewright.model.instant import Instant
from lakewright.model.plans import SERVICE_KEY, ClusteringPlan, Skip
from lakewright.services.maintenance_loop import run_round
from lakewright.services.registry import unregister
from lakewright.table.snapshot import load_snapshot
from lakewright.write.writer import Commit
from support.tables import WrittenTable, row

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "own_service.py"
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
GZIP = {"hoodie.parquet.compression.codec": "gzip"}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    runpy.run_path(str(EXAMPLE))
    yield
    unregister("recompress")


@pytest.fixture
def table() -> WrittenTable:
    """Two partitions in gzip, one of them with a log file, and one in zstd."""
    table = WrittenTable(options={"hoodie.compact.inline": "false"}).create("MERGE_ON_READ")
    table.upsert([row("k0", day=DAYS[0]), row("k1", day=DAYS[1])], GZIP)
    table.upsert([row("k2", day=DAYS[2])])
    table.upsert([row("k1", 2, "second", DAYS[1])])
    return table


def codecs(table: WrittenTable) -> set[str]:
    snapshot = load_snapshot(table.storage)
    compressions = set()
    for group in snapshot.groups(snapshot.view()):
        newest = group.latest_merged_slice()
        assert newest.base is not None
        with table.storage.open_input(newest.path(newest.base)) as source:
            compressions.add(pq.ParquetFile(source).metadata.row_group(0).column(0).compression)
    return compressions


def test_the_example_has_less_than_sixty_lines() -> None:
    assert len(EXAMPLE.read_text("utf-8").splitlines()) < 60


def test_a_preview_names_what_it_would_write(table: WrittenTable) -> None:
    plan = table.services().preview("recompress")
    assert isinstance(plan, ClusteringPlan)
    assert plan.partitions == DAYS[:2]
    assert not load_snapshot(table.storage).timeline.pending()


def test_one_schedules_and_another_executes(table: WrittenTable) -> None:
    before = table.rows()
    assert codecs(table) == {"GZIP", "ZSTD"}
    instant = table.services().schedule("recompress")
    assert isinstance(instant, Instant)
    commit = table.services().execute(instant.requested_at)
    assert (commit.action, commit.operation, commit.partitions) == (
        "replacecommit",
        "CLUSTER",
        DAYS[:2],
    )
    assert codecs(table) == {"ZSTD"}
    assert table.rows() == before
    assert table.services().execute(instant.requested_at) == commit
    assert isinstance(table.services().run("recompress"), Skip)


def test_its_plan_is_a_clustering_that_real_hudi_knows(table: WrittenTable) -> None:
    instant = table.services().schedule("recompress")
    assert isinstance(instant, Instant)
    assert instant.action == "clustering"
    stored = parse_requested_replace(table.storage.read(f".hoodie/timeline/{instant}"))
    assert (stored.operation, stored.plan is not None) == ("CLUSTER", True)
    assert stored.plan is not None
    assert [len(group.slices) for group in stored.plan.groups] == [1, 1]
    assert stored.plan.extra[SERVICE_KEY] == "recompress"


def test_without_the_service_its_plan_is_executed_as_a_clustering(table: WrittenTable) -> None:
    before = table.rows()
    instant = table.services().schedule("recompress")
    assert isinstance(instant, Instant)
    unregister("recompress")
    assert table.services().execute(instant.requested_at).operation == "CLUSTER"
    assert (table.rows(), codecs(table)) == (before, {"ZSTD"})


def test_what_a_waiting_plan_holds_is_left_alone(table: WrittenTable) -> None:
    assert table.services().schedule("recompress")
    assert str(table.services().preview("recompress")) == "all base files are in zstd"


def test_a_clustering_after_the_service_considers_every_partition(table: WrittenTable) -> None:
    assert table.services().run("recompress")
    plan = table.services().preview("clustering")
    assert isinstance(plan, ClusteringPlan)
    assert plan.partitions == DAYS


def test_the_service_runs_in_maintenance_rounds(table: WrittenTable) -> None:
    waiting = table.services().schedule("recompress")
    assert isinstance(waiting, Instant)
    first, second = run_round(table.services(), ["recompress"])
    assert isinstance(first.outcome, Commit)
    assert first.outcome.instant == waiting.requested_at
    assert isinstance(second.outcome, Skip)


def test_the_command_line_loads_the_service(table: WrittenTable) -> None:
    unregister("recompress")
    arguments = ["--load", str(EXAMPLE), "plan", table.storage.root, "recompress", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    planned = json.loads(result.stdout)["operations"]
    assert [operation["partition"] for operation in planned] == list(DAYS[:2])
