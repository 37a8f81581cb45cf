"""Compactions by event time, judged by real Hudi and hudi-rs: no query changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from histories import Change, at, deletes
from hudi import HudiReadOptions
from kinds import Kind
from real_hudi import RealHudi, Row
from served import ServedTable, check, hudi_rs_answer, our_answer, stamped
from test_writing import LISTED, Question, changes_query, optimized_query, snapshot_query

from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.scan.planner import plan_snapshot
from lakewright.services.compaction.executor import BEYOND, slice_of
from support.event_times import BEGIN
from support.soak import SOAK, sized, some
from support.tables import orphan_data_files

LOGS = Kind(files="mor-avro")
BUCKETS = Kind(index="bucket", files="mor-parquet", metadata=sized("listed", soak="indexed"))
INDEXED = Kind(files="mor-parquet", metadata="indexed")

SPLIT = {"hoodie.compaction.event.time.exact.split": "true"}
COMPACT_SOON = "hoodie.compact.inline.max.delta.commits=1"
# Nothing is archived that came after the last compaction of the metadata table.
COMPACT_METADATA = {"hoodie.metadata.compact.max.delta.commits": "1"}
KEEP_THREE = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.compact.inline.max.delta.commits": "2",
    "hoodie.log.compaction.blocks.threshold": "2",
}
OPTIMIZED = "read optimized"
HUDI_RS = "hudi-rs"

Answers = dict[tuple[str, str], list[str]]


def on(ts: int, *numbers: int) -> list[Change]:
    """Versions of rows that happened so many milliseconds after the day began."""
    return at(BEGIN + ts, *numbers)


def ended(ts: int, *numbers: int) -> list[Change]:
    """Rows that say of themselves that they were deleted then."""
    return deletes(BEGIN + ts, *numbers)


def before(ts: int) -> dict[str, str]:
    """The options of a compaction of what happened before then."""
    return {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.threshold": f"2025-12-31T00:00:00.{ts:03d}Z",
    }


@dataclass
class TimedTable(ServedTable):
    """A table whose rows have event times, which real Hudi tracks as we do."""

    def plan(self, ts: int, options: Mapping[str, str] | None = None) -> str:
        return self.plan_by_us("compaction", {**before(ts), **(options or {})})

    def commit_of(self, instant: str) -> CommitMetadata:
        (commit,) = self.snapshot.commits([self.snapshot.timeline.by_time[instant]])
        return commit

    def rows_in_base_files(self, instant: str, *, since: int) -> list[Row]:
        """The rows from an event time on in the base files of an instant."""
        paths = [path for path in self.files_of(instant) if ".log." not in path]
        rows = [row for path in paths for row in pq.read_table(self.path / path).to_pylist()]
        return [row for row in rows if row["ts"] >= BEGIN + since]

    def event_times(self, *, optimized: bool = False) -> dict[str, int]:
        """When the rows of a view happened, by key."""
        return {row["id"]: row["ts"] - BEGIN for row in self.written.rows(optimized=optimized)}


def as_of_query(instant: str) -> Question:
    return Question(
        f"as of {instant}",
        {"as.of.instant": instant},
        lambda snapshot: plan_snapshot(snapshot, as_of=instant),
        HudiReadOptions().with_as_of_timestamp(instant),
    )


def questions(table: TimedTable) -> list[Question]:
    """The two views, time travel to writes, and ranges between two of them: all in a soak run."""
    writes = [
        instant
        for instant in table.snapshot.timeline.completed_writes
        if table.commit_of(instant.requested_at).operation not in SERVICE_OPERATIONS
    ]
    ends = sorted(instant.completed_at or "" for instant in writes)
    return [
        snapshot_query(),
        optimized_query(),
        *(as_of_query(instant.requested_at) for instant in some(writes, -2)),
        *(changes_query(*pair) for pair in some(list(combinations(ends, 2)), 0, -1)),
    ]


def ask(table: TimedTable, queries: Sequence[Question]) -> Answers:
    """What all readers answer; real Hudi with its metadata table too, where there is one."""
    ours = {("we", question.name): our_answer(table, question) for question in queries}
    rust = {(HUDI_RS, question.name): hudi_rs_answer(table, question) for question in queries}
    reads = [("listing", question, {**LISTED, **question.theirs}) for question in queries]
    if table.is_indexed:
        reads += [("metadata table", question, question.theirs) for question in queries]
    results = table.hudi.read_all(table.path, [options for _, _, options in reads])
    theirs = {
        (reader, question.name): sorted(map(stamped, rows))
        for (reader, question, _), rows in zip(reads, results, strict=True)
    }
    return {**ours, **rust, **theirs}


def differing(answers: Answers) -> Answers:
    """What is not answered as we do; of ranges hudi-rs leaves out what was overwritten since."""
    return {
        (reader, name): rows
        for (reader, name), rows in answers.items()
        if rows != answers["we", name] and not is_range_of_hudi_rs(reader, name)
    }


def changed(earlier: Answers, later: Answers) -> Answers:
    """The rows of one answer alone; the read optimized view may change.

    In ranges hudi-rs merges with the base file that is there now, which a late version has lost to.
    """
    differences: Answers = {}
    for (reader, name), rows in later.items():
        old = earlier.get((reader, name), earlier["we", name])
        other = {*old} ^ {*rows}
        if is_range_of_hudi_rs(reader, name):
            other -= {*old} - {*earlier["we", "snapshot"]}
        if other and name != OPTIMIZED:
            differences[reader, name] = sorted(other)
    return differences


def is_range_of_hudi_rs(reader: str, name: str) -> bool:
    return reader == HUDI_RS and name.startswith("changes")


@dataclass
class Begun:
    """A table with a history, its queries and the answers of all readers."""

    table: TimedTable
    queries: list[Question]
    answers: Answers

    @classmethod
    def of(cls, table: TimedTable) -> Begun:
        queries = questions(table)
        answers = ask(table, queries)
        assert differing(answers) == {}
        assert sorted(row.partition(" ")[2] for row in answers["we", "snapshot"]) == table.expected
        return cls(table, queries, answers)

    def copied(self, to: Path) -> Begun:
        return Begun(self.table.copied(to), self.queries, self.answers)

    def check_same(self) -> None:
        """All readers answer as before, and alike where the answer is another: the fast view."""
        answers = ask(self.table, self.queries)
        assert differing(answers) == {}
        assert changed(self.answers, answers) == {}

    def check_past(self) -> None:
        """What was before is so for real Hudi with its metadata table, whatever came after."""
        past = self.queries[2:]
        results = self.table.hudi.read_all(self.table.path, [question.theirs for question in past])
        for question, rows in zip(past, results, strict=True):
            expected = self.answers["we", question.name]
            assert (question.name, sorted(map(stamped, rows))) == (question.name, expected)

    def check_completed(self, instant: str, ts: int) -> None:
        """A compaction has changed the fast view alone, which has everything before a time."""
        table = self.table
        self.check_same()
        completed = table.snapshot.timeline.by_time[instant]
        assert table.shown_by_them("compaction")[instant] == "COMPLETED"
        assert table.files_of(instant) == table.files_recorded(instant)
        nothing = ask(
            table, [changes_query(table.completion_times[-2], completed.completed_at or "")]
        )
        assert set(map(tuple, nothing.values())) == {()}
        newest = table.event_times()
        fast = table.event_times(optimized=True)
        assert {k: t for k, t in newest.items() if t < ts}.items() <= fast.items()


Make = Callable[[Kind], Begun]


@pytest.fixture(scope="module")
def begun(real_hudi: RealHudi, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Both write: updates, late rows, new keys, deletes, and older versions after these.

    A compaction before 50 takes all but the last write, which follows the deletes.
    """

    @cache
    def begin(kind: Kind) -> Begun:
        table = TimedTable(real_hudi, tmp_path_factory.mktemp("timed") / "t", kind).create(
            event_time="ts"
        )
        table.ours("bulk_insert", on(10, *range(9)))
        late = [*on(70, 2, 10, 15), *ended(80, 5)]
        table.theirs("upsert", [*on(20, 0, 1, 8, 9), *on(5, 3), *late])
        table.ours("upsert", [*on(30, 0), *on(60, 1), *on(40, 11, 14), *ended(75, 4)])
        table.theirs("upsert", [*on(95, 1), *on(65, 4, 5), *on(55, 6, 12)])
        return Begun.of(table)

    return begin


