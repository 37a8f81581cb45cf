"""What an inflight file says of the partitions of a write: real Hudi's, and this library's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakewright.format.timeline_metadata import format_commit, parse_commit
from lakewright.model.commit_metadata import (
    NO_PROFILE,
    CommitMetadata,
    WorkloadProfile,
    WriteStat,
    planned_metadata,
    workload_profile,
)
from lakewright.model.instant import WRITE_ACTIONS, State
from lakewright.storage.local import LocalStorage
from lakewright.table.snapshot import load_snapshot
from support.golden import NAMES, GoldenTables


def inserts(number: int | None) -> WriteStat:
    return WriteStat(file_id="", prev_commit="null", num_inserts=number)


UPDATE = WriteStat(file_id="f1", prev_commit="20260101000000000", num_inserts=0)


def profile(*partitions: str, opened: tuple[str, ...] = ()) -> WorkloadProfile:
    return WorkloadProfile(frozenset(partitions), frozenset(opened))


CASES: dict[str, tuple[CommitMetadata | None, WorkloadProfile]] = {
    "an empty file says nothing": (None, NO_PROFILE),
    "nor does an operation alone": (CommitMetadata(operation="UPSERT"), NO_PROFILE),
    "updates change the file groups that are named": (
        CommitMetadata(operation="UPSERT", stats={"p": (inserts(0), UPDATE)}),
        profile("p"),
    ),
    "inserts may change any small file group of the partition": (
        CommitMetadata(operation="UPSERT", stats={"p": (inserts(2), UPDATE)}),
        profile("p", opened=("p",)),
    ),
    "a partition without a file group may be changed anywhere": (
        CommitMetadata(operation="UPSERT", stats={"p": (inserts(None),), "q": (inserts(0),)}),
        profile("p", "q", opened=("p", "q")),
    ),
    "a bulk insert changes no file group": (
        CommitMetadata(operation="bulk_insert", stats={"p": (inserts(2),)}),
        NO_PROFILE,
    ),
    "a write of this library names its partitions": (
        planned_metadata("UPSERT", ["q", "p"]),
        profile("p", "q", opened=("p", "q")),
    ),
    "a deletion names patterns": (
        planned_metadata("DELETE_PARTITION", None, ["b?,*", "a*"]),
        WorkloadProfile(patterns=("a*", "b?,*")),
    ),
    "patterns that cannot be read are none": (
        CommitMetadata(extra={"lakewright.partition.patterns": "[1"}),
        NO_PROFILE,
    ),
    "one that does not know them names none": (planned_metadata("UPSERT", None), NO_PROFILE),
}


@pytest.mark.parametrize(("metadata", "expected"), CASES.values(), ids=list(CASES))
def test_profiles(metadata: CommitMetadata | None, expected: WorkloadProfile) -> None:
    stored = None if metadata is None else parse_commit(format_commit(metadata))
    assert workload_profile(stored) == expected


# What real Hudi updates is in its profile; its bulk inserts, deletions of partitions and services
# have an empty one.
@pytest.mark.parametrize("name", NAMES)
def test_real_hudi_changes_no_file_group_that_its_profile_does_not_allow(
    name: str, golden: GoldenTables
) -> None:
    snapshot = load_snapshot(LocalStorage(str(golden[name])))
    for instant in snapshot.timeline.completed_writes:
        inflight = replace(instant, state=State.INFLIGHT, completed_at=None)
        if instant.action not in WRITE_ACTIONS:
            continue
        path = snapshot.timeline_path(inflight)
        data = snapshot.storage.read(path) if snapshot.storage.exists(path) else b""
        known = workload_profile(parse_commit(data) if data else None)
        (commit,) = snapshot.commits([instant])
        if known == NO_PROFILE:
            continue
        named = parse_commit(data).file_groups()
        assert set(commit.stats) <= known.partitions
        for partition, stats in commit.stats.items():
            changed = {stat.file_id for stat in stats if stat.prev_commit != "null"}
            closed = partition not in known.open_partitions
            assert not closed or {(partition, id_) for id_ in changed} <= named, instant
