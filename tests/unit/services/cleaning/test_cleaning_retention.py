"""How far back a table stays readable, and where a clean has to look, by the timeline alone."""

from __future__ import annotations

from datetime import UTC, tzinfo

import pytest

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.model.instant import Action, Instant
from lakewright.model.plans import Skip
from lakewright.model.timeline import Timeline
from lakewright.options import HUDI_OPTIONS, option_keys, settings_from
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.cleaning.planner import (
    FILTERED,
    SAVEPOINTS,
    VERSIONS,
    LastClean,
    check_clean_trigger,
    clean_scope,
    earliest_to_retain,
)
from lakewright.table.time_generator import format_epoch_ms
from lakewright.testing.timeline_drawing import at, draw

TWO = CleaningSettings(commits_retained=2)
THREE_COMMITS = """
    commit ||
    commit   ||
    commit     ||
    """

EARLIEST = {
    "the newest commits are retained": (THREE_COMMITS, TWO, 2),
    "with as many commits as are retained nothing is cleaned": (
        THREE_COMMITS,
        CleaningSettings(commits_retained=3),
        None,
    ),
    "services count as commits": (
        """
        deltacommit ||
        compaction    ||
        clustering      ||
        """,
        TWO,
        2,
    ),
    "cleans, rollbacks and savepoints do not count": (
        """
        commit   ||
        commit     ||
        clean        ||
        rollback       ||
        commit           ||
        """,
        TWO,
        2,
    ),
    "the commit before a pending write is retained": (
        """
        commit ||
        commit   ||
        commit      |-
        commit       ||
        commit         ||
        commit           ||
        """,
        TWO,
        2,
    ),
    "a pending plan counts as a write": (
        """
        deltacommit ||
        compaction     |
        deltacommit     ||
        deltacommit       ||
        deltacommit         ||
        """,
        TWO,
        0,
    ),
    "nothing is cleaned while the oldest write is pending": (
        """
        commit |-
        commit  ||
        commit    ||
        commit      ||
        """,
        TWO,
        None,
    ),
    "a pending write after the retained commit is no hindrance": (
        """
        commit ||
        commit   ||
        commit     ||
        commit       |-
        """,
        TWO,
        2,
    ),
    "a clean goes forward by a number of commits at most": (
        """
        commit ||
        commit   ||
        commit     ||
        commit       ||
        commit         ||
        """,
        CleaningSettings(commits_retained=1, max_commits_to_clean=2),
        4,
    ),
    "versions of files have no earliest commit": (
        THREE_COMMITS,
        CleaningSettings(policy=CleanPolicy.VERSIONS),
        None,
    ),
}


@pytest.mark.parametrize(("picture", "settings", "expected"), EARLIEST.values(), ids=list(EARLIEST))
def test_earliest_to_retain(picture: str, settings: CleaningSettings, expected: int | None) -> None:
    instant = earliest_to_retain(draw(picture), settings, 0, UTC)
    assert (instant.requested_at if instant else None) == (
        None if expected is None else at(expected)
    )


def test_a_clean_goes_on_where_the_last_one_ended() -> None:
    settings = CleaningSettings(commits_retained=1, max_commits_to_clean=1)
    timeline = draw(THREE_COMMITS)
    last = LastClean(at(9), earliest=at(2))
    instant = earliest_to_retain(timeline, settings, 0, UTC, last)
    assert instant is not None
    assert instant.requested_at == at(4)


HOURS = {
    "in UTC": UTC,
    "in the zone of the machine": zone_of("LOCAL"),
}


@pytest.mark.parametrize("zone", HOURS.values(), ids=list(HOURS))
def test_commits_of_the_last_hours_are_retained(zone: tzinfo) -> None:
    now_ms = 1_767_225_600_000
    times = [format_epoch_ms(now_ms - age * 60_000, zone) for age in (181, 121, 119, 1)]
    timeline = Timeline.from_instants(
        Instant(time, Action.COMMIT, completed_at=f"{time[:-1]}9") for time in times
    )
    settings = CleaningSettings(policy=CleanPolicy.HOURS, hours_retained=2)
    instant = earliest_to_retain(timeline, settings, now_ms, zone)
    assert instant is not None
    assert instant.requested_at == times[2]
    later = earliest_to_retain(timeline, settings, now_ms + 10 * 3_600_000, zone)
    assert later is None


SCOPES = {
    "without a clean all settled writes of the timeline count": (
        """
        commit ||
        commit   ||
        commit     ||
        """,
        None,
        "0 2",
    ),
    "after a clean only what has settled since": (
        """
        commit ||
        commit   ||
        commit     ||
        commit       ||
        """,
        LastClean(at(5), earliest=at(2)),
        "2 4",
    ),
    "a write that began before the retained commit and ended after it counts when it settles": (
        """
        commit ||
        commit   |-----|
        commit    ||
        commit      ||
        commit         ||
        """,
        LastClean(at(7), earliest=at(5)),
        "5 2",
    ),
    "a write that ended after the commit that is now retained does not count yet": (
        """
        commit ||
        commit   |-----------|
        commit    ||
        commit      ||
        commit         ||
        """,
        LastClean(at(7), earliest=at(3)),
        "3 5",
    ),
    "nothing new is nothing to look at": (
        """
        commit ||
        commit   ||
        """,
        LastClean(at(4), earliest=at(2)),
        "",
    ),
}


