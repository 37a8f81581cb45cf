"""Writes file groups: new groups, the next base file of a group, and log files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import ConflictError, LakewrightError
from lakewright.format.delete_block import DeleteRecords
from lakewright.model.commit_metadata import WriteStat
from lakewright.model.event_time import count_until, event_range
from lakewright.model.file_group import BaseFile, FileSlice, are_bucket_file_ids
from lakewright.model.merge import MergedLogRecords, RowChangeCallback
from lakewright.model.schema import COMMIT_TIME
from lakewright.scan.slice_reader import base_rows
from lakewright.storage.base import join_path
from lakewright.table.markers import MarkerKind, spill_folder
from lakewright.utils.arrow_rows import split_by_size
from lakewright.utils.concurrent import ahead
from lakewright.write.base_file_writer import BaseFileWriter, WrittenBaseFile, abort_on_failure
from lakewright.write.cdc_writer import CdcLogWriter, require_base
from lakewright.write.index import PartitionState
from lakewright.write.log_file_writer import WrittenLogFile, write_logs
from lakewright.write.spill import encode_changes, spill_rows
from lakewright.write.task import (
    DeferredFileGroup,
    DeferredPartition,
    DeferredWork,
    WriteStatus,
    WriteTask,
    WriteToken,
)

# What Hudi's writers record as the previous commit of the first base file of a file group.
_NO_PREVIOUS_COMMIT = "null"
_SHARED_FILE_ID = "{bucket:08d}-0000-0000-0000-{generation:012d}-0"


class FileGroupWriter:
    """Writes file groups for one task, and collects the write stats.

    Threads may share it, each of which writes partitions or file groups of its own.
    """

    def __init__(self, task: WriteTask, token: WriteToken) -> None:
        self.task = task
        self.token = token
        self.stats: list[WriteStat] = []
        self.works: list[DeferredWork] = []
        self._spill_numbers = count()
        self.notes: Counter[str] = Counter()
        self.late_rows: Counter[str] = Counter()
        self.partitions: list[str] = []
        self.too_large: list[str] = []
        self.shares_partitions = False
        self._has_spilled = False

    def status(
        self,
        replaced: Mapping[str, tuple[str, ...]] | None = None,
        error: LakewrightError | None = None,
    ) -> WriteStatus:
        """Return what the task has done so far."""
        return WriteStatus(
            tuple(self.stats),
            replaced or {},
            error,
            tuple(self.works),
            dict(self.notes),
            dict(self.late_rows),
            tuple(self.partitions),
            tuple(self.too_large),
            self._has_spilled,
        )

    def claim(self, partition: PartitionState, item: FileSlice) -> bool:
        """Whether this task attempt may write the next base file of a small file group.

        If several tasks have rows of the partition, the first one to create a file decides. An
        attempt that claims a group and dies leaves it as it is: others write new file groups.
        """
        if not self.shares_partitions:
            return True
        self._has_spilled = True
        group = join_path(partition.path, item.file_id)
        path = f"{spill_folder(self.task.instant)}/claims/{group}"
        try:
            self.task.storage.unsynced().create(path, str(self.token).encode())
        except ConflictError:
            return False
        return True

    def defer(self, partition: PartitionState, tables: Iterable[pa.Table]) -> None:
        """Spill the rows of a partition, for another task to write."""
        self.works.append(
            DeferredPartition(partition.path, self._spill(tables), partition.read_bytes)
        )

    def defer_group(
        self, partition: PartitionState, item: FileSlice, changes: MergedLogRecords, *, inserts: int
    ) -> None:
        """Spill the changes of a file group, for another task to write its next base file."""
        assert item.base is not None
        path = self._spill([encode_changes(changes)])
        self.works.append(DeferredFileGroup(partition.path, item, path, inserts, item.base.size))

    def _spill(self, tables: Iterable[pa.Table]) -> str:
        return spill_rows(self.task, self.token, next(self._spill_numbers), tables)

    def new_file_id(self) -> str:
        """Return the id of a new file group; never one that looks like a bucket's."""
        while are_bucket_file_ids([file_id := f"{self.task.clock.new_id()}-0"]):
            continue
        return file_id

    def bucket_file_id(self, partition: PartitionState, bucket: int) -> str:
        """Return the id of the new file group of a bucket.

        Writers with non-blocking concurrency must choose the same id, but never that of a replaced
        file group, because its rows would not be visible.
        """
        if self.task.non_blocking and not self.task.operation.replaces:
            return _SHARED_FILE_ID.format(
                bucket=bucket, generation=partition.replaced_buckets(bucket)
            )
        return f"{bucket:08d}{self.new_file_id()[8:]}"

    def write_new_groups(
        self, partition: PartitionState, tables: Iterable[pa.Table], file_id: str | None = None
    ) -> None:
        """Write rows to new file groups of the configured size, or to one with this id."""
        partition.ensure_metadata()
        with abort_on_failure(RollingWriter(self, partition.path, file_id)) as rolling:
            for rows in tables:
                for piece in split_by_size(rows, self.task.settings.max_file_size):
                    rolling.write(piece)
            rolling.close()

    def open_base(
        self,
        partition: str,
        file_id: str,
        kind: MarkerKind = MarkerKind.CREATE,
        pool: Executor | None = None,
    ) -> BaseFileWriter:
        """Return a writer for the task's base file of a file group."""
        file = BaseFile(file_id, str(self.token), self.task.instant)
        return BaseFileWriter(self.task, partition, file, kind, pool)

    def add_new_group_stat(
        self, partition: str, written: WrittenBaseFile, new: pa.Table | None
    ) -> None:
        """Add the write stat of the base file of a new group; `new` has its event times."""
        self._add_stat(
            partition,
            written,
            prev_commit=_NO_PREVIOUS_COMMIT,
            num_update_writes=0,
            num_inserts=written.rows,
            num_deletes=0,
            **self._event_times(partition, new),
        )

    def merge_base(
        self,
        partition: str,
        item: FileSlice,
        merge: Callable[[Iterator[pa.Table], RowChangeCallback | None], Iterable[pa.Table]],
        *,
        inserts: int,
    ) -> None:
        """Write the next base file of a group: `merge` makes its rows from those of the last one.

        If the table logs changes, `merge` gets a callback, and calls it with the rows that change.
        """
        assert item.base is not None
        base_count = 0
        cdc_log = CdcLogWriter.for_task(self.task)

        def old_rows() -> Iterator[pa.Table]:
            nonlocal base_count
            for table in ahead(base_rows(self.task.storage, item, self.task.stored_schema)):
                base_count += len(table)
                yield table

        written_by_task, event_times = 0, []
        with (
            ThreadPoolExecutor(1, "encode") as pool,
            abort_on_failure(
                self.open_base(partition, item.file_id, MarkerKind.MERGE, pool)
            ) as writer,
        ):
            for table in merge(old_rows(), None if cdc_log is None else cdc_log.add):
                mask = pc.equal(table.column(COMMIT_TIME), self.task.instant)
                count = int(pc.sum(mask).as_py() or 0)
                if count and self.task.event_time is not None:
                    event_times.append(table.select([self.task.event_time]).filter(mask))
                written_by_task += count
                writer.write(table)
            written = writer.close()
        self._add_stat(
            partition,
            written,
            prev_commit=item.base.instant,
            prev_base_file=item.base.name,
            num_update_writes=written_by_task - inserts,
            num_inserts=inserts,
            num_deletes=base_count + inserts - written.rows,
            cdc_stats=None
            if cdc_log is None
            else cdc_log.write(partition, item.file_id, str(self.token)),
            **self._event_times(partition, pa.concat_tables(event_times) if event_times else None),
        )

    def write_compacted(
        self, item: FileSlice, rows: Iterable[pa.Table], facts: Callable[[], Mapping[str, Any]]
    ) -> None:
        """Write the next base file of a group from rows that are already merged, of all commits.

        `facts` is called once all rows were read. The event times are those of all rows in the
        file, not only those that a commit added.
        """
        event_times: list[pa.Table] = []
        kind = MarkerKind.MERGE if item.base is not None else MarkerKind.CREATE
        with (
            ThreadPoolExecutor(1, "encode") as pool,
            abort_on_failure(self.open_base(item.partition, item.file_id, kind, pool)) as writer,
        ):
            for table in rows:
                if self.task.event_time is not None:
                    event_times.append(table.select([self.task.event_time]))
                writer.write(table)
            written = writer.close()
        stats = {
            "prev_commit": item.base.instant if item.base else _NO_PREVIOUS_COMMIT,
            "prev_base_file": item.base.name if item.base else None,
            **self._event_times(
                item.partition, pa.concat_tables(event_times) if event_times else None
            ),
        }
        self._add_stat(item.partition, written, **stats, **facts())

    def append_logs(
        self,
        partition: PartitionState,
        file_id: str,
        rows: pa.Table,
        deletes: DeleteRecords | None,
        *,
        inserts: int = 0,
        deleted_rows: pa.Table | None = None,
        item: FileSlice | None = None,
    ) -> None:
        """Write changes as log files of a group.

        `deleted_rows` are rows with a delete column that marks them as deleted; `item` is the
        group's current file slice, if it has one.
        """
        if self.task.logging is not None:
            require_base(partition.path, file_id, item)
        partition.ensure_metadata()
        path = partition.path
        log_names = [log.name for log in item.logs] if item is not None else []
        for log in write_logs(self.task, path, file_id, str(self.token), rows, deletes):
            changed = [
                part for part in (log.written, deleted_rows if log.deletes else None) if part
            ]
            changed_rows = pa.concat_tables(changed) if changed else None
            log_names.append(log.file.name)
            self._add_log_stat(
                path, log, changed_rows, inserts=inserts, **self._compared_files(item, log_names)
            )

    def _compared_files(self, item: FileSlice | None, logs: Sequence[str]) -> dict[str, Any]:
        """Return the files that CDC readers compare a log file with, if changes are logged."""
        if self.task.logging is None or item is None or item.base is None:
            return {}
        return {
            "prev_commit": item.base_instant,
            "base_file": item.base.name,
            "log_files": tuple(logs),
        }

    def rewrite_logs(
        self,
        item: FileSlice,
        rows: pa.Table,
        deletes: DeleteRecords,
        *,
        compacted: Sequence[str] = (),
        deleted_from: int | None = None,
    ) -> None:
        """Write log files of a group that replace those of the instants in `compacted`.

        `deleted_from` is the least event time of deletes that are not in a base file yet.
        """
        for log in write_logs(
            self.task,
            item.partition,
            item.file_id,
            str(self.token),
            rows,
            deletes,
            compacted=compacted,
        ):
            least_written = self._event_times(item.partition, log.written).get("min_event_time")
            least_times = [
                time
                for time in (least_written, deleted_from if log.deletes else None)
                if time is not None
            ]
            event_times = {"min_event_time": min(least_times)} if least_times else {}
            self._add_log_stat(item.partition, log, log.written, **event_times)

    def _add_log_stat(
        self,
        partition: str,
        log: WrittenLogFile,
        changed_rows: pa.Table | None,
        *,
        inserts: int = 0,
        **overrides: Any,
    ) -> None:
        stats = {
            "prev_commit": self.task.instant,
            "num_deletes": log.deletes,
            "num_update_writes": max(0, log.rows - inserts),
            "num_inserts": min(inserts, log.rows),
            "log_version": log.file.version,
            "log_offset": 0,
            "base_file": "",
            "log_files": (log.file.name,),
            **self._event_times(partition, changed_rows),
        }
        self._add_stat(partition, log, **{**stats, **overrides})

    def _add_stat(
        self, partition: str, written: WrittenBaseFile | WrittenLogFile, **stats: Any
    ) -> None:
        values: dict[str, Any] = {**_COUNTERS, **stats}
        stat = WriteStat(
            file_id=written.file.file_id,
            path=join_path(partition, written.file.name),
            partition_path=partition,
            num_writes=written.rows,
            total_write_bytes=written.size,
            file_size_in_bytes=written.size,
            **values,
        )
        self.stats.append(stat)

    def _event_times(self, partition: str, rows: pa.Table | None) -> dict[str, int | None]:
        """Return the least and the greatest event time of written rows; count the late ones."""
        name, late_until = self.task.event_time, self.task.late_until
        if name is None or rows is None or not len(rows):
            return {}
        least, greatest = event_range(rows.column(name), name)
        if late_until is not None and least is not None and least <= late_until:
            self.late_rows[partition] += count_until(rows.column(name), name, late_until)
        return {"min_event_time": least, "max_event_time": greatest}


