"""No strategy, filter, budget, option or pending plan makes a file wait for ever.

Whatever was scheduled, executed, rolled back, restored or archived before: the debt names every log
file at any moment; and once nothing filters any more, a few rounds compact every log file and
cluster every small file, without another write to its partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.instant import REWRITES, Instant
from lakewright.model.plans import Skip
from lakewright.services.compaction_debt import load_debt
from lakewright.table.snapshot import load_snapshot
from support.services import clustering_options
from support.soak import sized
from support.tables import NO_SERVICES, WrittenTable, row

DAYS = [f"2026/01/{n:02d}" for n in range(1, 7)]
ELSEWHERE = "2027/01/01"
# New keys get files of their own, so that there is something to cluster.
BY_HAND = {
    **NO_SERVICES,
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.clustering.updates.strategy": "SparkAllowUpdateStrategy",
}
OFF = {"hoodie.table.services.incremental.enabled": "false"}
CANCELLABLE = {"hoodie.table.service.plan.cancellable": "true"}
COMPACTIONS: list[Mapping[str, str]] = [
    {},
    OFF,
    {"hoodie.compaction.strategy": "unbounded"},
    {"hoodie.compaction.strategy": "bounded_io", "hoodie.compaction.target.io": "1"},
    {"hoodie.compaction.strategy": "log_file_num", "hoodie.compaction.logfile.num.threshold": "2"},
    {"hoodie.compaction.logfile.size.threshold": "4000"},
    {"lakewright.compaction.plan.operations": "1"},
    {
        "hoodie.compaction.strategy": "day_based",
        "hoodie.compaction.daybased.target.partitions": "1",
    },
    {
        "hoodie.compaction.strategy": "day_based",
        "hoodie.compaction.daybased.target.partitions": "3",
    },
    {
        "hoodie.compaction.strategy": "bounded_partition",
        "hoodie.compaction.daybased.target.partitions": "2",
    },
    {
        "hoodie.compaction.strategy": "unbounded_partition",
        "hoodie.compaction.daybased.target.partitions": "2",
    },
    {
        "hoodie.compaction.strategy": "partition_regex",
        "hoodie.compaction.partition.path.regex": "2026/01/0[135]",
    },
    {
        "hoodie.compaction.strategy": "partition_regex,log_file_num",
        "hoodie.compaction.partition.path.regex": "2026/01/0[246]",
        "hoodie.compaction.logfile.num.threshold": "2",
    },
]
RECENT = {"hoodie.clustering.plan.partition.filter.mode": "RECENT_DAYS"}
CLUSTERINGS: list[Mapping[str, str]] = [
    {},
    OFF,
    CANCELLABLE,
    clustering_options(max_num_groups=1),
    clustering_options(max_num_groups=1, max_bytes_per_group=1),
    clustering_options(single_group_clustering_enabled="false"),
    clustering_options(small_file_limit=4000),
    clustering_options(partition_regex_pattern="2026/01/0[135]"),
    clustering_options(partition_selected="2026/01/02"),
    RECENT,
    {**RECENT, **clustering_options(daybased_skipfromlatest_partitions=1)},
]
OPTIONS: Mapping[str, list[Mapping[str, str]]] = {
    "compaction": COMPACTIONS,
    "clustering": CLUSTERINGS,
    "logcompaction": [{"hoodie.log.compaction.blocks.threshold": "2"}],
}
ARCHIVE = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}
# How many rounds pay everything, whatever the history was.
ROUNDS = 8

some_days = st.sets(st.sampled_from(range(len(DAYS))), min_size=1)
places = st.sampled_from(range(4))
newest = st.sampled_from(range(2))
writes = st.tuples(st.sampled_from(["update", "update", "insert"]), some_days)
plans = st.tuples(
    st.sampled_from(["schedule compaction", "run compaction"]),
    st.sampled_from(range(len(COMPACTIONS))),
)
clusterings = st.tuples(
    st.sampled_from(["schedule clustering", "run clustering"]),
    st.sampled_from(range(len(CLUSTERINGS))),
)
others = st.tuples(
    st.sampled_from(
        ["execute", "execute", "schedule logcompaction", "run logcompaction", "drop", "overwrite"]
    ),
    places,
)
undone = st.tuples(st.sampled_from(["rollback", "rollback", "restore", "archive"]), newest)
# What is rolled back after a plan was made without it, and before that plan is executed.
around_plans = st.tuples(
    st.just("around"),
    st.tuples(
        st.sampled_from(["drop", "overwrite", "run clustering", "run compaction"]),
        places,
        st.sampled_from(["compaction", "clustering"]),
    ),
)
steps = st.lists(
    st.one_of(writes, writes, plans, clusterings, others, undone, undone, around_plans),
    min_size=4,
    max_size=14,
)


def apply(table: WrittenTable, kind: str, value: object, now: int) -> None:
    verb, _, service = kind.partition(" ")
    match verb, value:
        case "update" | "insert", set(chosen):
            key = "k" if verb == "update" else f"k{now}"
            table.upsert([row(key, now, f"at {now}", DAYS[n]) for n in sorted(chosen)])
        case "schedule" | "run", int(number):
            options = OPTIONS[service]
            getattr(table.services(options[number % len(options)]), verb)(service)
        case "around", (str(replacing), int(place), str(planned)):
            before = load_snapshot(table.storage).timeline.by_time.keys()
            apply(table, replacing, place, now)
            replaced = load_snapshot(table.storage).timeline.by_time.keys() - before
            plan = table.services().schedule(planned)
            for at in replaced:
                table.writer().rollback(at)
            if isinstance(plan, Instant):
                table.services().execute(plan.requested_at)
        case "drop", int(place):
            table.delete_partitions(DAYS[-1 - place])
        case "overwrite", int(place):
            table.write("INSERT_OVERWRITE", [row("k", now, f"at {now}", DAYS[place])])
        case _, int(place):
            undo(table, verb, place)


def undo(table: WrittenTable, verb: str, place: int) -> None:
    """Do something to the instant at a place, counted from the newest one."""
    timeline = load_snapshot(table.storage).timeline
    completed = [i.requested_at for i in reversed(timeline.completed_writes)]
    # The first write stays: without any the table has no schema.
    later = [i.requested_at for i in reversed(timeline.instants) if i.is_write][:-1]
    pending = [i.requested_at for i in reversed(timeline.pending(*REWRITES))]
    match verb:
        case "execute" if pending:
            table.services().execute(pending[place % len(pending)])
        case "rollback" if later:
            table.writer().rollback(later[place % len(later)])
        case "restore" if timeline.savepointed:
            saved = max(timeline.savepointed)
            table.writer().restore(saved)
            table.writer().delete_savepoint(saved)
        case "restore":
            table.writer().savepoint(completed[0], user="", comment="")
        case "archive":
            table.services(ARCHIVE).run("clean")
            table.services(ARCHIVE).run("archive")


def assert_debt_names_all_log_files(table: WrittenTable) -> None:
    snapshot = load_snapshot(table.storage)
    debt = load_debt(table.services().planning_context(snapshot))
    slices = [group.latest_merged_slice() for group in snapshot.groups(snapshot.view())]
    with_logs = {item.partition for item in slices if item.logs}
    assert {partition.partition for partition in debt.partitions} == with_logs


def settle(table: WrittenTable) -> None:
    """Execute all pending plans; roll back those that can no longer be executed."""
    for instant in reversed(load_snapshot(table.storage).timeline.pending(*REWRITES)):
        try:
            table.services().execute(instant.requested_at)
        except (ConflictError, InvalidError):
            if load_snapshot(table.storage).timeline.by_time.get(instant.requested_at):
                table.writer().rollback(instant.requested_at)


def rounds_until_done(table: WrittenTable, service: str) -> None:
    for _ in range(ROUNDS):
        if isinstance(table.services().run(service), Skip):
            return
    raise AssertionError(f"there is always another {service}")


@settings(max_examples=sized(6, 2000), deadline=None)
@given(history=steps)
def test_everything_is_compacted_and_clustered_once_nothing_filters(
    history: list[tuple[str, object]],
) -> None:
    table = WrittenTable(options=BY_HAND).create("MERGE_ON_READ")
    for note in ("first", "second", "third"):
        table.upsert([row("k", 1, note, day) for day in [*DAYS, ELSEWHERE]])
    for now, (kind, value) in enumerate(history, start=2):
        # A rollback may be refused, a plan overtaken, a savepoint impossible.
        with suppress(ConflictError, InvalidError):
            apply(table, kind, value, now)
        assert_debt_names_all_log_files(table)
    settle(table)
    before = table.rows()
    rounds_until_done(table, "compaction")
    snapshot = load_snapshot(table.storage)
    assert not load_debt(table.services().planning_context(snapshot))
    slices = [group.latest_merged_slice() for group in snapshot.groups(snapshot.view())]
    assert [item for item in slices if item.logs] == []
    assert table.rows(optimized=True) == table.rows() == before
    rounds_until_done(table, "clustering")
    assert isinstance(table.services(OFF).preview("clustering"), Skip)
    assert table.rows() == before