@pytest.fixture
def make(begun: Make, tmp_path: Path) -> Make:
    """A copy of such a table."""
    return lambda kind: begun(kind).copied(tmp_path / "timed")


with_logs, with_buckets = (
    pytest.mark.parametrize("kind", some([LOGS, BUCKETS], place), ids=str) for place in (0, 1)
)


def has_base_and_log(table: TimedTable, instant: str) -> bool:
    names = table.files_of(instant)
    return {".log." in name for name in names} == {True, False}


@with_logs
def test_a_full_compaction_is_right_for_all_and_can_be_rolled_back(make: Make, kind: Kind) -> None:
    begun = make(kind)
    table = begun.table
    planned = table.plan(50)
    assert planned < table.snapshot.timeline.completed_writes[-1].requested_at
    begun.check_same()
    table.execute_by_us(planned)
    # The log file carries the delete on, as an older version of the row came after it.
    assert has_base_and_log(table, planned)
    begun.check_completed(planned, 50)
    assert orphan_data_files(table.storage) == []
    table.written.writer().rollback(planned)
    assert table.files_of(planned) == []
    assert orphan_data_files(table.storage) == []
    for question in begun.queries:
        assert our_answer(table, question) == begun.answers["we", question.name]
    check(table)
    table.execute_by_us(table.plan(50))
    check(table, ranges=1)


