"""Instants of the timeline: parsing and formatting of file names and instant times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TypeAlias

from lakewright.errors import InvalidError, UnsupportedError

# The time of an instant: 17 digits, or 14 from old writers. Times are compared as strings.
InstantTime: TypeAlias = str


class State(StrEnum):
    """The state of an instant, in the order of its life cycle.

    ABORTED is the end of a plan that was cancelled, by Hudi's RFC 90: it is not executed any more.
    No version of Hudi writes it yet. Hudi 1.2 ignores the file, and sees the plan as pending.
    """

    REQUESTED = "REQUESTED"
    INFLIGHT = "INFLIGHT"
    ABORTED = "ABORTED"
    COMPLETED = "COMPLETED"


class Action(StrEnum):
    """The action of an instant, as it appears in the name of its timeline file."""

    COMMIT = "commit"
    DELTA_COMMIT = "deltacommit"
    REPLACE_COMMIT = "replacecommit"
    COMPACTION = "compaction"
    LOG_COMPACTION = "logcompaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    INDEXING = "indexing"

    def __repr__(self) -> str:
        return repr(self.value)

    @property
    def is_rewrite(self) -> bool:
        """Whether it is a table service that rewrites file groups according to a plan."""
        return self in _COMPLETED_AS

    @property
    def completed_as(self) -> Action:
        """The action of the completed instant: a compaction completes as a commit."""
        return _COMPLETED_AS.get(self, self)


_COMPLETED_AS = {
    Action.COMPACTION: Action.COMMIT,
    Action.LOG_COMPACTION: Action.DELTA_COMMIT,
    Action.CLUSTERING: Action.REPLACE_COMMIT,
}
REWRITES = tuple(_COMPLETED_AS)
WRITE_ACTIONS = frozenset({Action.COMMIT, Action.DELTA_COMMIT, Action.REPLACE_COMMIT})
_ACTIONS = {action.value: action for action in Action}
_COMPLETED_ACTIONS = frozenset(Action) - _COMPLETED_AS.keys()
_PENDING_STATES = {state.lower(): state for state in (State.REQUESTED, State.INFLIGHT)}
_ABORTED = State.ABORTED.lower()
_RANK = {state: rank for rank, state in enumerate(State)}

_NAME = re.compile(
    r"(?P<requested>\d+)(?:_(?P<completed>\d+))?\.(?P<action>[a-z]+)(?:\.(?P<state>[a-z]+))?"
)
_TIME = re.compile(r"\d{17}|\d{14}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """One action on the table.

    Invariants:
    - `completed_at` is set if and only if `state` is COMPLETED;
    - `action` is the one on the timeline in that state: `compaction` for a pending compaction, and
      `commit` for a completed one.
    """

    requested_at: InstantTime
    action: Action
    state: State = State.COMPLETED
    completed_at: InstantTime | None = None

    @property
    def is_completed(self) -> bool:
        """Whether the action has taken effect."""
        return self.state is State.COMPLETED

    @property
    def is_pending(self) -> bool:
        """Whether the action may still take effect."""
        return self.state in (State.REQUESTED, State.INFLIGHT)

    @property
    def is_write(self) -> bool:
        """Whether the action, once completed, changes the rows or data files of the table."""
        return self.completed_action in WRITE_ACTIONS

    @property
    def completed_action(self) -> Action:
        """The action of the completed instant; the same in all states."""
        return self.action.completed_as

    @property
    def file_name(self) -> str:
        """The name of the timeline file; the inverse of `parse_instant`."""
        if self.completed_at is not None:
            return f"{self.requested_at}_{self.completed_at}.{self.action}"
        # In the format, only the name of an inflight commit lacks the action.
        if self.state is State.INFLIGHT and self.action is Action.COMMIT:
            return f"{self.requested_at}.inflight"
        return f"{self.requested_at}.{self.action}.{self.state.lower()}"

    def __str__(self) -> str:
        return self.file_name


def parse_instant(file_name: str) -> Instant | None:
    """Parse a file name of timeline layout 2; return None for a name that all readers ignore."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    requested_at, completed_at, name, state = (
        match["requested"],
        match["completed"],
        match["action"],
        match["state"],
    )
    action = _ACTIONS.get(name)
    if completed_at is not None:
        is_valid = state is None and action in _COMPLETED_ACTIONS
        return (
            Instant(requested_at, action, completed_at=completed_at)
            if action and is_valid
            else None
        )
    if state is None:
        if name == "inflight":
            return Instant(requested_at, Action.COMMIT, State.INFLIGHT)
        if action in _COMPLETED_ACTIONS:
            raise UnsupportedError(
                "a completed instant without completion time comes from a table version before 8; "
                "upgrade the table with Hudi first",
                file_name=file_name,
            )
        return None
    if action is not None and action.is_rewrite and state == _ABORTED:
        return Instant(requested_at, action, State.ABORTED)
    pending = _PENDING_STATES.get(state)
    return (
        Instant(requested_at, action, pending)
        if pending is not None and action is not None
        else None
    )


