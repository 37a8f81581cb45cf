"""Queries of a table, compared with a later moment or with real Hudi, and its change data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lakewright.model.commit_metadata import SERVICE_OPERATIONS
from lakewright.scan.cdc.planner import plan_cdc
from lakewright.scan.planner import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.scan.query_options import begin_of_range
from lakewright.storage.base import Storage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.local_reads import read_cdc_plan, read_plan

Rows = list[str]


@dataclass(frozen=True)
class QueryResults:
    """The rows of the snapshot, of every time travel and of every bounded range, by question."""

    by_question: Mapping[str, Rows]
    optimized: Rows

    def differences(self, later: QueryResults) -> dict[str, tuple[Rows, Rows]]:
        """Queries whose rows differ later: the rows that are missing, and the new ones."""
        return {
            question: (
                [row for row in rows if row not in later.by_question[question]],
                [row for row in later.by_question[question] if row not in rows],
            )
            for question, rows in self.by_question.items()
            if later.by_question[question] != rows
        }


def run_queries(storage: Storage, questions: QueryResults | None = None) -> QueryResults:
    """Run all queries of a table, or the same as before."""
    snapshot = load_snapshot(storage)
    texts = questions.by_question if questions is not None else _questions(snapshot)
    answers = {question: _answer(snapshot, question) for question in texts}
    return QueryResults(answers, plan_rows(storage, plan_read_optimized(snapshot)))


def plan_rows(storage: Storage, plan: object) -> Rows:
    """The rows of a plan as text, with commit time and key, in an order of their own."""
    table = read_plan(storage, plan)  # type: ignore[arg-type]
    hidden = ("_hoodie_commit_seqno", "_hoodie_file_name")
    columns = [name for name in table.column_names if name not in hidden]
    return sorted(str(row) for row in table.select(columns).to_pylist())


def _questions(snapshot: Snapshot) -> Iterator[str]:
    yield "snapshot"
    # Instants of services are not queried: a compaction adds one between writes.
    instants = [i for i in snapshot.timeline.completed_writes if not _is_service(snapshot, i)]
    yield from (f"as of {instant.requested_at}" for instant in instants)
    ends = sorted(instant.completed_at or "" for instant in instants)
    yield from (f"({since}, {until}]" for since, until in combinations(ends, 2))


def _is_service(snapshot: Snapshot, instant: object) -> bool:
    (commit,) = snapshot.commits([instant])  # type: ignore[list-item]
    return commit.operation in SERVICE_OPERATIONS


def _answer(snapshot: Snapshot, question: str) -> Rows:
    storage = snapshot.storage
    if question == "snapshot":
        return plan_rows(storage, plan_snapshot(snapshot))
    if question.startswith("as of "):
        return plan_rows(storage, plan_snapshot(snapshot, as_of=question.removeprefix("as of ")))
    since, until = question.strip("(]").split(", ")
    return plan_rows(storage, plan_changes(snapshot, since=since, until=until).plan)


Row = dict[str, Any]
Change = tuple[str, Row | None, Row | None]

# Which of the rows before and after a change is missing.
_SIDES = {"i": (True, False), "u": (False, False), "d": (False, True)}
_EXPECTED = Path(__file__).parents[1] / "golden" / "cow_cdc.expected.json"


def parse_change(op: str, before: str | None, after: str | None) -> Change:
    """A change with its rows parsed."""
    return op, _row(before), _row(after)


def _row(text: str | None) -> Row | None:
    parsed: Row | None = None if text is None else json.loads(text)
    return parsed


def read_changes(
    storage: Storage, since: str | None = None, until: str | None = None, **how: Any
) -> list[Change]:
    """The changes of a range, in order."""
    plan = plan_cdc(load_snapshot(storage), since=since, until=until, **how).plan
    rows = read_cdc_plan(storage, plan).to_pylist()
    return [parse_change(row["op"], row["before"], row["after"]) for row in rows]


def apply_changes(
    changes: Iterable[Change], key: tuple[str, ...] = ("id",), to: Iterable[Row] = ()
) -> list[Row]:
    """The rows of a table after changes, each of which must match the rows before it."""

    def of(row: Row | None) -> tuple[Any, ...]:
        assert row is not None
        return tuple(row[name] for name in key)

    rows = {of(row): row for row in to}
    for op, before, after in changes:
        assert (before is None, after is None) == _SIDES[op]
        if before is None:
            assert of(after) not in rows
        else:
            assert rows.pop(of(before)) == before
        if after is not None:
            rows[of(after)] = after
    return sorted(rows.values(), key=str)


def hudi_changes() -> list[tuple[str | None, list[Change]]]:
    """The change data that real Hudi reads from its own table, range by range."""
    expected = json.loads(_EXPECTED.read_text())["cdc"]
    return [
        (
            begin_of_range(item["after"]),
            [hudi_change(*json.loads(r).values()) for r in item["rows"]],
        )
        for item in expected
    ]


def hudi_change(after: Row | None, before: Row | None, op: str) -> Change:
    """A change of real Hudi, whose rows have meta columns and no nulls at times."""
    return op, before and normalized_row(before), after and normalized_row(after)


def normalized_row(row: Row) -> Row:
    """A row without what differs by how real Hudi made it.

    Rows from change files have nulls and decimals as bytes; others have meta columns and no
    decimals at all.
    """
    own = {
        name: value
        for name, value in row.items()
        if value is not None and not name.startswith("_hoodie_") and value != {"zero": False}
    }
    if isinstance(own.get("amount"), list):
        unscaled = int.from_bytes(bytes(b % 256 for b in own["amount"]), signed=True)
        own["amount"] = unscaled / 100
    return own


NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
BUCKET_INDEX = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
SERVICE_OPTIONS = {
    "compaction": {"hoodie.compact.inline.max.delta.commits": "1"},
    "logcompaction": {"hoodie.log.compaction.blocks.threshold": "2"},
    "clustering": {"hoodie.clustering.inline.max.commits": "1"},
    "clean": {"hoodie.clean.commits.retained": "1"},
    "archive": {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    },
}
KEYS = [f"k{n}" for n in range(4)]
LATENESS = [0, 0, 0, 5, 50]
