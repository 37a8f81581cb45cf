"""Timelines drawn as text, which document the tests that use them.

A line is an instant, a column is a tick: `|--|` was requested at its first bar and completed at its
last, `|--` is inflight, `|` is requested.
"""

from __future__ import annotations

from lakewright.model.instant import Action, Instant, State
from lakewright.model.timeline import Timeline

_YEAR = "2026"


def at(tick: int) -> str:
    """The instant time of a tick."""
    return f"{_YEAR}{tick:013d}"


def draw(picture: str) -> Timeline:
    """The timeline of a drawing; all lines start in the same column."""
    lines = [line for line in picture.splitlines() if line.strip()]
    actions = [line.split()[0] for line in lines]
    start = min(len(line) - len(line.lstrip()) for line in lines) + max(map(len, actions)) + 1
    drawn = zip(actions, lines, strict=True)
    return Timeline.from_instants(
        instant for action, line in drawn for instant in _instants(Action(action), line[start:])
    )


def _instants(action: Action, bars: str) -> list[Instant]:
    """The instants of a line: a completed plan keeps its requested instant next to the commit."""
    ticks = [tick for tick, character in enumerate(bars) if character == "|"]
    if not 1 <= len(ticks) <= 2:
        raise ValueError(f"one or two bars expected: {bars!r}")
    if len(ticks) == 2:
        completed_as = action.completed_as
        completed = Instant(at(ticks[0]), completed_as, completed_at=at(ticks[1]))
        plan = [Instant(at(ticks[0]), action, State.REQUESTED)] if completed_as != action else []
        return [*plan, completed]
    state = State.INFLIGHT if "-" in bars else State.REQUESTED
    return [Instant(at(ticks[0]), action, state)]
