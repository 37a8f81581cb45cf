"""Everything that can be asked of a table at one moment, to be compared with a later one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from lakewright.model.commit_metadata import SERVICE_OPERATIONS
from lakewright.scan.planner import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.storage.base import Storage
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.local_reads import read_plan

Rows = list[str]


@dataclass(frozen=True)
class Answers:
    """The rows of the snapshot, of every time travel and of every bounded range, by question."""

    by_question: Mapping[str, Rows]
    optimized: Rows

    def differences(self, later: Answers) -> dict[str, tuple[Rows, Rows]]:
        """The questions of before that have another answer later: what left, and what came."""
        return {
            question: (
                [row for row in rows if row not in later.by_question[question]],
                [row for row in later.by_question[question] if row not in rows],
            )
            for question, rows in self.by_question.items()
            if later.by_question[question] != rows
        }


def ask(storage: Storage, questions: Answers | None = None) -> Answers:
    """Ask everything there is to ask, or what was asked before."""
    snapshot = load_snapshot(storage)
    wanted = questions.by_question if questions is not None else _questions(snapshot)
    answers = {question: _answer(snapshot, question) for question in wanted}
    return Answers(answers, rows_of(storage, plan_read_optimized(snapshot)))


def rows_of(storage: Storage, plan: object) -> Rows:
    """The rows of a plan as text, with commit time and key, in an order of their own."""
    found = read_plan(storage, plan)  # type: ignore[arg-type]
    hidden = ("_hoodie_commit_seqno", "_hoodie_file_name")
    kept = [name for name in found.column_names if name not in hidden]
    return sorted(str(row) for row in found.select(kept).to_pylist())


def _questions(snapshot: Snapshot) -> Iterator[str]:
    yield "snapshot"
    # A compaction lies between writes: nobody asks for the table as of it before it is there.
    done = [i for i in snapshot.timeline.completed_writes if not _is_service(snapshot, i)]
    yield from (f"as of {instant.requested_at}" for instant in done)
    ends = sorted(instant.completed_at or "" for instant in done)
    yield from (f"({since}, {until}]" for since, until in combinations(ends, 2))


def _is_service(snapshot: Snapshot, instant: object) -> bool:
    (commit,) = snapshot.commits([instant])  # type: ignore[list-item]
    return commit.operation in SERVICE_OPERATIONS


def _answer(snapshot: Snapshot, question: str) -> Rows:
    storage = snapshot.storage
    if question == "snapshot":
        return rows_of(storage, plan_snapshot(snapshot))
    if question.startswith("as of "):
        return rows_of(storage, plan_snapshot(snapshot, as_of=question.removeprefix("as of ")))
    since, until = question.strip("(]").split(", ")
    return rows_of(storage, plan_changes(snapshot, since=since, until=until).plan)
