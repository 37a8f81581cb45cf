"""The demo as it is shown in a terminal: a story in, lines and tables out. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lakewright.demo.story import Bar, Story, moment
from lakewright.model.freshness import ViewFreshness

_COLOURS = {
    "deltacommit": "green",
    "commit": "cyan",
    "compaction": "cyan",
    "replacecommit": "magenta",
    "clustering": "magenta",
    "rollback": "red",
}
# Below these the board is a few lines of text: panels would not fit.
_NARROW, _LOW = 64, 24
_FRAME = 12


def board(story: Story, width: int, height: int) -> RenderableType:
    """All of the story that fits into a terminal of this size."""
    if width < _NARROW or height < _LOW:
        return Group(*(Text(line, overflow="ellipsis", no_wrap=True) for line in brief(story)))
    # Of what is left one half is for the timeline, the other for what services said.
    room = max(3, (height - _FRAME) // 2)
    return Group(
        Text(f"Rides: {story.path}", style="bold", overflow="ellipsis", no_wrap=True),
        _figures(story),
        _timeline(story.bars[-room:], width - 4),
        _said(story.said[-(height - _FRAME - room) :]),
        Text(story.doing or "done", style="bold yellow", overflow="ellipsis", no_wrap=True),
    )


def brief(story: Story) -> list[str]:
    """The story in four lines."""
    return [
        f"batch {len(story.rounds)} of {story.recipe.batches + 1}, {story.rows:,} events",
        f"fast view complete up to {moment(story.read_optimized.completion)}",
        f"{story.log_files} log files wait",
        story.doing or "done",
    ]


def draw_bars(bars: Sequence[Bar], width: int) -> list[str]:
    """Each instant as a bar from its request to its completion, on one scale.

    What is pending goes on to the end, and has an arrow there.

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
    table.add_row("snapshot", _view(story.snapshot))
    table.add_row("fast view", _view(story.read_optimized))
    table.add_row("debt", f"{story.log_files} log files, {story.log_bytes / 1024:,.0f} KiB")
    consumed = story.consumed
    table.add_row("change feed", f"{consumed.changes:,} changes of {consumed.commits} commits")
    return table


def _view(view: ViewFreshness) -> str:
    return f"complete up to {moment(view.completion)}, newest {moment(view.freshness)}"


def _timeline(bars: Sequence[Bar], width: int) -> Panel:
    name = max((len(bar.action) for bar in bars), default=0)
    lines = Text(no_wrap=True, overflow="crop")
    for bar, drawn in zip(bars, draw_bars(bars, max(10, width - name - 2)), strict=True):
        lines.append(f"{bar.action:<{name}} ")
        lines.append(f"{drawn}\n", style=_COLOURS.get(bar.action, "white"))
    lines.rstrip()
    return Panel(lines, title="timeline: from request to completion", title_align="left")


def _said(said: Sequence[str]) -> Text:
    return Text("\n".join(said), no_wrap=True, overflow="ellipsis")
