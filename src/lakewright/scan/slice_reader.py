"""Reads the rows of file slices: base files merged with the effective blocks of log files.

Runs in Spark's executors and in the local engine.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import CorruptError, errors_in_file
from lakewright.format.data_block import data_block_rows
from lakewright.format.delete_block import parse_delete_block
from lakewright.format.log_block import BlockKind, LogBlock, parse_blocks
from lakewright.model.file_group import FileSlice
from lakewright.model.instant import InstantTime
from lakewright.model.merge import (
    Deletes,
    MergedLogRecords,
    MergeRule,
    Upserts,
    merge_logs,
    merge_with_base,
    overwritten_rows,
    updated_rows,
)
from lakewright.model.schema import COMMIT_TIME, RECORD_KEY, conform
from lakewright.scan.scan_plan import ScanPlan
from lakewright.storage.base import Storage


def effective_blocks(
    blocks: Sequence[LogBlock], commits: Collection[str] | None = None
) -> list[LogBlock]:
    """Return the blocks that are merged, in merge order; `blocks` are in the order of their files.

    - A command block (from tables of older versions) rolls back the blocks of its target instant.
    - A block of a log compaction replaces the blocks it was made of, at the position of the newest
      of them: blocks of later writes are merged after it.
    - A log compaction writes its own instant into the rows. If rows are selected by the `commits`
      that wrote them, the blocks it was made of are used instead, if they still exist.
    """
    rolled_back = {b.target_instant for b in blocks if b.kind is BlockKind.COMMAND}
    data = [
        block
        for block in blocks
        if block.kind is not BlockKind.COMMAND and block.instant not in rolled_back
    ]
    last_position = {block.instant: position for position, block in enumerate(data)}
    compacted = {b.instant: b.compacted_instants for b in data if b.compacted_instants}
    if commits is not None:
        unneeded = {
            instant
            for instant, parts in compacted.items()
            if all(part in last_position for part in parts if part in commits)
        }
        data = [block for block in data if block.instant not in unneeded]
        compacted = {
            instant: parts for instant, parts in compacted.items() if instant not in unneeded
        }
    replaced = {part for parts in compacted.values() for part in parts}

    def merge_position(instant: InstantTime) -> int:
        # A log compaction contains older blocks only: ignore any others that it names.
        parts = (i for i in compacted.get(instant, ()) if i in last_position and i < instant)
        return max(map(merge_position, parts), default=last_position[instant])

    effective = [block for block in data if block.instant not in replaced]
    return sorted(effective, key=lambda block: merge_position(block.instant))


_BATCH_ROWS = 64 * 1024
_BATCH_BYTES = 64 << 20


def read_slices(storage: Storage, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Return the rows of all slices of a plan, in its result schema."""
    commit_times = None if plan.commits is None else pa.array(sorted(plan.commits), pa.string())
    for item in plan.slices:
        for table in _read_slice(storage, item, plan):
            if commit_times is not None:
                table = table.filter(pc.is_in(table.column(COMMIT_TIME), value_set=commit_times))
            if table.num_rows:
                yield from table.select(plan.columns).combine_chunks().to_batches(_BATCH_ROWS)


def _read_slice(storage: Storage, item: FileSlice, plan: ScanPlan) -> Iterator[pa.Table]:
    schema = plan.merge_schema
    if not item.logs:
        yield from base_rows(storage, item, schema)
        return
    blocks = read_blocks(storage, item)
    if item.full_slice is not None and any(block.is_partial for block in blocks):
        # Partial updates need the columns that they leave out, however old those are.
        yield from _read_slice(storage, item.full_slice, plan)
        return
    changes = _merge_blocks(blocks, item, plan, schema)
    yield from merge_with_base(_base_batches(storage, item, schema), changes, plan.rule)


