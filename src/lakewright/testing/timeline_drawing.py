"""Timelines drawn as text: the drawing is the test's documentation.

A line is an action, a column is a tick: `|--|` began at its first bar and completed at its last,
`|--` is inflight, `|` is requested.
"""

from __future__ import annotations

from lakewright.model.instant import Action, Instant, State
from lakewright.model.timeline import Timeline

_YEAR = "2026"


def at(tick: int) -> str:
    """The instant time of a tick."""
    return f"{_YEAR}{tick:013d}"


def draw(picture: str) -> Timeline:
    """The timeline of a drawing; all lines begin in the same column."""
    lines = [line for line in picture.splitlines() if line.strip()]
    words = [line.split()[0] for line in lines]
    start = min(len(line) - len(line.lstrip()) for line in lines) + max(map(len, words)) + 1
    drawn = zip(words, lines, strict=True)
    return Timeline.of(
        instant for word, line in drawn for instant in _files(Action(word), line[start:])
    )


def _files(action: Action, bars: str) -> list[Instant]:
    """The timeline files of a line; of a plan that was executed its request stays."""
    ticks = [tick for tick, mark in enumerate(bars) if mark == "|"]
    if not 1 <= len(ticks) <= 2:
        raise ValueError(f"one or two bars expected: {bars!r}")
    if len(ticks) == 2:
        done = action.completed_as
        completed = Instant(at(ticks[0]), done, completed_at=at(ticks[1]))
        request = [Instant(at(ticks[0]), action, State.REQUESTED)] if done != action else []
        return [*request, completed]
    state = State.INFLIGHT if "-" in bars else State.REQUESTED
    return [Instant(at(ticks[0]), action, state)]