def latest_states(instants: list[Instant]) -> list[Instant]:
    """Return one instant for each action, in its latest state, sorted by requested time.

    The files of pending states stay on storage after completion, so most actions have three files.
    """
    latest: dict[tuple[str, str], Instant] = {}
    for instant in instants:
        key = (instant.requested_at, instant.completed_action)
        other = latest.get(key)
        if other is None or _RANK[instant.state] > _RANK[other.state]:
            latest[key] = instant
    return sorted(latest.values(), key=lambda instant: (instant.requested_at, instant.action))


def is_time(text: str) -> bool:
    """Whether a text is an instant time: 17 digits, or 14 from old writers."""
    return _TIME.fullmatch(text) is not None


def full_time(text: str) -> str:
    """Return an instant time with milliseconds; 14 digits mean the end of that second."""
    return text + "999" if len(text) == 14 else text


def bound_of_range(text: str) -> str:
    """Return a bound of a range of completion times with milliseconds.

    Hudi compares bounds as text: 14 digits are before every completion time of their second. So
    such a begin includes the second, and such an end does not.
    """
    if len(text) != 14:
        return text
    try:
        return format_time(parse_time(text + "000") - timedelta(milliseconds=1))
    except (InvalidError, OverflowError):
        return text + "000"


def format_time(moment: datetime, zone: tzinfo = UTC) -> str:
    """Return a time-zone-aware point in time as 17 digits in the zone of the timeline."""
    if moment.tzinfo is None:
        raise InvalidError("a point in time needs a zone", time=moment.isoformat())
    try:
        local = moment.astimezone(zone)
    except OverflowError as error:
        raise InvalidError(
            "a point in time of the years 1 to 9999 expected", time=moment.isoformat()
        ) from error
    return f"{local.year:04d}{local:%m%d%H%M%S}{local.microsecond // 1000:03d}"


def parse_time(text: str, zone: tzinfo = UTC) -> datetime:
    """Return the point in time of an instant time in `zone`."""
    if not is_time(text):
        raise InvalidError("not an instant time: 17 (or 14) digits expected", time=text)
    try:
        second = datetime.strptime(text[:14], "%Y%m%d%H%M%S").replace(tzinfo=zone)
    except ValueError as error:
        raise InvalidError("no such date and time", time=text) from error
    return second + timedelta(milliseconds=int(full_time(text)[14:]))


def epoch_ms(text: str, zone: tzinfo = UTC) -> int:
    """Return the point in time of an instant time in `zone`, in milliseconds since 1970."""
    return moment_ms(parse_time(text, zone))


def moment_ms(moment: datetime) -> int:
    """Return a time-zone-aware point in time in milliseconds since 1970."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def latest_epoch_ms(text: str, zone: tzinfo = UTC) -> int:
    """Return the same as `epoch_ms`, of a local time that daylight saving repeats the second one.

    Clocks are set back by half an hour, an hour or two hours.
    """
    one = epoch_ms(text, zone)
    others = (one + minutes * 60_000 for minutes in (-120, -60, -30, 30, 60, 120))
    return max([one, *(time for time in others if _is_local_time(time, text, zone))])


def _is_local_time(time_ms: int, text: str, zone: tzinfo) -> bool:
    try:
        return format_time(_EPOCH + timedelta(milliseconds=time_ms), zone) == full_time(text)
    except (OverflowError, InvalidError):
        return False


def query_time(value: str | datetime, zone: tzinfo = UTC) -> str:
    """Parse a point in time as users write it, and return it as an instant time.

    Accepts an instant time of 17 or 14 digits, a date, or a date with time (ISO, with or without
    zone, separated by `T` or a blank). The default zone is that of the table.
    """
    if isinstance(value, datetime):
        return format_time(value if value.tzinfo else value.replace(tzinfo=zone), zone)
    text = value.strip()
    if is_time(text):
        return full_time(text)
    try:
        moment = datetime.fromisoformat(text) if not text.isdigit() else None
    except ValueError:
        moment = None
    if moment is None:
        raise InvalidError(
            "not a point in time: give an instant such as 20260131235959999, a date, "
            "or a date with time",
            value=value,
        )
    return query_time(moment, zone)
