from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.instant import (
    Action,
    Instant,
    State,
    format_time,
    latest_states,
    parse_instant,
    parse_time,
    query_time,
)

T1, T2 = "20260101000000001", "20260101000000002"

NAMES = {
    f"{T1}.commit.requested": Instant(T1, Action.COMMIT, State.REQUESTED),
    f"{T1}.inflight": Instant(T1, Action.COMMIT, State.INFLIGHT),
    f"{T1}_{T2}.commit": Instant(T1, Action.COMMIT, State.COMPLETED, T2),
    f"{T1}.deltacommit.inflight": Instant(T1, Action.DELTA_COMMIT, State.INFLIGHT),
    f"{T1}.compaction.requested": Instant(T1, Action.COMPACTION, State.REQUESTED),
    f"{T1}.clustering.inflight": Instant(T1, Action.CLUSTERING, State.INFLIGHT),
    f"{T1}.clustering.aborted": Instant(T1, Action.CLUSTERING, State.ABORTED),
    f"{T1}_{T2}.replacecommit": Instant(T1, Action.REPLACE_COMMIT, State.COMPLETED, T2),
    f"{T1}.savepoint.inflight": Instant(T1, Action.SAVEPOINT, State.INFLIGHT),
    f"{T1}_{T2}.rollback": Instant(T1, Action.ROLLBACK, State.COMPLETED, T2),
}


@pytest.mark.parametrize(("name", "instant"), NAMES.items(), ids=list(NAMES))
def test_a_name_is_the_instant_and_the_instant_is_the_name(name: str, instant: Instant) -> None:
    assert parse_instant(name) == instant
    assert instant.file_name == name


@pytest.mark.parametrize(
    "name",
    [
        f"{T1}.aborted",
        f"{T1}.deltacommit.aborted",
        f"{T1}_{T2}.aborted",
        f"{T1}_{T2}.compaction",
        f"{T1}.compaction.requested.cancel",
        f"{T1}.cancel.requested",
        "notes.txt",
        ".hidden.json",
        "history",
        f".{T1}.inflight.crc",
    ],
)
def test_other_names_are_passed_over(name: str) -> None:
    assert parse_instant(name) is None


def test_a_completed_name_without_completion_time_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="before 8"):
        parse_instant(f"{T1}.deltacommit")


def test_the_furthest_state_of_an_action_counts() -> None:
    names = [f"{T1}.compaction.requested", f"{T1}_{T2}.commit", f"{T1}.compaction.inflight"]
    instants = [instant for name in names if (instant := parse_instant(name))]
    assert latest_states(instants) == [Instant(T1, Action.COMMIT, completed_at=T2)]
    aborted = Instant(T1, Action.COMPACTION, State.ABORTED)
    assert latest_states([*instants, aborted]) == [Instant(T1, Action.COMMIT, completed_at=T2)]
    pending = [instant for instant in instants if not instant.is_completed]
    assert latest_states([aborted, *pending]) == [aborted]


QUERY_TIMES = {
    "20260102030405678": "20260102030405678",
    "20260102030405": "20260102030405999",
    "2026-01-02": "20260102000000000",
    "2026-01-02 03:04:05": "20260102030405000",
    "2026-01-02 03:04:05.678": "20260102030405678",
    "2026-01-02T03:04:05.678Z": "20260102030405678",
    "2026-01-02T03:04:05+02:00": "20260102010405000",
}


@pytest.mark.parametrize(("text", "time"), QUERY_TIMES.items())
def test_what_people_write_for_a_time(text: str, time: str) -> None:
    assert query_time(text) == time


@pytest.mark.parametrize("text", ["", "yesterday", "2026", "20260102", "2026-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="not a point in time"):
        query_time(text)


def test_a_time_without_zone_is_meant_in_the_tables_zone() -> None:
    oslo = timezone(timedelta(hours=1))
    assert query_time(datetime(2026, 1, 2, 3), oslo) == "20260102030000000"
    assert query_time(datetime(2026, 1, 2, 3, tzinfo=UTC), oslo) == "20260102040000000"


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_times_survive_the_round_trip(moment: datetime) -> None:
    text = format_time(moment)
    assert len(text) == 17
    assert parse_time(text) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@given(
    st.sampled_from(["deltacommit", "clean", "restore", "indexing", "commit"]),
    st.from_regex(r"\A[0-9]{17}\Z"),
    st.from_regex(r"\A[0-9]{17}\Z"),
    # Only plans of table services are aborted.
    st.sampled_from([state for state in State if state is not State.ABORTED]),
)
def test_any_instant_survives_the_round_trip(
    action: str, at: str, completed_at: str, state: State
) -> None:
    instant = Instant(at, Action(action), state, completed_at if state is State.COMPLETED else None)
    assert parse_instant(instant.file_name) == instant