@pytest.mark.thorough
@with_buckets
def test_a_split_is_right_for_all_and_real_hudi_goes_on(make: Make, kind: Kind) -> None:
    begun = make(kind)
    table = begun.table
    planned = table.plan(50, SPLIT)
    table.execute_by_us(planned)
    assert has_base_and_log(table, planned)
    (end,) = (table.path / ".hoodie/timeline").glob(f"{planned}_*.commit")
    content = end.read_bytes()
    end.unlink()
    assert [i.requested_at for i in table.snapshot.timeline.pending()] == [planned]
    begun.check_same()
    end.write_bytes(content)
    begun.check_completed(planned, 50)
    assert orphan_data_files(table.storage) == []
    # Real Hudi puts new rows into base files, and its index looks for them there.
    beyond = 0 if kind.index == "bucket" else 1
    assert table.commit_of(planned).extra[BEYOND] == str(beyond)
    assert len(table.rows_in_base_files(planned, since=50)) == beyond
    let_real_hudi_go_on(begun)


def let_real_hudi_go_on(begun: Begun) -> None:
    """Its writes meet rows and deletes that stayed in log files, then it runs services."""
    table = begun.table
    table.theirs("upsert", [*on(97, 2, 10), *on(85, 1), *on(70, 5), *on(45, 0), *on(97, 13)])
    check(table, ranges=1)
    assert table.is_indexed == (table.kind.metadata != "listed")
    if table.is_indexed:
        begun.check_past()
    if SOAK:
        table.theirs("delete", on(99, 3, 12), COMPACT_METADATA)
        check(table, ranges=1)
    table.service("run_compaction", COMPACT_SOON)
    check(table, ranges=1)
    if SOAK:
        table.clean()
        check(table, ranges=0)
        table.archive()
        check(table, ranges=0)
    table.theirs("upsert", [*on(98, 0, 2, 12), *on(1, 6), *on(98, 14)])
    check(table, ranges=0)


@pytest.mark.thorough
def test_real_hudi_executes_our_plan_over_history_and_we_go_on_in_a_row(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    """The first log files are of archived writes, and the second plan is below the first's end."""
    table = TimedTable(real_hudi, tmp_path / "timed", INDEXED).create(event_time="ts")
    table.ours("bulk_insert", on(10, *range(6)))
    table.theirs("upsert", [*on(20, 0, 1, 2), *on(5, 3)])
    table.ours("upsert", on(22, 5))
    table.theirs("upsert", [*on(40, 0, 4), *on(80, 1)])
    table.ours("upsert", [*on(60, 0, 1, 5), *on(90, 2)])
    table.run_by_us("archive", KEEP_THREE)
    begun = Begun.of(table)
    first = table.plan(30)
    archived = {i.requested_at for i in table.snapshot.archived}
    plan = table.plan_at(first, "compaction")
    assert archived & {log.instant for o in plan.operations for log in slice_of(o).logs}
    assert max(archived) < first
    begun.check_same()
    table.execute_by_them("compaction", first)
    begun.check_completed(first, 30)
    assert table.event_times(optimized=True) == {
        "k00": 20, "k01": 20, "k02": 20, "k03": 10, "k04": 10, "k05": 22
    }  # fmt: skip
    second = table.plan(50, SPLIT)
    assert first < second < (table.snapshot.timeline.by_time[first].completed_at or "")
    table.execute_by_us(second)
    begun.check_completed(second, 50)
    table.ours("upsert", [*on(65, 3), *on(92, 0)])
    table.theirs("upsert", [*on(93, 1, 4), *on(94, 6)], COMPACT_METADATA)
    table.archive()
    begun = Begun.of(table)
    third = table.plan(70)
    assert max(i.requested_at for i in table.snapshot.archived) < third
    table.execute_by_us(third)
    begun.check_completed(third, 70)
    table.theirs("upsert", [*on(99, 0, 5), *on(2, 3)])
    check(table, ranges=1)
