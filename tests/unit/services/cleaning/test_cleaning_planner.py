"""Which files a policy lets go: slices are drawn by the ticks of their files.

`B3` is a base file of the write that began at tick 3, `L3` its log file, `C3` its change file. The
files of a group stand in one text; one that may go is named with its group, as in `f:B3`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from lakewright.model.file_group import BaseFile, LogFile, TimelineView, build_groups
from lakewright.model.instant import Instant
from lakewright.model.timeline import Timeline
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.cleaning.planner import (
    CleanCandidates,
    DataFile,
    PartitionFiles,
    ProtectedFiles,
    find_deletable_files,
)
from lakewright.testing.timeline_drawing import at, draw

DAY = "d1"
FIVE = """
    commit ||
    commit   ||
    commit     ||
    commit       ||
    commit         ||
    """


@dataclass(frozen=True)
class Case:
    picture: str
    files: Mapping[str, str]
    due: str
    retained: int | None = None
    versions: int = 3
    replaced: Mapping[str, int] = field(default_factory=dict)
    saved: str = ""
    planned: tuple[str, ...] = ()
    emptied: bool = False
    skipped: bool = False


CASES = {
    "the slice that serves the earliest retained commit stays": Case(
        FIVE, {"f": "B0 B2 B4 B6 B8"}, "f:B0 f:B2", retained=6
    ),
    "a group that was not written for long keeps its only slice": Case(
        FIVE, {"f": "B0"}, "", retained=8
    ),
    "the newest slice stays, however old": Case(FIVE, {"f": "B0 B2"}, "f:B0", retained=8),
    "log files go with their slice": Case(
        """
        deltacommit ||
        deltacommit   ||
        compaction      ||
        deltacommit       ||
        deltacommit         ||
        """,
        {"f": "B0 L2 B4 L6 L8"},
        "f:B0 f:L2",
        retained=8,
    ),
    "a log file that ended after the compaction began belongs to the new slice": Case(
        """
        deltacommit ||
        deltacommit   |----|
        compaction     ||
        deltacommit          ||
        """,
        {"f": "B0 L2 B3"},
        "f:B0",
        retained=9,
    ),
    "a slice made of log files alone goes when it was compacted": Case(
        """
        deltacommit ||
        compaction    ||
        deltacommit     ||
        """,
        {"f": "L0 B2"},
        "f:L0",
        retained=4,
    ),
    "a base file that took effect after the retained commit does not count yet": Case(
        """
        commit ||
        commit   |------|
        commit    ||
        """,
        {"f": "B0 B2"},
        "",
        retained=3,
    ),
    "change files go with the slice of their write": Case(
        FIVE, {"f": "B0 B2 C2 B4 C4 B6 C6"}, "f:B0 f:B2 f:C2", retained=6
    ),
    "files of pending writes are not cleaned": Case(
        """
        commit ||
        commit   ||
        commit     ||
        commit       |-
        """,
        {"f": "B0 B2 B6"},
        "f:B0",
        retained=4,
    ),
    "files of unknown instants are left to rollbacks": Case(
        FIVE, {"f": "B0 B3 B4"}, "f:B0", retained=6
    ),
    "files of archived writes are cleaned as others": Case(
        """
        commit ||
        commit   ||
        """,
        {"f": "A1 A2 B0"},
        "f:A1 f:A2",
        retained=2,
    ),
    "a replaced group goes whole once the replacement is older than what is retained": Case(
        """
        commit        ||
        commit          ||
        replacecommit     ||
        commit              ||
        """,
        {"f": "B0 B2", "g": "B4"},
        "f:B0 f:B2",
        retained=6,
        replaced={"f": 4},
    ),
    "a replaced group stays while the replacement is retained": Case(
        """
        commit        ||
        commit          ||
        replacecommit     ||
        commit              ||
        """,
        {"f": "B0 B2", "g": "B4"},
        "",
        retained=4,
        replaced={"f": 4},
    ),
    "a replacement that took effect after the retained commit is too young": Case(
        """
        commit        ||
        replacecommit   |-----|
        commit           ||
        """,
        {"f": "B0", "g": "B2"},
        "",
        retained=3,
        replaced={"f": 2},
    ),
    "a partition that was deleted is empty afterwards": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        """,
        {"f": "B0"},
        "f:B0",
        retained=4,
        replaced={"f": 2},
        emptied=True,
    ),
    "a partition that was written again is not": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        """,
        {"f": "B0", "g": "B4"},
        "f:B0",
        retained=4,
        replaced={"f": 2},
    ),
    "nor is one with a pending write": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        commit              |-
        """,
        {"f": "B0", "g": "B6"},
        "f:B0",
        retained=4,
        replaced={"f": 2},
    ),
    "saved files stay, and with them their slice": Case(
        """
        deltacommit ||
        deltacommit   ||
        compaction      ||
        compaction        ||
        deltacommit         ||
        """,
        {"f": "B0 L2 B4 B6"},
        "f:B4",
        retained=8,
        saved="f:B0",
    ),
    "a replaced group stays for a savepoint, and so does its partition": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        """,
        {"f": "B0"},
        "",
        retained=4,
        replaced={"f": 2},
        saved="f:B0",
    ),
    "a group of a pending plan stays whole": Case(
        FIVE, {"f": "B0 B2 B4", "g": "B0 B2"}, "g:B0", retained=8, planned=("f",), skipped=True
    ),
    "a replaced group of a pending plan stays whole": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        """,
        {"f": "B0"},
        "",
        retained=4,
        replaced={"f": 2},
        planned=("f",),
        skipped=True,
    ),
    "so many versions are kept of each group": Case(
        FIVE, {"f": "B0 B2 B4 B6 B8", "g": "B0 B2"}, "f:B0 f:B2 f:B4", versions=2
    ),
    "versions are slices, with their log files": Case(
        """
        deltacommit ||
        deltacommit   ||
        compaction      ||
        compaction        ||
        deltacommit         ||
        """,
        {"f": "B0 L2 B4 B6 L8"},
        "f:B0 f:L2",
        versions=2,
    ),
    "where versions count a replaced group goes at once": Case(
        """
        commit        ||
        replacecommit   ||
        """,
        {"f": "B0", "g": "B2"},
        "f:B0",
        replaced={"f": 2},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_due(case: Case) -> None:
    due = find(case)
    assert names(due) == set(case.due.split())
    assert due.partitions == ([DAY] if case.emptied else [])
    assert bool(due.skipped.partitions) is case.skipped


def test_the_root_of_a_table_without_partitions_is_never_removed() -> None:
    timeline = draw("commit        ||\nreplacecommit   ||\ncommit            ||")
    replaced = {("", "f"): instant_at(timeline, 2)}
    stock = PartitionFiles(TimelineView(timeline), {"": files("f", "B0")}, (), replaced)
    due = find_deletable_files(stock, CleaningSettings(), instant_at(timeline, 4))
    assert due.files
    assert not due.partitions


def test_the_table_is_readable_from_the_oldest_slice_that_stays() -> None:
    due = find(Case(FIVE, {"f": "B0 B2 B4", "g": "B0 B6 B8"}, "", versions=2))
    assert due.readable_from == at(6)


def find(case: Case) -> CleanCandidates:
    timeline = draw(case.picture)
    view = TimelineView(timeline)
    listed = [file for file_id, text in case.files.items() for file in files(file_id, text)]
    replaced = {(DAY, name): instant_at(timeline, tick) for name, tick in case.replaced.items()}
    stock = PartitionFiles(
        view=view,
        files={DAY: listed},
        groups=build_groups(DAY, listed, view, replaced=replaced),
        replaced=replaced,
        protected=ProtectedFiles(
            saved=frozenset(
                (DAY, file.name) for file in listed if name(file) in case.saved.split()
            ),
            planned={(DAY, file_id): "held by a plan" for file_id in case.planned},
        ),
    )
    retained = None if case.retained is None else instant_at(timeline, case.retained)
    policy = CleanPolicy.COMMITS if case.retained is not None else CleanPolicy.VERSIONS
    return find_deletable_files(
        stock, CleaningSettings(policy=policy, versions_retained=case.versions), retained
    )


def files(file_id: str, text: str) -> list[DataFile]:
    return [_file(file_id, word[0], int(word[1:])) for word in text.split()]


def _file(file_id: str, kind: str, tick: int) -> DataFile:
    if kind in "AB":
        # A is from before the timeline that is drawn.
        return BaseFile(file_id, "0-0-0", at(tick) if kind == "B" else f"2025{tick:013d}")
    return LogFile(file_id, at(tick), 1, "0-0-0", cdc=kind == "C")


def name(file: DataFile) -> str:
    kind = "B" if file.instant >= at(0) else "A"
    if isinstance(file, LogFile):
        kind = "C" if file.cdc else "L"
    return f"{file.file_id}:{kind}{int(file.instant[4:])}"


def names(due: CleanCandidates) -> set[str]:
    due_names = [name(file) for own in due.files.values() for file in own]
    assert len(due_names) == len(set(due_names))
    return set(due_names)


def instant_at(timeline: Timeline, tick: int) -> Instant:
    return timeline.by_time[at(tick)]
