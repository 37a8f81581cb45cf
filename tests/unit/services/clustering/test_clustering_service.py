"""Planning on tables: which partitions are listed, and what a plan records for the next."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lakewright.errors import InvalidError
from lakewright.model.plans import ClusteringPlan, Skip
from lakewright.services.clustering.service import Clustering
from lakewright.storage.memory import MemoryStorage
from lakewright.testing.storage import CountingStorage
from support.services import ClusteredTable, clustering_options
from support.tables import WrittenTable, row

YESTERDAY, TODAY, TOMORROW = "2026-03-01", "2026-03-02", "2026-03-03"
APART = {
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
}
OFF = {"hoodie.table.services.incremental.enabled": "false"}
MODE = "hoodie.clustering.plan.partition.filter.mode"
RECENT = {
    MODE: "RECENT_DAYS",
    **clustering_options(daybased_skipfromlatest_partitions=1, daybased_lookback_partitions=1),
}
RANGE = {
    MODE: "SELECTED_PARTITIONS",
    **clustering_options(cluster_begin_partition=YESTERDAY, cluster_end_partition=YESTERDAY),
}
FEW = clustering_options(max_num_groups=1, max_bytes_per_group=1)


def table_of(*days: str, table_type: str = "COPY_ON_WRITE") -> WrittenTable:
    """A table with two files in each partition."""
    table = WrittenTable(options=APART).create(table_type)
    write(table, *days)
    return table


def write(table: WrittenTable, *days: str) -> None:
    for name in ("a", "b"):
        table.upsert([row(name, 1, day=day) for day in days])


# First what is planned and missing of two partitions, then after TOMORROW was written.
ROUNDS: dict[
    str, tuple[Mapping[str, str], tuple[str, ...], tuple[str, ...] | None, tuple[str, ...]]
] = {
    "groups beyond the limit are missing, and planned again": (
        FEW,
        (YESTERDAY,),
        (YESTERDAY, TODAY),
        (YESTERDAY, TODAY, TOMORROW),
    ),
    "switched off, nothing is recorded; what was clustered alike is not planned again": (
        OFF,
        (YESTERDAY, TODAY),
        None,
        (TOMORROW,),
    ),
    "nothing is missing, and only partitions that were written are planned": (
        {},
        (YESTERDAY, TODAY),
        (),
        (TOMORROW,),
    ),
    "a regular expression leaves the rest missing, other than in real Hudi": (
        clustering_options(partition_regex_pattern="2026-03-02"),
        (TODAY,),
        (YESTERDAY,),
        (YESTERDAY, TOMORROW),
    ),
    "a range leaves the rest missing, other than in real Hudi": (
        RANGE,
        (YESTERDAY,),
        (TODAY,),
        (TODAY, TOMORROW),
    ),
    "recent days leave the newest": (RECENT, (YESTERDAY,), (TODAY,), (TODAY, TOMORROW)),
    "named partitions leave the others": (
        clustering_options(partition_selected=TODAY),
        (TODAY,),
        (YESTERDAY,),
        (YESTERDAY, TOMORROW),
    ),
}


@pytest.mark.parametrize(
    ("options", "planned", "missing", "considered"), ROUNDS.values(), ids=list(ROUNDS)
)
def test_two_rounds(
    options: Mapping[str, str],
    planned: tuple[str, ...],
    missing: tuple[str, ...] | None,
    considered: tuple[str, ...],
) -> None:
    table = table_of(YESTERDAY, TODAY)
    clustered = ClusteredTable(table, options)
    first = clustered.planned()
    assert (first.partitions, first.missing_partitions) == (planned, missing)
    assert tuple(sorted(first.missing_reasons)) == (missing or ())
    clustered.run()
    write(table, TOMORROW)
    # Without a filter the second plan has every partition that is considered.
    second = ClusteredTable(table, OFF if options is OFF else {}).planned()
    assert second.partitions == considered


def test_recent_days_follow_the_days() -> None:
    table = table_of(YESTERDAY, TODAY)
    clustered = ClusteredTable(table, RECENT)
    clustered.run()
    write(table, TOMORROW)
    second = clustered.planned()
    assert (second.partitions, second.missing_partitions) == ((TODAY,), (TOMORROW,))


def test_an_hour_of_the_day_in_the_zone_of_the_table() -> None:
    table = WrittenTable(options=APART).create(options={"hoodie.table.timeline.timezone": "UTC"})
    days = [f"2026-03-{day:02d}" for day in range(1, 26)]
    table.upsert([row(day, 1, day=day) for day in days])
    # The clock stands at midnight, and a little later after the write.
    table.clock.sleep(3 * 3600)
    plan = ClusteredTable(table, {MODE: "DAY_ROLLING"}).planned()
    assert plan.partitions == ("2026-03-04",)
    assert plan.missing_partitions is not None
    assert len(plan.missing_partitions) == 24


def test_only_the_partitions_of_the_window_are_listed() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    table = WrittenTable(storage=storage, options=APART).create()
    write(table, YESTERDAY, TODAY)
    clustered = ClusteredTable(table)
    clustered.run()
    write(table, TOMORROW)
    storage.reset()
    assert clustered.planned().partitions == (TOMORROW,)
    listed = {path for method, path in storage.touched if method.startswith("list_")}
    assert listed & {YESTERDAY, TODAY, TOMORROW, ""} == {TOMORROW}


def test_an_empty_window_lists_nothing() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    table = WrittenTable(storage=storage, options=APART).create()
    write(table, YESTERDAY)
    clustered = ClusteredTable(table)
    clustered.run()
    storage.reset()
    plan = clustered.plan()
    assert isinstance(plan, Skip)
    assert "nothing was written or left" in plan.reason
    listed = {path for method, path in storage.touched if method.startswith("list_")}
    assert not listed & {YESTERDAY, ""}


def test_named_partitions_alone_are_listed_where_nothing_is_recorded() -> None:
    storage = CountingStorage(MemoryStorage.fresh())
    table = WrittenTable(storage=storage, options=APART).create()
    write(table, YESTERDAY, TODAY)
    storage.reset()
    plan = ClusteredTable(table, OFF | clustering_options(partition_selected=TODAY)).planned()
    assert (plan.partitions, plan.missing_partitions) == ((TODAY,), None)
    listed = {path for method, path in storage.touched if method.startswith("list_")}
    assert listed & {YESTERDAY, TODAY, ""} == {TODAY}


def test_named_partitions_are_clustered_without_new_writes() -> None:
    table = table_of(YESTERDAY, TODAY)
    ClusteredTable(table).run()
    write(table, TOMORROW)
    plan = ClusteredTable(
        table, clustering_options(partition_selected=f"{YESTERDAY},nowhere")
    ).planned()
    assert (plan.partitions, plan.missing_partitions) == ((YESTERDAY,), (TOMORROW,))


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_file_groups_of_a_pending_plan_are_not_planned_again(table_type: str) -> None:
    table = table_of(YESTERDAY, TODAY, table_type=table_type)
    pending = ClusteredTable(table, clustering_options(partition_selected=YESTERDAY)).schedule()
    plan = ClusteredTable(table).planned()
    assert (plan.partitions, plan.missing_partitions) == ((TODAY,), (YESTERDAY,))
    assert plan.missing_reasons == {YESTERDAY: f"held by clustering {pending.requested_at}"}


SKIPS: dict[str, tuple[Mapping[str, str], str]] = {
    "too few commits inline": (
        {"hoodie.clustering.inline": "true"},
        "2 of 4 commits since the last clustering",
    ),
    "too few commits by number": (
        {"hoodie.clustering.inline.max.commits": "3"},
        "2 of 3 commits since the last clustering",
    ),
    "no file is small": (clustering_options(small_file_limit=1), "no file is small enough"),
    "no partition fits": (
        clustering_options(partition_regex_pattern="x"),
        "filtered by partition.regex",
    ),
}


@pytest.mark.parametrize(("options", "reason"), SKIPS.values(), ids=list(SKIPS))
def test_nothing_is_planned(options: Mapping[str, str], reason: str) -> None:
    plan = ClusteredTable(table_of(YESTERDAY), options).plan()
    assert isinstance(plan, Skip)
    assert reason in plan.reason


def test_a_pending_clustering_is_the_last_one_for_the_trigger() -> None:
    table = table_of(YESTERDAY)
    ClusteredTable(table).schedule()
    plan = ClusteredTable(table, {"hoodie.clustering.inline.max.commits": "1"}).plan()
    assert isinstance(plan, Skip)
    assert plan.reason.startswith("0 of 1 commits")


def test_a_table_without_rows_is_left_alone() -> None:
    plan = ClusteredTable(WrittenTable().create()).plan()
    assert isinstance(plan, Skip)
    assert "nothing was written" in plan.reason


BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}


def test_buckets_stay_as_they_are() -> None:
    table = WrittenTable(options=APART).create("MERGE_ON_READ", options=BUCKETS)
    table.upsert([row("a"), row("b")])
    plan = ClusteredTable(table).plan()
    assert isinstance(plan, Skip)
    assert "bucket index" in plan.reason


def test_buckets_are_recognized_by_the_names_of_file_groups() -> None:
    """As on a table of real Hudi, which does not record them."""
    table = WrittenTable(options=APART).create("MERGE_ON_READ", options=BUCKETS)
    table.upsert([row("a"), row("b")])
    clustered = ClusteredTable(table, {"hoodie.index.type": "SIMPLE"})
    plan = clustered.service.plan(clustered.planning_context(instant="9" * 17))
    assert isinstance(plan, Skip)
    assert "bucket index" in plan.reason


@pytest.mark.parametrize("column", ["nowhere", "note.x"])
def test_a_sort_column_that_the_table_lacks(column: str) -> None:
    with pytest.raises(InvalidError, match=column):
        ClusteredTable(table_of(YESTERDAY), clustering_options(sort_columns=column)).plan()


def test_rows_may_be_sorted_by_their_keys() -> None:
    plan = ClusteredTable(
        table_of(YESTERDAY), clustering_options(sort_columns="_hoodie_record_key")
    ).plan()
    assert isinstance(plan, ClusteringPlan)


def test_the_service_knows_its_options() -> None:
    assert clustering_options(sort_columns="").keys() <= Clustering.keys
