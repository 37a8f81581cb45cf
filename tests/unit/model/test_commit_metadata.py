"""Values of commits and plans: what they derive, and that they are hashable and immutable."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from lakewright.model.commit_metadata import (
    CommitMetadata,
    RollbackMetadata,
    SavedPartition,
    SavepointMetadata,
    WriteStat,
)
from lakewright.model.plans import (
    CANCELLABLE,
    ClusteringGroup,
    ClusteringPlan,
    ClusteringSlice,
    CompactionOperation,
    CompactionPlan,
    InstantRef,
    RestorePlan,
    RollbackPlan,
    Skip,
)

OPERATION = CompactionOperation(
    partition="p1", file_id="f1", base_instant="20260101000000000", metrics={"TOTAL_IO_MB": 1.0}
)
COMMIT = CommitMetadata(
    stats={
        "p2": (WriteStat(file_id="f2"), WriteStat(file_id="")),
        "p1": (WriteStat(file_id="f1"),),
    },
    replaced={"p3": ("f3",)},
    extra={"schema": "{}"},
)
CLUSTERING = ClusteringPlan(
    groups=(
        ClusteringGroup(
            slices=(
                ClusteringSlice(
                    partition="p",
                    file_id="f",
                    base_path="s3://b/t/p/f_0-0-0_1.parquet",
                    log_paths=("s3://b/t/p/.f_2.log.1_0-0-0",),
                ),
                ClusteringSlice(partition="o", file_id="g"),
            )
        ),
    )
)

FACTS = {
    "a commit touches the partitions it wrote and those it replaced in": (
        COMMIT.partitions,
        ("p1", "p2", "p3"),
    ),
    "inserts that have no file group yet conflict with nothing": (
        COMMIT.file_groups(),
        {("p1", "f1"), ("p2", "f2"), ("p3", "f3")},
    ),
    "a plan is not cancellable by itself": (CLUSTERING.cancellable, False),
    "the mark in its extra metadata makes it so": (
        ClusteringPlan(extra={CANCELLABLE: "true"}).cancellable,
        True,
    ),
    "however it is written": (CompactionPlan(extra={CANCELLABLE: " TRUE "}).cancellable, True),
    "any other word does not": (CompactionPlan(extra={CANCELLABLE: "false"}).cancellable, False),
    "file ids are those written and those replaced": (COMMIT.file_ids(), {"f1", "f2", "f3"}),
    "all statistics come in one tuple": (
        [stat.file_id for stat in COMMIT.write_stats()],
        ["f2", "", "f1"],
    ),
    "the schema comes from the extra metadata": (COMMIT.schema, "{}"),
    "an empty schema is no schema": (CommitMetadata(extra={"schema": ""}).schema, None),
    "a commit without a schema has none": (CommitMetadata().schema, None),
    "a skip is false": (bool(Skip("nothing to do")), False),
    "a skip prints its reason": (str(Skip("3 of 5 delta commits")), "3 of 5 delta commits"),
    "a plan is true even when it is empty": (bool(CompactionPlan()), True),
    "planning is not incremental unless it says so": (CompactionPlan().missing_partitions, None),
    "an ordinary operation names no next base": (OPERATION.next_base_instant, None),
    "a plan knows its partitions": (CompactionPlan(operations=(OPERATION,)).partitions, ("p1",)),
    "the operations of a clustering are its slices": (
        [operation.file_id for operation in CLUSTERING.operations],
        ["f", "g"],
    ),
    "a clustering slice names its logs without folders": (
        CLUSTERING.operations[0].logs,
        (".f_2.log.1_0-0-0",),
    ),
    "a clustering slice names its base file without folders": (
        CLUSTERING.operations[0].base_file,
        "f_0-0-0_1.parquet",
    ),
    "a slice of logs has no base file": (CLUSTERING.operations[1].base_file, None),
    "a clustering slice names no next base": (CLUSTERING.operations[0].next_base_instant, None),
    "a clustering knows its partitions": (CLUSTERING.partitions, ("o", "p")),
}


@pytest.mark.parametrize(("value", "expected"), FACTS.values(), ids=list(FACTS))
def test_derived_values(value: object, expected: object) -> None:
    assert value == expected


VALUES = {
    "write statistics": WriteStat(file_id="f", cdc_stats={"p/x": 3}, log_files=("a", "b")),
    "a commit": COMMIT,
    "a compaction plan": CompactionPlan(operations=(OPERATION,), missing_partitions=("p9",)),
    "a clustering plan": CLUSTERING,
    "a rollback plan": RollbackPlan(instant=InstantRef("20260101000000000", "commit")),
    "a restore plan": RestorePlan(savepoint="20260101000000000"),
    "a rollback": RollbackMetadata(started_at="20260101000000000"),
    "a savepoint": SavepointMetadata(
        saved_by="me", saved_at=1, partitions={"p": SavedPartition(partition="p", files=("f",))}
    ),
    "a skip": Skip("why"),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=list(VALUES))
def test_values_are_equal_by_content_hashable_and_picklable(value: object) -> None:
    copy = pickle.loads(pickle.dumps(value))
    assert copy == value
    assert hash(copy) == hash(value)


def test_mappings_count_for_equality() -> None:
    assert WriteStat(cdc_stats={"a": 1}) != WriteStat(cdc_stats={"a": 2})


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        OPERATION.file_id = "other"  # type: ignore[misc]