@pytest.mark.parametrize(("picture", "last", "expected"), SCOPES.values(), ids=list(SCOPES))
def test_scope(picture: str, last: LastClean | None, expected: str) -> None:
    timeline = draw(picture)
    retained = timeline.completed_writes[-1]
    scope = clean_scope(timeline, CleaningSettings(), retained, last, has_history=False)
    assert not scope.full_listing_reason
    assert {i.requested_at for i in scope.writes} == {at(int(tick)) for tick in expected.split()}


VERSIONED = CleaningSettings(policy=CleanPolicy.VERSIONS, versions_retained=2)
EVERYTHING = {
    "incremental cleaning is off": (CleaningSettings(incremental=False), None, False),
    "no clean since writes were archived": (CleaningSettings(), None, True),
    "a savepoint was deleted": (
        CleaningSettings(),
        LastClean(at(5), at(2), {SAVEPOINTS: at(0)}),
        False,
    ),
    "partitions were left out": (
        CleaningSettings(),
        LastClean(at(5), at(2), {FILTERED: "true"}),
        False,
    ),
    "the retained commit is archived": (CleaningSettings(), LastClean(at(5), "2025"), False),
    "the last clean counted versions": (CleaningSettings(), LastClean(at(5)), False),
    "the last clean counted commits": (VERSIONED, LastClean(at(5), at(2)), False),
    "another number of versions was kept": (
        VERSIONED,
        LastClean(at(5), "", {VERSIONS: "3"}),
        False,
    ),
}


@pytest.mark.parametrize(
    ("settings", "last", "has_history"), EVERYTHING.values(), ids=list(EVERYTHING)
)
def test_all_partitions_are_listed(
    settings: CleaningSettings, last: LastClean | None, has_history: bool
) -> None:
    timeline = draw(THREE_COMMITS)
    retained = None if settings.policy is CleanPolicy.VERSIONS else timeline.completed_writes[-1]
    scope = clean_scope(timeline, settings, retained, last, has_history=has_history)
    assert scope.full_listing_reason


def test_versions_change_only_where_something_was_written() -> None:
    timeline = draw(THREE_COMMITS)
    last = LastClean(at(3), "", {VERSIONS: "2"})
    scope = clean_scope(timeline, VERSIONED, None, last, has_history=True)
    assert [i.requested_at for i in scope.writes] == [at(4)]


def test_partitions_that_the_last_clean_skipped_are_considered_again() -> None:
    extra = {"lakewright.missing.reasons": '{"held by compaction 7":["d1"]}'}
    timeline = draw(THREE_COMMITS)
    last = LastClean(at(5), at(4), extra)
    scope = clean_scope(
        timeline, CleaningSettings(), timeline.completed_writes[-1], last, has_history=True
    )
    assert scope.partitions == {"d1"}
    assert not scope.writes


TRIGGERS = {
    "a pending clean comes first": ("commit ||\nclean   |", CleaningSettings(), "pending"),
    "a clean waits for a number of commits": (
        "commit ||\nclean    ||\ncommit     ||",
        CleaningSettings(trigger_commits=2),
        "1 of 2 commits",
    ),
    "a commit that ended after the clean began counts": (
        "commit |---|\nclean   ||",
        CleaningSettings(trigger_commits=1),
        None,
    ),
    "several cleans may be pending if that is allowed": (
        "commit ||\nclean   |",
        CleaningSettings(allow_multiple=True),
        None,
    ),
}


@pytest.mark.parametrize(("picture", "settings", "reason"), TRIGGERS.values(), ids=list(TRIGGERS))
def test_triggers(picture: str, settings: CleaningSettings, reason: str | None) -> None:
    skip = check_clean_trigger(draw(picture), settings)
    if reason is None:
        assert skip is None
    else:
        assert isinstance(skip, Skip)
        assert reason in skip.reason


BAD_OPTIONS = {
    "hoodie.clean.policy": "KEEP_EVERYTHING",
    "hoodie.clean.commits.retained": "0",
    "hoodie.cleaner.hours.retained": "-1",
    "hoodie.clean.fileversions.retained": "none",
    "hoodie.clean.partition.filter.regex": "(",
    "hoodie.clean.max.commits.to.clean": "0",
    "hoodie.write.empty.clean.interval.hours": "0",
    "hoodie.clean.trigger.strategy": "TIME",
}


@pytest.mark.parametrize(("key", "value"), BAD_OPTIONS.items(), ids=list(BAD_OPTIONS))
def test_values_that_make_no_sense_are_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidError, match="does not parse"):
        settings_from(CleaningSettings, {key: value})


def test_every_key_is_one_of_hudi() -> None:
    assert option_keys(CleaningSettings) <= HUDI_OPTIONS


def test_older_names_are_understood() -> None:
    options = {"hoodie.cleaner.policy": "keep_latest_by_hours", "hoodie.clean.max.commits": "4"}
    settings = settings_from(CleaningSettings, options)
    assert settings == CleaningSettings(policy=CleanPolicy.HOURS, trigger_commits=4)
