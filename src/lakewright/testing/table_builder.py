"""Small tables built directly in the storage format: commits of given rows in given files.

For tests and benchmarks that need a table of a certain shape. It is not safe with a concurrent
writer, and writes rows without merging, indexing or checks.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.format.avro.schema import avro_schema
from lakewright.format.partition_metadata import PartitionMetadata, format_partition_metadata
from lakewright.format.table_properties import format_properties, with_table_checksum
from lakewright.format.timeline_metadata import format_commit
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import PARTITION_METADATA, BaseFile, LogFile
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.schema import META_FIELDS
from lakewright.storage.base import Storage, join_path

_PROPERTIES = {
    "hoodie.table.version": "9",
    "hoodie.table.initial.version": "9",
    "hoodie.timeline.layout.version": "2",
    "hoodie.timeline.path": "timeline",
    "hoodie.timeline.history.path": "history",
    "hoodie.table.base.file.format": "PARQUET",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.table.keygenerator.type": "SIMPLE",
    "hoodie.record.merge.mode": "EVENT_TIME_ORDERING",
}


@dataclass
class TableBuilder:
    """A table under construction; `key`, `partition_by` and `ordering` are column names."""

    storage: Storage
    schema: pa.Schema
    key: str = "id"
    partition_by: str | None = "day"
    ordering: str | None = "ts"
    table_type: str = "MERGE_ON_READ"
    name: str = "built"
    properties: Mapping[str, str] = field(default_factory=dict)
    _clock: int = 20260101000000000

    def create(self) -> TableBuilder:
        """Write the table's properties."""
        values = {
            **_PROPERTIES,
            "hoodie.table.name": self.name,
            "hoodie.table.type": self.table_type,
            "hoodie.table.recordkey.fields": self.key,
            **({"hoodie.table.partition.fields": self.partition_by} if self.partition_by else {}),
            **({"hoodie.table.ordering.fields": self.ordering} if self.ordering else {}),
            **self.properties,
        }
        data = format_properties(with_table_checksum(values), ["made by hand"])
        self.storage.create(".hoodie/hoodie.properties", data)
        return self

    def tick(self) -> str:
        """The next instant time of the table."""
        self._clock += 1
        return str(self._clock)

    def commit(
        self,
        bases: Mapping[tuple[str, str], pa.Table] | None = None,
        logs: Mapping[tuple[str, str], bytes] | None = None,
        *,
        instant: InstantTime | None = None,
        action: Action = Action.DELTA_COMMIT,
        operation: str = "UPSERT",
    ) -> Instant:
        """Write base files and log files, each by (partition, file id), and complete the commit."""
        at = instant or self.tick()
        stats: dict[str, list[WriteStat]] = {}
        for (partition, file_id), rows in (bases or {}).items():
            file = BaseFile(file_id, "0-0-0", at)
            data = self._base_bytes(rows, partition, file)
            self._write_file(stats, partition, file, data, len(rows), at)
        for (partition, file_id), data in (logs or {}).items():
            self._write_file(stats, partition, LogFile(file_id, at, 1, "0-0-0"), data, 1, at)
        metadata = CommitMetadata(
            stats={partition: tuple(items) for partition, items in stats.items()},
            operation=operation,
            extra={"schema": self.avro_schema},
        )
        completed = Instant(at, action, completed_at=self.tick())
        self.storage.create(f".hoodie/timeline/{completed.file_name}", format_commit(metadata))
        return completed

    @property
    def avro_schema(self) -> str:
        """The schema of the table as commits record it."""
        return avro_schema(self.schema, f"{self.name}_record", f"hoodie.{self.name}")

    def with_meta(self, rows: pa.Table, partition: str, file_name: str, at: str) -> pa.Table:
        """Rows with the five meta columns in front."""
        count = len(rows)
        constants = [at, None, None, partition, file_name]
        columns = [pa.array([value] * count, pa.string()) for value in constants]
        columns[1] = pa.array([f"{at}_0_{number}" for number in range(count)], pa.string())
        columns[2] = pc.cast(rows.column(self.key), pa.string()).combine_chunks()
        return pa.table([*columns, *rows.columns], schema=pa.schema([*META_FIELDS, *rows.schema]))

    def _base_bytes(self, rows: pa.Table, partition: str, file: BaseFile) -> bytes:
        sink = io.BytesIO()
        table = self.with_meta(rows, partition, file.name, file.instant)
        pq.write_table(table, sink, compression="zstd", compression_level=1)
        return sink.getvalue()

    def _write_file(
        self,
        stats: dict[str, list[WriteStat]],
        partition: str,
        file: BaseFile | LogFile,
        data: bytes,
        count: int,
        at: str,
    ) -> None:
        path = join_path(partition, file.name)
        self.storage.create(path, data)
        metadata_path = join_path(partition, PARTITION_METADATA)
        if partition not in stats and not self.storage.exists(metadata_path):
            depth = partition.count("/") + 1 if partition else 0
            metadata = PartitionMetadata(commit_time=at, depth=depth)
            self.storage.create(metadata_path, format_partition_metadata(metadata))
        stat = WriteStat(
            file_id=file.file_id,
            path=path,
            partition_path=partition,
            num_writes=count,
            file_size_in_bytes=len(data),
        )
        stats.setdefault(partition, []).append(stat)