# Hudi's readers expect numbers here, even if nothing was counted.
_COUNTERS = dict.fromkeys(
    (
        "total_write_errors",
        "total_log_records",
        "total_updated_records_compacted",
        "total_log_blocks",
        "total_corrupt_log_block",
        "total_rollback_blocks",
        "total_log_files_compacted",
        "total_log_read_time_ms",
        "total_log_size_compacted",
        "num_updates",
    ),
    0,
)


class RollingWriter:
    """Writes base files of new file groups; starts the next one when a file is full."""

    def __init__(self, groups: FileGroupWriter, partition: str, file_id: str | None = None) -> None:
        self._groups = groups
        self._partition = partition
        self._file_id = file_id
        self._writer: BaseFileWriter | None = None
        self._event_time_rows: list[pa.Table] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows of the partition."""
        task = self._groups.task
        if self._writer is None:
            file_id = self._file_id or self._groups.new_file_id()
            self._writer = self._groups.open_base(self._partition, file_id)
        self._writer.write(rows)
        if task.event_time is not None:
            self._event_time_rows.append(rows.select([task.event_time]))
        if self._file_id is None and self._writer.size >= task.settings.max_file_size:
            self.close()

    @property
    def waiting_bytes(self) -> int:
        """Memory used by rows that are not written yet."""
        return self._writer.waiting_bytes if self._writer is not None else 0

    def flush(self) -> None:
        """Write the buffered rows."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Finish the current file, if there is one."""
        if self._writer is None:
            return
        event_time_rows = pa.concat_tables(self._event_time_rows) if self._event_time_rows else None
        written = self._writer.close()
        self._groups.add_new_group_stat(self._partition, written, event_time_rows)
        self._writer, self._event_time_rows = None, []

    def abort(self, error: BaseException) -> None:
        """Discard the current file."""
        if self._writer is not None:
            self._writer.abort(error)
