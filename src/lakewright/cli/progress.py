"""Progress bars on stderr, if it is a terminal.

Spark returns results only when a job has finished. Until then the progress of a write is read from
storage: markers name the files that it has started, and a file that exists is complete.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from lakewright.cli.output import size_text
from lakewright.errors import LakewrightError
from lakewright.model.instant import WRITE_ACTIONS
from lakewright.storage.base import Storage
from lakewright.table.markers import write_progress
from lakewright.table.snapshot import load_snapshot
from lakewright.utils.terminal import SafeConsole

_POLL_S = 1.0


class _SizeColumn(ProgressColumn):
    """Bytes done of bytes planned."""

    def render(self, task: Task) -> Text:
        completed = size_text(int(task.completed))
        return Text(
            completed if task.total is None else f"{completed} of {size_text(int(task.total))}"
        )


@dataclass
class ProgressBar:
    """A progress bar; without `progress` it shows nothing."""

    progress: Progress | None = None
    task: int = 0
    rows: int = 0

    def advance(self, size: int) -> None:
        """Add a number of processed bytes."""
        if self.progress is not None:
            self.progress.advance(self.task, size)  # type: ignore[arg-type]

    def add_rows(self, count: int) -> None:
        """Add a number of processed rows."""
        self.rows += count
        self.update(f"{self.rows} rows")

    def update(self, text: str, *, completed: float | None = None) -> None:
        """Show a text beside the bar; `completed` is its new position."""
        if self.progress is not None:
            self.progress.update(self.task, note=text, completed=completed)  # type: ignore[arg-type]


@contextmanager
def byte_bar(title: str, total: int) -> Iterator[ProgressBar]:
    """A bar of bytes, with rows and the remaining time."""
    with _bar(title, total, _SizeColumn(), TimeRemainingColumn()) as bar:
        yield bar


@contextmanager
def waiting(title: str, planned: int, work: Callable[[], str] = str) -> Iterator[None]:
    """Show the elapsed time, the planned size and the progress of Spark, which `work` returns."""
    with _bar(title, None, TimeElapsedColumn()) as bar:
        size = f"{size_text(planned)} planned"
        bar.update(size)
        if bar.progress is None:
            yield
            return
        with _polling(lambda: bar.update(_joined(size, work())), "progress"):
            yield


@contextmanager
def watching(storage: Storage, instant: str, items: int, planned: int) -> Iterator[None]:
    """Show the files that an execution has written so far, of `items` planned operations."""
    with _bar("writing", items, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        if bar.progress is None:
            yield
            return

        def update() -> None:
            written = write_progress(storage, instant)
            text = f"{written.finished} files written, {size_text(written.bytes)}"
            more = f"; {size_text(planned)} to read in {items} pieces"
            bar.update(text + more, completed=min(written.finished, items))

        with _polling(update, f"progress {instant}"):
            yield


@contextmanager
def following(
    storage: Storage, report: Callable[[str], None], work: Callable[[], str] = str
) -> Iterator[None]:
    """Report the progress of the pending writes of a table to `report`, periodically.

    `work` returns the progress of Spark.
    """

    def update() -> None:
        pending = load_snapshot(storage).timeline.pending(*WRITE_ACTIONS)
        writes = [(i.requested_at, write_progress(storage, i.requested_at)) for i in pending]
        texts = [
            f"{at}: {written.finished} files, {size_text(written.bytes)}"
            for at, written in writes
            if written.begun
        ]
        phase = "writing " + "; ".join(texts) if texts else "reading"
        report(_joined(phase, work()))

    with _polling(update, "progress"):
        yield


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))


@contextmanager
def _polling(update: Callable[[], None], name: str) -> Iterator[None]:
    """Call `update` periodically in a thread until the end of the block; errors are ignored."""
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(_POLL_S):
            with suppress(LakewrightError):
                update()

    thread = threading.Thread(target=poll, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@contextmanager
def _bar(title: str, total: int | None, *columns: ProgressColumn) -> Iterator[ProgressBar]:
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield ProgressBar()
        return
    note = TextColumn("{task.fields[note]}", markup=False)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        note,
        *columns,
        console=console,
        transient=True,
    ) as progress:
        yield ProgressBar(progress, progress.add_task(title, total=total, note=""))
