"""Bulk inserts: every task writes the rows it gets, whatever their partition, into new files."""

from __future__ import annotations

import pyarrow as pa

from lakewright.write.groups import GroupWriter, RollingWriter
from lakewright.write.incoming import by_partition, without_deleted
from lakewright.write.partition import Partition

# Rows of many partitions may come in turn: what waits for its file is bounded for all together.
_MOST_WAITING_BYTES = 256 << 20


class BulkWriter:
    """Open files of one task, one for each partition that it has met."""

    def __init__(self, groups: GroupWriter) -> None:
        self._groups = groups
        self._open: dict[str, RollingWriter] = {}

    def write(self, rows: pa.Table) -> None:
        """Add prepared rows of any partitions."""
        task = self._groups.task
        rows = without_deleted(rows, task)
        for path, part in by_partition(rows) if len(rows) else ():
            writer = self._open.get(path)
            if writer is None:
                Partition.look(task, path).enter()
                writer = self._open[path] = RollingWriter(self._groups, path)
            writer.write(part)
        if sum(writer.waiting_bytes for writer in self._open.values()) > _MOST_WAITING_BYTES:
            max(self._open.values(), key=lambda writer: writer.waiting_bytes).flush()

    def close(self) -> None:
        """End all files."""
        for writer in self._open.values():
            writer.close()

    def abandon(self, error: BaseException) -> None:
        """Let the files in the making not appear."""
        for writer in self._open.values():
            writer.abandon(error)
