"""Which instants may leave the active timeline, by drawings of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import Skip
from lakewright.model.timeline import Timeline
from lakewright.options import HUDI_OPTIONS, option_keys, settings_from
from lakewright.services.archiving.planner import (
    ArchivalConstraints,
    ArchivePlan,
    ArchivingSettings,
    batches,
    candidates,
    check_archive_trigger,
    plan_archive,
)
from lakewright.testing.timeline_drawing import at, draw

ONE_TO_TWO = ArchivingSettings(keep_min=1, keep_max=2)
FOUR = """
    commit ||
    commit   ||
    commit     ||
    commit       ||
    """


def one_after_the_other(*words: str) -> str:
    """A long picture."""
    width = max(map(len, words))
    return "\n".join(f"{word:<{width}} {'  ' * n}||" for n, word in enumerate(words))


@dataclass(frozen=True)
class Case:
    """`archived` are ticks of instants; `retained` and `cleaned` are ticks, too."""

    picture: str
    archived: str
    settings: ArchivingSettings = ONE_TO_TWO
    retained: int | None = None
    cleaned: int | None = None
    delta_commits: int = 0
    all_retained: bool = False
    uncleaned: Collection[int] = field(default=())


CASES = {
    "the least number of commits is kept": Case(FOUR, "0 2 4"),
    "of several the oldest go": Case(FOUR, "0 2", ArchivingSettings(keep_min=2, keep_max=3)),
    "the commit before a pending write stays": Case(
        """
        commit ||
        commit   ||
        commit     |-
        commit      ||
        commit        ||
        """,
        "0",
    ),
    "nothing goes past a pending write that is the oldest": Case(
        """
        commit |-
        commit  ||
        commit    ||
        commit      ||
        """,
        "",
    ),
    "a scheduled plan is a pending write": Case(
        """
        deltacommit ||
        deltacommit   ||
        compaction      |
        deltacommit      ||
        deltacommit        ||
        """,
        "0",
    ),
    "nothing goes while a rollback is pending": Case(
        """
        commit   ||
        commit     ||
        commit       ||
        commit         ||
        rollback         |-
        """,
        "",
    ),
    "nothing goes while a restore is pending": Case(
        """
        commit  ||
        commit    ||
        commit      ||
        commit        ||
        restore         |-
        """,
        "",
    ),
    "a pending clean stops nothing": Case(
        """
        commit ||
        commit   ||
        clean      |-
        commit      ||
        commit        ||
        """,
        "0 2 5",
    ),
    "nothing goes past a savepoint": Case(
        """
        commit    ||
        commit      ||
        savepoint   | |
        commit         ||
        commit           ||
        """,
        "0",
    ),
    "unless archiving beyond savepoints is on, and the saved commit stays": Case(
        """
        commit    ||
        commit      ||
        savepoint   | |
        commit         ||
        commit           ||
        """,
        "0 5",
        ArchivingSettings(keep_min=1, keep_max=2, beyond_savepoint=True),
    ),
    "a commit without a savepoint stays when the newest has one": Case(
        """
        commit    ||
        commit      ||
        commit        ||
        savepoint     | |
        """,
        "0",
        ArchivingSettings(keep_min=1, keep_max=2, beyond_savepoint=True),
    ),
    "the commit that stays before a pending write is not a saved one": Case(
        """
        commit    ||
        commit      ||
        commit        ||
        savepoint     | |
        commit           |-
        commit            ||
        commit              ||
        """,
        "0",
        ArchivingSettings(keep_min=1, keep_max=2, beyond_savepoint=True),
    ),
    "nothing goes while the cleaner retains all": Case(FOUR, "", all_retained=True),
    "a savepoint that was begun counts": Case(
        """
        commit    ||
        commit      ||
        savepoint   |-
        commit         ||
        commit           ||
        """,
        "0",
    ),
    "a replacement goes when its files are cleaned": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        commit              ||
        """,
        "0 2 4",
    ),
    "a replacement stays, and all after it, while its files are there": Case(
        """
        commit        ||
        replacecommit   ||
        commit            ||
        commit              ||
        """,
        "0",
        uncleaned=(2,),
    ),
    "what the cleaner retains stays": Case(FOUR, "0", retained=2),
    "a commit that ended after the retained one stays": Case(
        """
        commit ||
        commit   |-----|
        commit    ||
        commit      ||
        """,
        "0",
        retained=5,
    ),
    "the next clean begins with what the last retained": Case(FOUR, "0", cleaned=2),
    "a compaction is planned from the last one on": Case(
        """
        deltacommit ||
        compaction    ||
        deltacommit     ||
        deltacommit       ||
        """,
        "0",
    ),
    "of several compactions the last one counts": Case(
        """
        compaction  ||
        compaction    ||
        compaction      ||
        deltacommit       ||
        """,
        "0 2",
    ),
    "a clustering is planned from the last one on": Case(
        """
        commit     ||
        clustering   ||
        commit         ||
        commit           ||
        """,
        "0",
    ),
    "but the next one is not awaited for ever": Case(
        one_after_the_other("commit", "clustering", *["commit"] * 28),
        " ".join(str(2 * n) for n in range(29)),
    ),
    "nor for a cleaner that was switched off": Case(
        one_after_the_other(*["commit"] * 30),
        " ".join(str(2 * n) for n in range(29)),
        cleaned=2,
    ),
    "unless archiving waits for cleaning": Case(
        one_after_the_other(*["commit"] * 30),
        "0",
        ArchivingSettings(keep_min=1, keep_max=2, block_on_clean=True),
        cleaned=2,
    ),
    "delta commits that a trigger counts stay": Case(
        """
        deltacommit ||
        deltacommit   ||
        deltacommit     ||
        deltacommit       ||
        """,
        "0",
        delta_commits=3,
    ),
    "cleans and rollbacks go along, but the last clean": Case(
        """
        commit   ||
        clean      ||
        rollback     ||
        clean          ||
        commit           ||
        commit             ||
        commit               ||
        """,
        "0 2 4 8 10",
    ),
    "a clean that ended after a commit that stays began goes later": Case(
        """
        commit ||
        clean    |-------|
        commit     ||
        commit       ||
        commit         ||
        clean            ||
        """,
        "0 4 6",
        ArchivingSettings(keep_min=1, keep_max=2),
    ),
    "savepoints, restores and index builds stay": Case(
        """
        restore  ||
        indexing   ||
        commit       ||
        commit         ||
        commit           ||
        """,
        "4 6",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_archived_instants(case: Case) -> None:
    result = plan(case)
    archived = [] if isinstance(result, Skip) else [i.requested_at for i in result.instants]
    assert archived == [at(int(tick)) for tick in case.archived.split()]


def test_the_reason_is_reported() -> None:
    result = plan(CASES["nothing goes past a pending write that is the oldest"])
    assert isinstance(result, Skip)
    assert result.reason == f"nothing can be archived: commit {at(0)} is pending"


def test_few_commits_are_not_worth_it() -> None:
    early = check_archive_trigger(draw(FOUR), ArchivingSettings(keep_min=2, keep_max=4))
    assert isinstance(early, Skip)
    assert early.reason == "4 commits, and up to 4 are kept"
    assert check_archive_trigger(draw(FOUR), ArchivingSettings(keep_min=2, keep_max=3)) is None


def test_all_files_of_an_action_go_together() -> None:
    files = [
        Instant(at(0), Action.COMPACTION, State.REQUESTED),
        Instant(at(0), Action.COMPACTION, State.INFLIGHT),
        Instant(at(0), Action.COMMIT, completed_at=at(1)),
        *draw(FOUR).instants[1:],
    ]
    result = plan_archive(
        files,
        candidates(Timeline.from_instants(files[2:]), ONE_TO_TWO, ArchivalConstraints()),
        uncleaned=(),
    )
    assert isinstance(result, ArchivePlan)
    first = result.actions[0]
    assert first.completed == files[2]
    assert set(first.pending) == set(files[:2])


def test_writes_that_another_process_has_archived_are_a_conflict() -> None:
    timeline = draw(FOUR)
    chosen = candidates(timeline, ONE_TO_TWO, ArchivalConstraints())
    with pytest.raises(ConflictError, match="another process has archived") as error:
        plan_archive(timeline.instants[1:], chosen, uncleaned=())
    assert error.value.facts["files"] == [timeline.instants[0].file_name]


def test_batches_have_so_many_writes() -> None:
    picture = """
        commit ||
        clean    ||
        commit     ||
        commit       ||
        commit         ||
        clean            ||
        """
    result = plan(Case(picture, "", ArchivingSettings(keep_min=1, keep_max=2)))
    assert isinstance(result, ArchivePlan)
    parts = [[a.completed.requested_at for a in part] for part in batches(result, 2)]
    assert parts == [[at(0), at(2), at(4)], [at(6)]]


def test_the_most_must_be_more_than_the_least() -> None:
    options = {"hoodie.keep.min.commits": "5", "hoodie.keep.max.commits": "5"}
    with pytest.raises(InvalidError, match="must be greater"):
        settings_from(ArchivingSettings, options)


def test_every_key_is_one_of_hudi() -> None:
    assert option_keys(ArchivingSettings) <= HUDI_OPTIONS


def plan(case: Case) -> ArchivePlan | Skip:
    timeline = draw(case.picture)

    def instant(tick: int | None) -> Instant | None:
        return None if tick is None else timeline.by_time[at(tick)]

    needs = ArchivalConstraints(
        instant(case.retained),
        instant(case.cleaned),
        case.delta_commits,
        all_retained=case.all_retained,
    )
    instants = candidates(timeline, case.settings, needs)
    uncleaned = {at(tick) for tick in case.uncleaned}
    return plan_archive(timeline, instants, uncleaned)
