"""Tables that we write: real Hudi reads the same rows, writes on, and we go on after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise, product
from math import prod
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from histories import EXACT, SharedTable, at, deletes, types_written
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder
from kinds import CROSSED, FEATURES, FEW, Kind, choices, crossed, matrix, most_diverse
from real_hudi import RealHudi, Row

from lakewright.scan.planner import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.local_reads import read_plan
from support.golden import NAMES, GoldenTables, as_json
from support.soak import SOAK, sized, some

LISTED = {"hoodie.metadata.enable": "false"}
QUERY = "hoodie.datasource.query.type"
COMPACT_SOON = "hoodie.compact.inline.max.delta.commits=1"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Question:
    """One query, in the form that each reader takes."""

    name: str
    theirs: dict[str, str]
    ours: Callable[[Snapshot], ScanPlan]
    hudi_rs: HudiReadOptions


Read = tuple[Question, dict[str, str]]


def snapshot_query() -> Question:
    return Question("snapshot", {}, plan_snapshot, HudiReadOptions())


def optimized_query() -> Question:
    options = HudiReadOptions().with_hudi_option("hoodie.read.use.read_optimized.mode", "true")
    return Question("read optimized", {QUERY: "read_optimized"}, plan_read_optimized, options)


def changes_query(since: str, until: str) -> Question:
    theirs = {
        QUERY: "incremental",
        "hoodie.datasource.read.begin.instanttime": since,
        "hoodie.datasource.read.end.instanttime": until,
    }
    options = HudiReadOptions().with_query_type(HudiQueryType.Incremental)
    return Question(
        f"changes {since} {until}",
        theirs,
        lambda snapshot: plan_changes(snapshot, since=since, until=until).plan,
        options.with_start_timestamp(since).with_end_timestamp(until),
    )


def queries(table: SharedTable, *, since: str | None) -> list[Question]:
    """The queries of a table: its rows, and ranges of changes after some time.

    These are all in a soak run, else the first, the last and one between them.
    """
    questions = [snapshot_query(), *([optimized_query()] if table.kind.merge_on_read else [])]
    if since is not None:
        times = [time for time in table.completion_times if time >= since]
        ranges = list(pairwise(times))
        places = dict.fromkeys((0, len(ranges) // 2, len(ranges) - 1)) if ranges else ()
        questions += [changes_query(*pair) for pair in some(ranges, *places)]
    return questions


def our_rows(table: SharedTable, question: Question) -> list[str]:
    storage = table.written.storage
    rows = read_plan(storage, question.ours(load_snapshot(storage)))
    return sorted(map(as_json, rows.to_pylist(maps_as_pydicts="strict")))


def hudi_rs_rows(table: SharedTable, question: Question) -> list[str]:
    reader = HudiTableBuilder.from_base_uri(str(table.path)).build()
    batches = [pa.record_batch(batch) for batch in reader.read(question.hudi_rs)]
    rows = [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]
    return sorted(map(as_json, rows))


def with_decoded_day(table: SharedTable, question: Question, row: Row) -> Row:
    """Real Hudi takes partition columns of changes from the path, and leaves them encoded."""
    if table.kind.style == "encoded" and question.name.startswith("changes") and "day" in row:
        return {**row, "day": unquote(row["day"])}
    return row


def their_reads(table: SharedTable, questions: list[Question], *, both: bool) -> list[Read]:
    """How real Hudi reads: it lists files, or looks into the metadata table, as by default."""
    listed = [(question, {**LISTED, **question.theirs}) for question in questions]
    default = [(question, question.theirs) for question in questions[:3]]
    if both:
        return listed + default
    return default if table.is_indexed else listed


def check(table: SharedTable, *, since: str | None = None) -> None:
    """All readers see the same, and it is what the model says."""
    questions = queries(table, since=since)
    ours = {question.name: our_rows(table, question) for question in questions}
    assert ours["snapshot"] == table.expected
    both = since is not None or (SOAK and table.is_indexed)
    reads = their_reads(table, questions, both=both)
    answers = table.hudi.read_all(table.path, [options for _, options in reads])
    for (question, _), rows in zip(reads, answers, strict=True):
        answer = sorted(as_json(with_decoded_day(table, question, row)) for row in rows)
        assert (question.name, answer) == (question.name, ours[question.name])
    for question in questions if table.suits_hudi_rs else []:
        answer = hudi_rs_rows(table, question)
        assert (question.name, answer) == (question.name, ours[question.name])


def look(table: SharedTable) -> None:
    """A check in between, which only a soak run does by all readers."""
    if SOAK:
        check(table)
    else:
        assert our_rows(table, snapshot_query()) == table.expected


def check_exactly(table: SharedTable) -> None:
    """No digit is lost that JSON does not show."""
    columns = [f"{text} AS {name}" for name, text in EXACT.items()]
    theirs = table.hudi.read(table.path, LISTED, columns)
    ours = [
        {
            "id": row["id"],
            "huge": format(row["huge"], "f") if "huge" in row else None,
            "at": (row["at"] - EPOCH) // timedelta(microseconds=1) if "at" in row else None,
            "blob": row["blob"].hex().upper() if "blob" in row else None,
        }
        for row in table.model.rows.values()
    ]
    assert sorted(map(as_json, theirs)) == sorted(map(as_json, ours))


def write_history(table: SharedTable) -> None:
    """All operations; real Hudi looks at the table now and then."""
    table.ours("bulk_insert", at(10, *range(12)))
    table.ours("insert", at(10, *range(12, 18)))
    table.ours(
        "upsert", [*at(15, 1), *at(20, 0, 1, 2, 3), *at(19, 2), *at(5, 4, 5), *at(20, 18, 19, 20)]
    )
    table.ours("delete", at(99, 6, 7))
    if table.kind.by_event:
        table.ours("delete", [*at(50, 8), *at(1, 9)], ordered=True)
        # A delete in a log competes with what comes after it.
        table.ours("upsert", [*at(40, 8), *at(12, 6)])
    table.ours("upsert", [*deletes(30, 10), *deletes(2, 11), *at(30, 0)])
    check(table)
    table.later = True
    table.ours("upsert", at(40, 0, 1, 2, 21, 22))
    whole = not table.kind.partition_by
    table.ours("insert_overwrite_table" if whole else "insert_overwrite", at(60, 12, 24))
    table.ours("insert", at(10, 26, 27, 28))
    if not whole:
        table.delete_partition_of(13)
        # No partition matches: an empty commit.
        table.written.delete_partitions("there/is/no/such/partition")
    table.ours("upsert", [*at(45, 2, 3), *at(5, 13, 25)])
    table.ours("upsert", [*at(70, 0, 1, 2, 3, 4, 5), *at(80, 8), *at(70, 29)])
    check(table, since="")
    check_exactly(table)


def let_real_hudi_go_on(table: SharedTable) -> None:
    """Writes and services of real Hudi on a table that we wrote, and a write of ours after them."""
    ours_ended = table.completion_times[-1]
    table.theirs("upsert", [*at(90, 0, 1, 2), *at(1, 3), *at(90, 30, 31, 40)])
    look(table)
    table.theirs("delete", at(99, 4, 30))
    check(table)
    if table.kind.merge_on_read:
        table.service("run_compaction", COMPACT_SOON)
        check(table)
    table.roll_back_theirs(at(95, 0, 32))
    look(table)
    # The groups that it makes are no buckets: real Hudi could not upsert into them itself.
    if table.kind.index != "bucket":
        table.service("run_clustering")
        check(table)
    # Nothing is archived that came after the last compaction of the metadata table.
    table.theirs("upsert", at(95, 5, 33), {"hoodie.metadata.compact.max.delta.commits": "1"})
    check(table, since=ours_ended)
    table.clean()
    look(table)
    table.archive()
    check(table)
    table.ours("upsert", at(99, 0, 5, 34))
    table.ours("delete", at(99, 1, 33))
    check(table)
    if table.kind.version == "8":
        upgrade = {"hoodie.write.auto.upgrade": "true", "hoodie.write.table.version": "9"}
        table.theirs("upsert", at(100, 2, 35), upgrade)
        assert table.snapshot.config.version == 9
        check(table)
        table.ours("upsert", at(101, 2, 34))
        check(table)


def begin_by_real_hudi(table: SharedTable) -> None:
    """Its first writes, with whatever it does by default."""
    table.later = True
    table.theirs("bulk_insert", at(10, *range(12)))
    table.theirs("upsert", [*at(20, 0, 1, 2), *at(5, 3), *at(20, 12, 13)])
    check(table)
    assert table.is_indexed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", matrix() if SOAK else FEW, ids=str)
def test_real_hudi_reads_what_we_write_and_goes_on(
    kind: Kind, real_hudi: RealHudi, tmp_path: Path
) -> None:
    # test_we_go_on_where_real_hudi_began has a metadata table in a check.
    kind = replace(kind, metadata=sized("listed", soak=kind.metadata))
    table = SharedTable(real_hudi, tmp_path / "shared", kind).create()
    write_history(table)
    let_real_hudi_go_on(table)


OURS_IN_BETWEEN = [
    ("upsert", [*at(30, 0, 4), *at(1, 5), *at(30, 14, 40)]),
    ("delete", at(99, 6)),
    ("insert", at(10, 15, 16, 17)),
    ("upsert", [*deletes(40, 7), *at(40, 0, 12, 15)]),
    ("insert_overwrite", at(50, 9, 21)),
]
THEIRS_AFTER = [
    ("upsert", [*at(60, 0, 9, 22), *at(1, 12)]),
    ("delete", at(99, 8)),
]
# In a soak run any two values of two features meet; else one kind, with logs and a composite key.
MIRRORED = most_diverse(matrix(), 18, strength=2) if SOAK else FEW[1:2]


@pytest.mark.parametrize("kind", MIRRORED, ids=str)
def test_we_go_on_where_real_hudi_began(kind: Kind, real_hudi: RealHudi, tmp_path: Path) -> None:
    """Real Hudi has a metadata table by default, which it makes anew after we have dropped it."""
    table = SharedTable(real_hudi, tmp_path / "shared", replace(kind, metadata="by default"))
    begin_by_real_hudi(table)
    for operation, changes in OURS_IN_BETWEEN:
        table.ours(operation, changes)
        look(table)
        assert not table.is_indexed
    check(table)
    for operation, changes in THEIRS_AFTER:
        table.theirs(operation, changes)
        look(table)
        assert table.is_indexed
    check(table)
    if kind.merge_on_read:
        table.service("run_compaction", COMPACT_SOON)
        check(table)
    table.ours("upsert", at(70, 0, 8, 23))
    check(table)


MEETINGS: dict[str, tuple[Callable[[], Sequence[Kind]], int]] = {
    "any value occurs in the few": (lambda: FEW, 1),
    "any two features meet in a third of the matrix": (
        lambda: most_diverse(matrix(), 18, strength=2),
        2,
    ),
    "any three features meet in the matrix": (matrix, 3),
}


@pytest.mark.parametrize(("kinds", "strength"), MEETINGS.values(), ids=list(MEETINGS))
def test_features_meet(kinds: Callable[[], Sequence[Kind]], strength: int) -> None:
    shown = {choice for kind in kinds() for choice in choices(kind, strength)}
    assert len(shown) == sum(
        prod(map(len, values)) for values in combinations(FEATURES.values(), strength)
    )


def test_the_matrix_is_full() -> None:
    every = list(product(*(FEATURES[name] for name in CROSSED)))
    assert sorted(map(crossed, matrix())) == sorted(every)


def test_histories_have_the_types_of_the_golden_tables(golden: GoldenTables) -> None:
    types = {str(field.type) for name in NAMES for field in fields_of(golden[name])}
    assert types <= types_written()


def fields_of(table: Path) -> pa.Schema:
    snapshot = load_snapshot(LocalStorage(str(table)))
    return snapshot.schema(snapshot.view())
