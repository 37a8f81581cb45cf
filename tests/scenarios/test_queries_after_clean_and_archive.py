"""After any history, queries within the retained time read the same rows after a clean.

All queries read the same rows after archiving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.format.timeline_metadata import format_replace_commit
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import CompactionOperation, Skip
from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.write.writer import Commit
from support.services import clean_and_archive
from support.soak import sized
from support.tables import BuiltTable, compaction_plan, read_versions, versions

GROUPS = (("d1", "f"), ("d1", "g"), ("d2", "h"))
NEVER_LATE = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.compact.inline.max.delta.commits": "1",
    "hoodie.log.compaction.blocks.threshold": "1",
}
POLICIES = {
    "one commit": {"hoodie.clean.commits.retained": "1"},
    "three commits": {"hoodie.clean.commits.retained": "3"},
    "few at a time": {
        "hoodie.clean.commits.retained": "1",
        "hoodie.clean.max.commits.to.clean": "2",
    },
}

Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "write",
                "write",
                "compact",
                "compact slowly",
                "write slowly",
                "end",
                "end",
                "replace",
                "clean",
                "archive",
            ]
        ),
        st.integers(0, len(GROUPS) - 1),
    ),
    min_size=4,
    max_size=24,
)


class History:
    """A table that is written by hand, some writes taking long, with services in between."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.built = BuiltTable("MERGE_ON_READ")
        self.upkeep = clean_and_archive(self.built, {**options, **NEVER_LATE})
        self.version = 0
        self.begun: list[Callable[[], None]] = []
        self.replaced: set[tuple[str, str]] = set()
        self.cleans = 0
        for group in GROUPS:
            self.write(group)

    def step(self, kind: str, number: int) -> None:
        group = self.group(GROUPS[number])
        match kind:
            case "write":
                self.write(group)
            case "write slowly":
                self.begin(group)
            case "compact" | "compact slowly":
                self.compact(group, slowly=kind == "compact slowly")
            case "end":
                self.end()
            case "replace":
                self.replace(group)
            case "clean":
                self.check_clean()
            case "archive":
                self.check_archive()

    def group(self, group: tuple[str, str]) -> tuple[str, str]:
        """The group itself, or the one that took its place."""
        while group in self.replaced:
            group = (group[0], f"{group[1]}x")
        return group

    def rows(self, group: tuple[str, str]) -> Mapping[str, int]:
        self.version += 1
        return versions(**{group[1].rstrip("x"): self.version})

    def write(self, group: tuple[str, str]) -> None:
        files = {group: self.rows(group)}
        if self.has(group):
            self.built.write(logs=files)
        else:
            self.built.write(files)

    def has(self, group: tuple[str, str]) -> bool:
        snapshot = load_snapshot(self.built.storage)
        return any(file_group.key == group for file_group in snapshot.groups(snapshot.view()))

    def begin(self, group: tuple[str, str]) -> None:
        if self.begun or not self.has(group):
            return
        rows, at = self.rows(group), self.built.tick()
        for state in (State.REQUESTED, State.INFLIGHT):
            self.built.put(Instant(at, Action.DELTA_COMMIT, state), b"")

        def end() -> None:
            for state in (State.REQUESTED, State.INFLIGHT):
                path = Instant(at, Action.DELTA_COMMIT, state).file_name
                self.built.storage.delete(f".hoodie/timeline/{path}")
            log = self.built.log(group, rows, at)
            self.built.builder.commit(logs={group: log}, instant=at, action=Action.DELTA_COMMIT)

        self.begun.append(end)

    def end(self) -> None:
        for end in self.begun:
            end()
        self.begun = []

    def compact(self, group: tuple[str, str], *, slowly: bool) -> None:
        snapshot = load_snapshot(self.built.storage)
        groups = [g for g in snapshot.groups(snapshot.view()) if g.key == group]
        if self.begun or not groups:
            return
        merged, at = groups[0].latest_merged_slice(), self.built.tick()
        operation = CompactionOperation(
            partition=group[0],
            file_id=group[1],
            base_instant=merged.base_instant,
            base_file=merged.base.name if merged.base else None,
            logs=tuple(log.name for log in merged.logs),
        )
        self.built.put(Instant(at, Action.COMPACTION, State.REQUESTED), compaction_plan(operation))
        key = group[1].rstrip("x")
        rows = versions(**{key: read_versions(self.built.storage)[key]})

        def end() -> None:
            self.built.base(group, rows, at)
            pending = Instant(at, Action.COMPACTION, State.INFLIGHT)
            self.built.complete(pending, self.built.stats(at, group))

        self.begun.append(end)
        if not slowly:
            self.end()

    def replace(self, group: tuple[str, str]) -> None:
        if self.begun or not self.has(group):
            return
        at = self.built.tick()
        new = (group[0], f"{group[1]}x")
        self.built.base(new, self.rows(group), at)
        stats = self.built.stats(at, new, replaced={group[0]: (group[1],)})
        self.replaced.add(group)
        instant = Instant(at, Action.REPLACE_COMMIT, completed_at=self.built.tick())
        self.built.put(
            instant,
            format_replace_commit(
                CommitMetadata(
                    stats=stats.stats,
                    replaced=stats.replaced,
                    extra=stats.extra,
                    operation="CLUSTER",
                )
            ),
        )

    def check_clean(self) -> None:
        storage = self.built.storage
        planned = self.upkeep.plan_clean()
        if isinstance(planned, Skip):
            return
        assert planned.earliest_to_retain is not None
        earliest = planned.earliest_to_retain.requested_at
        before = retained_answers(storage, earliest)
        self.upkeep.clean()
        self.cleans += 1
        assert retained_answers(storage, earliest) == before

    def check_archive(self) -> None:
        storage = self.built.storage
        before = all_answers(storage)
        if isinstance(self.upkeep.archive(), Commit):
            assert all_answers(storage) == before


