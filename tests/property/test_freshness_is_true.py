"""Whatever happens to a table, completion never says more than its rows do."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import InvalidError
from lakewright.table.snapshot import load_snapshot
from support.event_times import (
    COMPACT_EVERY_COMMIT,
    DAY,
    NEXT_DAY,
    TIME_ZERO,
    ignoring_freshness_records,
    partition_view_times,
    table_freshness,
    tracked_row,
    tracked_table,
    untracked_options,
    view_times,
)
from support.soak import sized
from support.tables import Row, WrittenTable

KEYS = [f"k{n}" for n in range(5)]
DAYS = (DAY, NEXT_DAY)
KEPT = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}
ALWAYS = {
    **COMPACT_EVERY_COMMIT,
    **KEPT,
    "hoodie.clustering.inline.max.commits": "1",
    "hoodie.clustering.plan.strategy.small.file.limit": "1000000000",
    "hoodie.log.compaction.blocks.threshold": "1",
}
FORMS = {
    "simple": {},
    "buckets": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
}

rows = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(DAYS), st.integers(1, 500)),
    min_size=1,
    max_size=4,
    unique_by=lambda item: item[:2],
)
writes = st.tuples(
    st.sampled_from(["UPSERT", "UPSERT", "UPSERT", "DELETE", "INSERT_OVERWRITE", "UNTRACKED"]), rows
)
SERVICES = ["compaction", "compaction", "clustering", "logcompaction", "clean", "archive"]
COMPACTIONS = ("compaction", "silent compaction", "by event time", "exact")
THRESHOLD = TIME_ZERO + 250
BY_EVENT_TIME = {
    **ALWAYS,
    "hoodie.compaction.strategy": "event_time",
    "hoodie.compaction.event.time.threshold": datetime.fromtimestamp(
        THRESHOLD / 1000, UTC
    ).isoformat(),
}
EXACT = {**BY_EVENT_TIME, "hoodie.compaction.event.time.exact.split": "true"}
others: st.SearchStrategy[tuple[str, list[tuple[str, str, int]]]] = st.tuples(
    st.sampled_from(
        [*SERVICES, "by event time", "exact", "schedule", "drop", "rollback", "silent compaction"]
    ),
    st.just([]),
)
steps = st.lists(st.one_of(writes, writes, others), min_size=1, max_size=9)


def written(items: list[tuple[str, str, int]]) -> list[Row]:
    return [tracked_row(key, time, day) for key, day, time in items]


def act(table: WrittenTable, step: str, items: list[tuple[str, str, int]]) -> None:
    if step == "UNTRACKED":
        table.upsert(written(items), untracked_options(table))
    elif step in ("UPSERT", "DELETE", "INSERT_OVERWRITE"):
        table.write(step, written(items))
    elif step == "drop":
        table.delete_partitions(NEXT_DAY)
    elif step == "schedule":
        table.services(ALWAYS).schedule("compaction")
    elif step in ("by event time", "exact"):
        table.services(EXACT if step == "exact" else BY_EVENT_TIME).run("compaction")
    elif step == "silent compaction":
        table.services({**ALWAYS, **untracked_options(table)}).run("compaction")
    elif step == "rollback":
        newest = load_snapshot(table.storage).timeline.completed_writes[-1:]
        for instant in newest:
            table.writer().rollback(instant.requested_at)
    else:
        table.services(ALWAYS).run(step)


def kept_by(step: str, form: str, before: int) -> int:
    """Up to which event time the read-optimized view must be complete after a step.

    With a bucket index an exact split takes rows from its threshold on out of base files.
    """
    withdraws = step == "exact" and form == "buckets"
    return min(before, THRESHOLD - 1) if withdraws else before


def check_truth(table: WrittenTable) -> None:
    freshness = table_freshness(table)
    completion, snapshot_completion = (
        freshness.read_optimized.completion,
        freshness.snapshot.completion,
    )
    if completion is None:
        return
    assert snapshot_completion is not None
    assert completion <= snapshot_completion
    now, optimized = table.rows(), table.rows(optimized=True)
    assert [
        record for record in now if record["ts"] <= completion and record not in optimized
    ] == []
    there = {(record["id"], record["day"]) for record in now}
    assert {(record["id"], record["day"]) for record in optimized} <= there


def check_same_without_memory(table: WrittenTable) -> None:
    times = view_times(table), *(partition_view_times(table, day) for day in DAYS)
    with ignoring_freshness_records():
        assert (view_times(table), *(partition_view_times(table, day) for day in DAYS)) == times


@given(steps, st.sampled_from(list(FORMS)))
@settings(max_examples=sized(20, 1500), deadline=None)
def test_completion_is_never_more_than_the_truth(
    history: list[tuple[str, list[tuple[str, str, int]]]], form: str
) -> None:
    table = tracked_table(options=FORMS[form])
    table.upsert([tracked_row("k0", 100), tracked_row("k1", 50, NEXT_DAY)])
    for step, items in history:
        table.clock.sleep(1)
        before = table_freshness(table).read_optimized.completion
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                act(table, step, items)
        except InvalidError:
            continue
        check_truth(table)
        if step in COMPACTIONS and before is not None:
            after = table_freshness(table).read_optimized.completion
            assert after is not None
            assert after >= kept_by(step, form, before)
        check_same_without_memory(table)


@given(steps, st.sampled_from(list(FORMS)))
@settings(max_examples=sized(10, 1500), deadline=None)
def test_the_watermark_never_falls(
    history: list[tuple[str, list[tuple[str, str, int]]]], form: str
) -> None:
    """Whoever writes, compacts or deletes; only a rollback removes what was seen."""
    table = tracked_table(options={**FORMS[form], "lakewright.completion.lateness": "100ms"})
    table.upsert([tracked_row("k0", 100), tracked_row("k1", 50, NEXT_DAY)])
    table.upsert([tracked_row("k2", 90), tracked_row("k1", 150, NEXT_DAY)])
    before = table_freshness(table)
    for step, items in history:
        table.clock.sleep(1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                act(table, step, items)
        except InvalidError:
            continue
        after = table_freshness(table)
        snapshot, optimized = (
            (old.watermark or 0, new.watermark or 0)
            for old, new in (
                (before.snapshot, after.snapshot),
                (before.read_optimized, after.read_optimized),
            )
        )
        assert optimized[1] <= snapshot[1]
        if step != "rollback":
            assert snapshot[1] >= snapshot[0]
            assert after.late_rows >= before.late_rows
            assert optimized[1] >= kept_by(step, form, optimized[0])
        before = after
