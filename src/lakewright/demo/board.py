"""The progress of the demo in the terminal: a live board, or plain lines if it is no terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import lakewright as lw
from lakewright.demo.scenario import Report
from lakewright.demo.story import Bar, Story, bars, event_time_text
from lakewright.model.freshness import ViewFreshness
from lakewright.model.instant import Action

_COLOURS: dict[str, str] = {
    Action.DELTA_COMMIT: "green",
    Action.COMMIT: "cyan",
    Action.COMPACTION: "cyan",
    Action.REPLACE_COMMIT: "magenta",
    Action.CLUSTERING: "magenta",
    Action.ROLLBACK: "red",
}
# In a smaller terminal the board is a few lines of text: the panels would not fit.
_MIN_WIDTH, _MIN_HEIGHT = 64, 24
_FIXED_LINES = 12


def board(story: Story, width: int, height: int) -> RenderableType:
    """The part of the story that fits into a terminal of this size."""
    if width < _MIN_WIDTH or height < _MIN_HEIGHT:
        return Group(*(Text(line, overflow="ellipsis", no_wrap=True) for line in brief(story)))
    # The timeline and the messages share the lines that the rest of the board does not need.
    timeline_lines = max(3, (height - _FIXED_LINES) // 2)
    return Group(
        Text(f"Rides: {story.path}", style="bold", overflow="ellipsis", no_wrap=True),
        _figures(story),
        _timeline(story.bars[-timeline_lines:], width - 4),
        _messages(story.messages[-(height - _FIXED_LINES - timeline_lines) :]),
        Text(story.doing or "done", style="bold yellow", overflow="ellipsis", no_wrap=True),
    )


def brief(story: Story) -> list[str]:
    """The story in four lines."""
    return [
        f"batch {len(story.rounds)} of {story.recipe.batches + 1}, {story.rows:,} events",
        f"fast view complete up to {event_time_text(story.complete_until(story.read_optimized))}",
        f"{story.log_files} uncompacted log files",
        story.doing or "done",
    ]


def draw_bars(bars: Sequence[Bar], width: int) -> list[str]:
    """Draw each instant as a bar from its requested time to its completion time, on one scale.

    The bar of a pending instant extends to the end and has an arrow there.

    >>> draw_bars([Bar("deltacommit", 0, 40), Bar("clustering", 50, None), Bar("clean", 60, 80)], 8)
    ['####', '     ##>', '      ##']
    """
    if not bars:
        return []
    first = min(bar.begin for bar in bars)
    last = max(first + 1, *(bar.begin if bar.end is None else bar.end for bar in bars))
    scale = width / (last - first)
    lines = []
    for bar in bars:
        begin = min(int((bar.begin - first) * scale), width - 1)
        end = width - 1 if bar.end is None else int((bar.end - first) * scale)
        drawn = "#" * max(1 if bar.end is not None else 0, end - begin)
        lines.append(" " * begin + drawn + (">" if bar.end is None else ""))
    return lines


def _figures(story: Story) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("batches", f"{len(story.rounds)} of {story.recipe.batches + 1}")
    last = f", the last in {story.rounds[-1].took_s:.1f} s" if story.rounds else ""
    table.add_row("events", f"{story.rows:,}{last}")
    table.add_row("snapshot", _view(story, story.snapshot))
    table.add_row("fast view", _view(story, story.read_optimized))
    table.add_row("debt", f"{story.log_files} log files, {story.log_bytes / 1024:,.0f} KiB")
    consumed = story.consumed
    table.add_row("change feed", f"{consumed.changes:,} changes of {consumed.commits} commits")
    return table


def _view(story: Story, view: ViewFreshness) -> str:
    completion = event_time_text(story.complete_until(view))
    by = story.definition.replace("_", " ")
    return f"complete up to {completion} ({by}), newest {event_time_text(view.freshness)}"


def _timeline(bars: Sequence[Bar], width: int) -> Panel:
    name_width = max((len(bar.action) for bar in bars), default=0)
    lines = Text(no_wrap=True, overflow="crop")
    for bar, drawn in zip(bars, draw_bars(bars, max(10, width - name_width - 2)), strict=True):
        lines.append(f"{bar.action:<{name_width}} ")
        lines.append(f"{drawn}\n", style=_COLOURS.get(bar.action, "white"))
    lines.rstrip()
    return Panel(lines, title="timeline: from request to completion", title_align="left")


def _messages(messages: Sequence[str]) -> Text:
    return Text("\n".join(messages), no_wrap=True, overflow="ellipsis")


@contextmanager
def watching(console: Console, *, quiet: bool = False) -> Iterator[Report]:
    """Yield a function that shows a story: on a live board, as lines, or not at all if quiet."""
    if quiet:
        yield _ignore
    elif console.is_terminal:
        live = _LiveBoard(console)
        with Live(live, console=console, refresh_per_second=2, vertical_overflow="crop"):
            yield live.show
    else:
        yield _LinePrinter(console).show


class _LiveBoard:
    """Shows the newest story at the current size of the terminal.

    Every refresh reads the timeline again, to show instants while they are pending.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._story: Story | None = None

    def show(self, story: Story) -> None:
        self._story = story

    def __rich__(self) -> RenderableType:
        if self._story is None:
            return ""
        current = replace(self._story, bars=bars(lw.open(self._story.path).timeline()))
        return board(current, self._console.width, self._console.height)


class _LinePrinter:
    """Prints the messages of a story that it has not printed yet."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0

    def show(self, story: Story) -> None:
        for line in story.messages[self._printed :]:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._printed = len(story.messages)


def _ignore(story: Story) -> None:
    """Show nothing."""