def read(storage: Storage, plan: ScanPlan) -> list[tuple[str, int]]:
    return sorted((row["id"], row["ts"]) for row in read_plan(storage, plan).to_pylist())


def retained_answers(storage: Storage, earliest: str) -> dict[str, object]:
    """Time travel to each retained commit, and the changes between those that completed since."""
    snapshot = load_snapshot(storage)
    writes = [i for i in snapshot.timeline.completed_writes if i.requested_at >= earliest]
    answers: dict[str, object] = {"now": read_versions(storage)}
    for write in writes:
        plan = plan_snapshot(snapshot, as_of=write.requested_at)
        answers[f"as of {write}"] = read(storage, plan)
    retained = snapshot.timeline.by_time[earliest]
    completions = {i.completed_at or "" for i in snapshot.timeline.completed_writes}
    ends = sorted(end for end in completions if end >= (retained.completed_at or ""))
    for since, until in [*pairwise(ends), *((None, end) for end in ends)]:
        changes = plan_changes(snapshot, since=since, until=until, fallback=False)
        answers[f"from {since} to {until}"] = read(storage, changes.plan)
    return answers


def all_answers(storage: Storage) -> dict[str, object]:
    snapshot = load_snapshot(storage)
    earliest = snapshot.earliest_retained() or ""
    writes = sorted({*snapshot.archived, *snapshot.timeline.completed_writes})
    return {
        "now": read_versions(storage),
        "writes": writes,
        **{
            str(write): read(storage, plan_snapshot(snapshot, as_of=write.requested_at))
            for write in writes
            if write.requested_at >= earliest
        },
    }


@pytest.mark.parametrize("options", POLICIES.values(), ids=list(POLICIES))
@settings(max_examples=sized(5, soak=300))
@given(history=steps)
def test_any_history(options: Mapping[str, str], history: list[Step]) -> None:
    table = History(options)
    for kind, number in history:
        table.step(kind, number)
    table.end()
    table.check_clean()
    table.check_archive()


def test_histories_are_cleaned_at_all() -> None:
    table = History(POLICIES["one commit"])
    for kind in ("write", "compact", "write", "replace", "write", "clean"):
        table.step(kind, 0)
    assert table.cleans == 1
    assert read_versions(table.built.storage).keys() == {"f", "g", "h"}
