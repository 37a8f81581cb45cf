"""How far long work has come: on stderr, and only where that is a terminal.

Spark hands results over when a job ends. What is known before that is what lies on storage: markers
tell which files a write has begun, and a file that is there is whole.
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
        done = size_text(int(task.completed))
        return Text(done if task.total is None else f"{done} of {size_text(int(task.total))}")


@dataclass
class ProgressBar:
    """A bar that may not be there."""

    progress: Progress | None = None
    task: int = 0
    rows: int = 0

    def advance(self, size: int) -> None:
        """So many bytes more are done."""
        if self.progress is not None:
            self.progress.advance(self.task, size)  # type: ignore[arg-type]

    def add_rows(self, count: int) -> None:
        """So many rows more are done."""
        self.rows += count
        self.tell(f"{self.rows} rows")

    def tell(self, text: str, *, done: float | None = None) -> None:
        """Put a text beside the bar; `done` is how far it has come."""
        if self.progress is not None:
            self.progress.update(self.task, told=text, completed=done)  # type: ignore[arg-type]


@contextmanager
def byte_bar(title: str, total: int) -> Iterator[ProgressBar]:
    """A bar of bytes, with rows and the time that is left."""
    with _shown(title, total, _SizeColumn(), TimeRemainingColumn()) as bar:
        yield bar


@contextmanager
def waiting(title: str, planned: int, work: Callable[[], str] = str) -> Iterator[None]:
    """Time that passes while Spark works on something of a planned size; `work` tells how far."""
    with _shown(title, None, TimeElapsedColumn()) as bar:
        size = f"{size_text(planned)} planned"
        bar.tell(size)
        if bar.progress is None:
            yield
            return
        with _repeated(lambda: bar.tell(_together(size, work())), "progress"):
            yield


@contextmanager
def watching(storage: Storage, instant: str, items: int, planned: int) -> Iterator[None]:
    """Files that an execution has written so far, of as many pieces of work as were planned."""
    with _shown("writing", items, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        if bar.progress is None:
            yield
            return

        def look() -> None:
            found = write_progress(storage, instant)
            text = f"{found.finished} files written, {size_text(found.bytes)}"
            more = f"; {size_text(planned)} to read in {items} pieces"
            bar.tell(text + more, done=min(found.finished, items))

        with _repeated(look, f"progress {instant}"):
            yield


@contextmanager
def following(
    storage: Storage, tell: Callable[[str], None], work: Callable[[], str] = str
) -> Iterator[None]:
    """Tell now and then how far the writes have come that are pending on a table.

    `work` tells how far Spark is with whatever it does now.
    """

    def look() -> None:
        pending = load_snapshot(storage).timeline.pending(*WRITE_ACTIONS)
        found = [(i.requested_at, write_progress(storage, i.requested_at)) for i in pending]
        told = [f"{at}: {so.finished} files, {size_text(so.bytes)}" for at, so in found if so.begun]
        doing = "writing " + "; ".join(told) if told else "reading"
        tell(_together(doing, work()))

    with _repeated(look, "progress"):
        yield


def _together(*texts: str) -> str:
    return "; ".join(filter(None, texts))


@contextmanager
def _repeated(look: Callable[[], None], name: str) -> Iterator[None]:
    """Look again and again while a block runs; a look that fails is not worth a failure."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(_POLL_S):
            with suppress(LakewrightError):
                look()

    thread = threading.Thread(target=go_on, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _shown(title: str, total: int | None, *columns: ProgressColumn) -> Iterator[ProgressBar]:
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield ProgressBar()
        return
    told = TextColumn("{task.fields[told]}", markup=False)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        told,
        *columns,
        console=console,
        transient=True,
    ) as progress:
        yield ProgressBar(progress, progress.add_task(title, total=total, told=""))
