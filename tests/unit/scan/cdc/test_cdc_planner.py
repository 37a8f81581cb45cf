"""What a range of change data reads, and what it does where files were cleaned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Instant
from lakewright.scan.cdc.planner import CdcInferenceCase, plan_cdc
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_cdc_plan
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.queries import apply_changes, parse_change, read_changes
from support.tables import NO_SERVICES, WrittenTable, row

COW, MOR = "COPY_ON_WRITE", "MERGE_ON_READ"
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
LOG_COMPACT = {"hoodie.log.compaction.blocks.threshold": "2"}
CLUSTER = {"hoodie.clustering.inline.max.commits": "1"}
ONE = {"hoodie.clean.commits.retained": "1"}
LOGGED = {"hoodie.table.cdc.enabled": "true"}
BOTH = pytest.mark.parametrize("table_type", [COW, MOR])


def table_of(table_type: str, options: dict[str, str] | None = None) -> WrittenTable:
    return WrittenTable(options=NO_SERVICES).create(table_type, options=options)


def completed(commit: Commit | None) -> str | None:
    return None if commit is None else commit.completed_at


def short_changes(
    table: WrittenTable, since: Commit | None = None, until: Commit | None = None
) -> list[str]:
    """Changes in short: the kind, the key, and the note before and after."""
    changes = read_changes(table.storage, completed(since), completed(until))
    return [
        f"{op} {(before or after or {})['id']} "
        f"{before['note'] if before else '-'}>{after['note'] if after else '-'}"
        for op, before, after in changes
    ]


def kinds(table: WrittenTable, since: Commit | None = None) -> list[str]:
    plan = plan_cdc(load_snapshot(table.storage), since=completed(since)).plan
    return [step.kind.name for group in plan.groups for step in group.splits]


@BOTH
def test_inserts_updates_and_deletes_are_distinguished(table_type: str) -> None:
    table = table_of(table_type)
    first = table.upsert([row("a"), row("b"), row("c")])
    table.upsert([row("a", 2, "second"), row("n", 2, "new")])
    table.write("DELETE", [row("b"), row("nobody")])
    table.upsert([row("b", 1, "again")])
    *two, third, fourth = short_changes(table, first)
    assert sorted(two) == ["i n ->new", "u a first>second"]
    assert (third, fourth) == ("d b first>-", "i b ->again")
    assert apply_changes(read_changes(table.storage)) == table.rows()


@BOTH
def test_late_rows_change_nothing(table_type: str) -> None:
    table = table_of(table_type)
    first = table.upsert([row("a", 5), row("b", 5)])
    table.upsert([row("a", 1, "late")])
    table.write("DELETE", [row("b", 2)], ordered=True)
    assert short_changes(table, first) == []


@BOTH
def test_the_same_row_once_more_is_an_update(table_type: str) -> None:
    table = table_of(table_type)
    first = table.upsert([row("a")])
    table.upsert([row("a")])
    assert short_changes(table, first) == ["u a first>first"]


@BOTH
def test_a_row_that_is_marked_as_deleted(table_type: str) -> None:
    schema = WrittenTable().schema.append(pa.field("_hoodie_is_deleted", pa.bool_()))
    table = replace(table_of(table_type), schema=schema)
    first = table.upsert([{**row("a"), "_hoodie_is_deleted": False}])
    table.upsert([{**row("a", 2), "_hoodie_is_deleted": True}])
    assert short_changes(table, first) == ["d a first>-"]


@BOTH
def test_what_is_overwritten_goes_and_what_is_new_comes(table_type: str) -> None:
    table = table_of(table_type)
    table.upsert([row("a"), row("b", day="2026-01-02")])
    before = table.upsert([row("a", 2, "second")])
    table.write("INSERT_OVERWRITE", [row("a", 3, "over")])
    table.delete_partitions("2026-01-02")
    assert short_changes(table, before) == ["d a second>-", "i a ->over", "d b first>-"]


def test_services_change_nothing() -> None:
    table = table_of(MOR)
    table.upsert([row("a"), row("b")])
    table.upsert([row("a", 2, "second")])
    before = table.upsert([row("a", 3, "third")])
    for service, options in (
        ("logcompaction", LOG_COMPACT),
        ("compaction", COMPACT),
        ("clustering", CLUSTER),
    ):
        assert isinstance(table.services(options).run(service), Commit)
    assert short_changes(table, before) == []
    assert apply_changes(read_changes(table.storage)) == table.rows()
    table.upsert([row("a", 4, "fourth")])
    assert short_changes(table, before) == ["u a third>fourth"]


def test_a_write_that_completes_late_is_reported_when_it_completes() -> None:
    table = WrittenTable(
        options={**NO_SERVICES, "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
    ).create(MOR, options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"})
    first = table.upsert([row("a", 1, "one"), row("b", 1, "one")])
    quick: list[Commit] = []

    def others() -> None:
        quick.append(table.upsert([row("a", 5, "quick")]))

    table.upsert([row("a", 3, "slow"), row("b", 3, "slow")], before_commit=others)
    assert short_changes(table, first, quick[0]) == ["u a one>quick"]
    assert short_changes(table, quick[0]) == ["u b one>slow"]


RANGES: dict[str, tuple[int | None, int | None, list[str]]] = {
    "everything": (None, None, ["i a ->0", "u a 0>1", "u a 1>2", "u a 2>3"]),
    "up to a write": (None, 1, ["i a ->0", "u a 0>1"]),
    "after a write": (1, None, ["u a 1>2", "u a 2>3"]),
    "one write": (1, 2, ["u a 1>2"]),
    "nothing": (3, None, []),
}


@BOTH
@pytest.mark.parametrize(("since", "until", "expected"), RANGES.values(), ids=list(RANGES))
def test_ranges(table_type: str, since: int | None, until: int | None, expected: list[str]) -> None:
    table = table_of(table_type)
    commits = [table.upsert([row("a", n, f"{n}")]) for n in range(4)]
    query_range = [None if n is None else commits[n] for n in (since, until)]
    assert short_changes(table, *query_range) == expected


@BOTH
def test_columns_are_those_of_rows_before_and_after(table_type: str) -> None:
    table = table_of(table_type)
    first = table.upsert([row("a")])
    table.upsert([row("a", 2, "second")])
    changes = read_changes(table.storage, first.completed_at, columns=["note"])
    assert changes == [("u", {"note": "first"}, {"note": "second"})]


@pytest.mark.parametrize("options", [{}, LOGGED], ids=["not logged", "logged"])
def test_a_column_that_came_later_was_empty_before(options: dict[str, str]) -> None:
    table = table_of(COW, options)
    first = table.upsert([row("a")])
    table.upsert([row("a", 2)])
    wider = table.schema.append(table.schema.field("note").with_name("more"))
    table.write("UPSERT", [{**row("a", 3), "more": "x"}], schema=wider)
    changes = read_changes(table.storage, first.completed_at)
    values = [
        (op, before and before["more"], after and after["more"]) for op, before, after in changes
    ]
    assert values == [("u", None, None), ("u", None, "x")]


@BOTH
def test_only_what_the_range_touched_is_listed_and_read(table_type: str) -> None:
    table = table_of(table_type)
    table.upsert([row("a"), row("b", day="2026-01-02")])
    first = table.upsert([row("b", 2, "x", day="2026-01-02")])
    table.upsert([row("a", 2, "second")])
    counting = CountingStorage(table.storage)
    plan = plan_cdc(load_snapshot(counting), since=first.completed_at).plan
    read_cdc_plan(counting, plan)
    assert not [call for call in counting.touched if "2026-01-02" in call[1]]
    (group,) = plan.groups
    assert len(group.splits) == 1


def compacted_between() -> tuple[WrittenTable, list[Commit]]:
    """Two writes to one group, and a compaction that was scheduled between them and has ended."""
    table = table_of(MOR)
    commits = [table.upsert([row("a"), row("b")]), table.upsert([row("a", 2, "second")])]
    planned = table.services(COMPACT).schedule("compaction")
    assert isinstance(planned, Instant)
    commits.append(table.upsert([row("a", 3, "third"), row("b", 3, "third")]))
    table.services().execute(planned.requested_at)
    return table, commits


def test_a_slice_of_a_concurrent_compaction_has_the_rows_from_before() -> None:
    table, commits = compacted_between()
    expected = ["u a second>third", "u b first>third"]
    assert sorted(short_changes(table, commits[1])) == expected
    for number in range(2):
        table.upsert([row(f"z{number}", day="2026-01-09")])
    commit = table.services(ONE).run("clean")
    assert isinstance(commit, Commit)
    assert commit.files == 2
    assert sorted(short_changes(table, commits[1], commits[2])) == expected


CLEANED: dict[str, tuple[str, dict[str, str]]] = {
    "copy on write": (COW, {}),
    "copy on write, changes logged": (COW, LOGGED),
    "copy on write, keys logged": (
        COW,
        {**LOGGED, "hoodie.table.cdc.supplemental.logging.mode": "OP_KEY_ONLY"},
    ),
    "merge on read": (MOR, {}),
    "merge on read, changes logged": (MOR, LOGGED),
}


@pytest.mark.parametrize(("table_type", "options"), CLEANED.values(), ids=list(CLEANED))
def test_rows_from_before_that_were_cleaned_are_an_error(
    table_type: str, options: dict[str, str]
) -> None:
    table = table_of(table_type, options)
    commits = [table.upsert([row("a", n, f"{n}"), row("b", n, f"{n}")]) for n in range(4)]
    if table_type == MOR:
        table.services(COMPACT).run("compaction")
        commits.append(table.upsert([row("a", 9, "last")]))
    table.services(ONE).run("clean")
    with pytest.raises(InvalidError, match=r"cleaned.*hoodie.clean.commits.retained"):
        short_changes(table, commits[0])
    newest = ["u a 3>last"] if table_type == MOR else ["u a 2>3", "u b 2>3"]
    assert short_changes(table, commits[-2]) == newest


@BOTH
def test_from_the_beginning_the_present_rows_replace_cleaned_changes(
    table_type: str,
) -> None:
    table = table_of(table_type)
    for n in range(4):
        table.upsert([row("a", n, f"{n}"), row(f"b{n}", n, f"{n}")])
    if table_type == MOR:
        table.services(COMPACT).run("compaction")
        table.upsert([row("a", 4, "4")])
    table.services(ONE).run("clean")
    assert kinds(table) == [CdcInferenceCase.STATE.name]
    assert apply_changes(read_changes(table.storage)) == table.rows()
    plan = plan_cdc(load_snapshot(table.storage), limit=1)
    records = read_cdc_plan(table.storage, plan.plan).to_pylist()
    rows = apply_changes(
        parse_change(record["op"], record["before"], record["after"]) for record in records
    )
    assert rows == table.rows()
    assert not plan_cdc(
        load_snapshot(table.storage), since=plan.context.checkpoint
    ).context.instants
    with pytest.raises(InvalidError, match="cleaned"):
        read_changes(table.storage, fallback=False)


def test_an_end_whose_state_was_cleaned_is_an_error_from_the_beginning_too() -> None:
    table = table_of(COW)
    commits = [table.upsert([row("a", n, f"{n}")]) for n in range(4)]
    table.services(ONE).run("clean")
    with pytest.raises(InvalidError, match="cleaned"):
        short_changes(table, None, commits[1])
    assert short_changes(table, None, commits[3]) == ["i a ->3"]


def without_meta_fields(table: WrittenTable) -> object:
    path = ".hoodie/hoodie.properties"
    data = table.storage.read(path)
    assert b"hoodie.populate.meta.fields=true" in data
    changed = data.replace(
        b"hoodie.populate.meta.fields=true", b"hoodie.populate.meta.fields=false"
    )
    lines = [line for line in changed.splitlines() if not line.startswith(b"hoodie.table.checksum")]
    table.storage.replace(path, b"\n".join(lines) + b"\n")
    return read_changes(table.storage)


BAD: dict[str, tuple[Callable[[WrittenTable], object], str]] = {
    "no instants at all": (lambda t: plan_cdc(load_snapshot(t.storage), limit=0), "at least one"),
    "a range that ends before it begins": (
        lambda t: read_changes(t.storage, "20270101000000000", "20260101000000000"),
        "begins after",
    ),
    "a column that the table does not have": (
        lambda t: read_changes(t.storage, columns=["nothing"]),
        "no such column",
    ),
    "a table without meta fields": (
        without_meta_fields,
        "meta fields",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=list(BAD))
def test_bad_input_is_refused(call: Callable[[WrittenTable], object], message: str) -> None:
    table = table_of(COW)
    table.upsert([row("a")])
    with pytest.raises(InvalidError, match=message):
        call(table)
