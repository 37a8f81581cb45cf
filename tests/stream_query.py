"""A streaming query without Spark: asks a source what Spark asks it, and keeps what Spark keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable
from written import Row

from lakewright.datasource.stream_source import HudiStreamReader, stream_schema
from lakewright.scan.options import stream_settings
from lakewright.storage.base import Storage


class End(Enum):
    """Where a run comes to its end."""

    OF_ITSELF = "when there is nothing new"
    PLANNED = "killed when the offset of a batch was kept, and nothing else"
    WRITTEN = "killed when a batch was written, and Spark has not noted it"


@dataclass
class Query:
    """A query whose checkpoint and sink outlive its runs.

    The sink knows batches by their numbers: one that is replayed replaces what it had.
    """

    storage: Storage
    options: Mapping[str, str] = field(default_factory=dict)
    schema: T.StructType | None = None
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def run(self, end: End = End.OF_ITSELF, *, now: bool = True, once: bool = False) -> Query:
        """Start, and read until there is nothing new: all that is there at the start, if `now`."""
        reader = self.started()
        initial = json.dumps(reader.initialOffset())
        if now:
            reader.prepareForTriggerAvailableNow()
        limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
        while True:
            start = self.offsets[self.committed - 1] if self.committed else initial
            if len(self.offsets) == self.committed:
                latest = json.dumps(reader.latestOffset(json.loads(start), limit))
                if latest == start:
                    return self
                self.offsets.append(latest)
            if end is End.PLANNED:
                return self
            self.batches[self.committed] = rows_between(reader, start, self.offsets[-1])
            if end is End.WRITTEN:
                return self
            self.committed += 1
            if once:
                return self

    def started(self) -> HudiStreamReader:
        """A reader as the start of a run makes it: with the columns that the table has then."""
        settings = stream_settings(self.options)
        columns = stream_schema({"path": self.storage.root, **self.options}, self.schema)
        return HudiStreamReader(self.storage, settings, columns)

    @property
    def handed_over(self) -> list[list[tuple[str, Any]]]:
        """The key and the note of all rows, batch by batch; batches without rows are left out."""
        found = [
            sorted((row["id"], row["note"]) for row in rows)
            for _, rows in sorted(self.batches.items())
        ]
        return [rows for rows in found if rows]


def rows_between(reader: HudiStreamReader, start: str, end: str) -> list[Row]:
    """The rows of a batch, task by task."""
    tasks = reader.partitions(json.loads(start), json.loads(end))
    return [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