def read_updated_rows(storage: Storage, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Return those rows of all slices of a plan that come from log files, in its result schema."""
    for item in plan.slices:
        changes = _read_and_merge_logs(storage, item, plan)
        # Partial updates are merged with their base rows, and need all columns of those.
        schema = plan.merge_schema if changes.sources else plan.key_schema
        for table in updated_rows(_base_batches(storage, item, schema), changes, plan.rule):
            if table.num_rows:
                yield from table.select(plan.columns).combine_chunks().to_batches(_BATCH_ROWS)


def read_overwritten_rows(storage: Storage, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Return which base rows log files update or delete, in `plan.overwritten_schema`."""
    for item in plan.slices:
        if item.base is None:
            continue
        changes = _read_and_merge_logs(storage, item, plan)
        partition_values = [
            column.value(item.partition) for column in plan.partition_columns_from_path
        ]
        for row_numbers in overwritten_rows(
            _base_batches(storage, item, plan.key_schema), changes, plan.rule
        ):
            constants = [item.base.name, *partition_values]
            types = [field.type for field in plan.overwritten_schema][1:]
            columns = [
                pa.repeat(pa.scalar(value, type_), len(row_numbers))
                for value, type_ in zip(constants, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(
                [pa.array(row_numbers), *columns], schema=plan.overwritten_schema
            )


def _read_and_merge_logs(storage: Storage, item: FileSlice, plan: ScanPlan) -> MergedLogRecords:
    return _merge_blocks(read_blocks(storage, item), item, plan, plan.merge_schema)


def _base_batches(storage: Storage, item: FileSlice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return batches_of(base_rows(storage, item, schema))


def batches_of(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Return the rows of each table as one batch, as merging needs them."""
    for table in tables:
        yield from table.combine_chunks().to_batches()


def base_rows(
    storage: Storage, item: FileSlice, schema: pa.Schema
) -> Generator[pa.Table, None, None]:
    """Return the rows of the base file, batch by batch, in `schema`."""
    if item.base is None:
        return
    path = item.path(item.base)
    with storage.open_input(path) as source:
        try:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            names = set(schema.names)
            stored = file.schema_arrow.names
            columns = [name for name in stored if name in names] or [RECORD_KEY]
            count = _batch_rows(file.metadata)
            for batch in file.iter_batches(count, columns=columns, use_threads=False):
                yield conform(pa.Table.from_batches([batch]), schema, source=path)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError("a base file cannot be read", file=path, cause=str(error)) from error


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Return how many rows are read at once: fewer, if the rows of the file are large."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    row_bytes = sum(group.total_byte_size for group in groups) / max(metadata.num_rows, 1)
    return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(row_bytes, 1))))


def read_blocks(storage: Storage, item: FileSlice) -> list[LogBlock]:
    """Return all blocks of the log files of a slice, in the order of the files."""
    blocks: list[LogBlock] = []
    paths = [item.path(log) for log in item.logs]
    for path, data in zip(paths, storage.read_many(paths), strict=True):
        if not data:
            raise CorruptError("a log file of a completed write is empty", file=path)
        blocks += parse_blocks(data, file_name=path)
    return blocks


def _merge_blocks(
    blocks: list[LogBlock], item: FileSlice, plan: ScanPlan, schema: pa.Schema
) -> MergedLogRecords:
    return merge_blocks(effective_blocks(blocks, plan.commits), item, schema, plan.rule)


def merge_blocks(
    blocks: Sequence[LogBlock], item: FileSlice, schema: pa.Schema, rule: MergeRule
) -> MergedLogRecords:
    """Return the winning rows and deletes of blocks, given in merge order."""
    with errors_in_file(f"log files of {item.path(item.logs[0])}"):
        changes = [block_changes(block, schema, item.file_id) for block in blocks]
        return merge_logs(changes, schema, rule)


def block_changes(block: LogBlock, schema: pa.Schema, file_id: str) -> Upserts | Deletes:
    """Return the upserts or deletes of one log block, in `schema`."""
    if block.kind is BlockKind.DELETE:
        records = parse_delete_block(block)
        return Deletes(records.keys, records.ordering, records.unconditional)
    rows = data_block_rows(block, schema.names)
    columns = frozenset(rows.column_names) if block.is_partial else None
    return Upserts(conform(rows, schema, source=file_id), columns)
