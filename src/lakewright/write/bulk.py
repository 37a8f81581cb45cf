"""Bulk inserts: every task writes the rows it gets, whatever their partition, into new files."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lakewright.storage.base import at_once
from lakewright.write.groups import GroupWriter, RollingWriter
from lakewright.write.incoming import by_partition, without_deleted
from lakewright.write.partition import Partition

# Rows of many partitions may come in turn: what waits for its file is bounded for all together.
_MOST_WAITING_BYTES = 256 << 20


class BulkWriter:
    """Open files of one task, one for each partition that it has met.

    Files are small where partitions are many, and their time goes into waiting for storage: those
    of several partitions are made at once.
    """

    def __init__(self, groups: GroupWriter) -> None:
        self._groups = groups
        self._open: dict[str, RollingWriter] = {}

    def write(self, rows: pa.Table) -> None:
        """Add prepared rows of any partitions."""
        task = self._groups.task
        rows = without_deleted(rows, task)
        parts = dict(by_partition(rows)) if len(rows) else {}
        if task.settings.sort_mode.keeps_together:
            self._end([path for path in self._open if parts and path not in parts])
        new = [path for path in parts if path not in self._open]
        at_once(lambda path: Partition.look(task, path).enter(), new)
        self._open |= {path: RollingWriter(self._groups, path) for path in new}
        for path, part in parts.items():
            self._open[path].write(part)
        if sum(writer.waiting_bytes for writer in self._open.values()) > _MOST_WAITING_BYTES:
            max(self._open.values(), key=lambda writer: writer.waiting_bytes).flush()

    def close(self) -> None:
        """End all files."""
        self._end(list(self._open))

    def _end(self, paths: Sequence[str]) -> None:
        at_once(lambda path: self._open[path].close(), paths)
        for path in paths:
            del self._open[path]

    def abandon(self, error: BaseException) -> None:
        """Let the files in the making not appear."""
        for writer in self._open.values():
            writer.abandon(error)
