"""What a commit costs on an object store: requests, and how many of them wait for one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lakewright.model.file_group import parse_data_file
from lakewright.storage.base import Storage, split_path
from lakewright.table.markers import FOLDER as MARKERS
from lakewright.table.transaction import TransactionManager
from lakewright.write.task import Operation
from support.object_store import Requests, recorded_requests
from support.tables import NO_SERVICES, WrittenTable, row

# Requests of the driver, in this order. Begin: properties, timeline, the newest commit, the folder
# of markers, the requested file, the timeline (has another writer chosen the same time?) and the
# inflight file. Commit: markers (of failed task attempts), properties, timeline, the folder of
# markers, the completed file, the timeline (did another writer commit or roll back?), markers (of
# attempts that run on) and their deletion.
DRIVER = 15
# A listing and the partition metadata, or a listing and two reads of a small base file.
PARTITION = 4
# The marker, the file, and the timeline (has the write been finished without this attempt?).
FILE = 3
# Of one partition, after each other.
CHAIN = DRIVER + PARTITION + FILE

# More than there are threads.
PARTITIONS = (1, 3, 40)


@dataclass(frozen=True)
class Case:
    """A table and what is written to it; `before` are the keys that each partition has."""

    table_type: str
    operation: Operation
    before: str = ""
    key: str = "b"

    def __str__(self) -> str:
        return f"{self.table_type} {self.operation} {'on' if self.before else 'of'} {self.key}"

    def write(self, requests: Requests, partitions: int) -> int:
        """Write one row to each partition; return how many data files that makes."""
        days = [f"d{n:03}" for n in range(partitions)]
        table = WrittenTable(requests.storage, options=NO_SERVICES).create(self.table_type)
        if self.before:
            table.upsert([row(f"{self.before}{day}", day=day) for day in days])
        files = data_files(requests.storage)
        requests.clear()
        commit = table.write(self.operation, [row(f"{self.key}{day}", 2, day=day) for day in days])
        log = list(requests.log)
        assert len(commit.partitions) == partitions
        written = len(data_files(requests.storage) - files)
        requests.log[:] = log
        return written


def data_files(storage: Storage) -> set[str]:
    paths = (file.path for file in storage.list_tree(""))
    return {path for path in paths if parse_data_file(split_path(path)[1])}


CASES = [
    Case(table_type, operation, before, key)
    for table_type in ("COPY_ON_WRITE", "MERGE_ON_READ")
    for operation, before, key in (
        (Operation.UPSERT, "", "new partitions"),
        (Operation.UPSERT, "a", "a"),
        (Operation.INSERT, "a", "small files"),
        (Operation.BULK_INSERT, "a", "new files"),
        (Operation.INSERT_OVERWRITE, "a", "new files"),
        (Operation.DELETE, "a", "a"),
    )
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_requests_of_a_commit_are_bounded_by_its_partitions_and_files(case: Case) -> None:
    chains, marker_listings = set(), set()
    for partitions in PARTITIONS:
        with recorded_requests() as requests:
            files = case.write(requests, partitions)
            bound = DRIVER + PARTITION * partitions + FILE * files
            assert len(requests.log) <= bound, requests.chain()
            assert requests.longest_chain <= CHAIN, requests.chain()
            chains.add(requests.longest_chain)
            marker_listings.add(len(requests.lists_below(MARKERS)))
    assert len(chains) == 1, "the chain does not grow with partitions"
    # At the begin and under the lock, before the commit and after it.
    assert marker_listings == {4}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_requests_under_the_lock_do_not_grow_with_partitions(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_locked = TransactionManager.run_locked
    counts: list[int] = []

    def counted(manager: TransactionManager, work: Callable[..., Any]) -> Any:
        before = len(requests.log)
        try:
            return run_locked(manager, work)
        finally:
            counts.append(len(requests.log) - before)

    monkeypatch.setattr(TransactionManager, "run_locked", counted)
    by_partitions = {}
    for partitions in (1, 40):
        with recorded_requests() as requests:
            counts.clear()
            case.write(requests, partitions)
            by_partitions[partitions] = counts[-2:]
    assert by_partitions[1] == by_partitions[40]
    begin, commit = by_partitions[1]
    assert begin <= 8
    assert commit <= 4
