"""A bar that tells how many partitions are done: on stderr, and only where that is a terminal."""

from __future__ import annotations

from rich.progress import Progress

from lakewright.interfaces.cli.console import SafeConsole
from lakewright.interfaces.ttl import TableTtl


def update_with_bar(ttl: TableTtl) -> int:
    """Fill in when each partition was last written to; gives how many were behind."""
    with Progress(console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("partitions", total=None)
        return ttl.update_partitions(
            lambda done, total: bar.update(task, completed=done, total=total)
        )
