"""Reads the changes of a CDC plan, with rows as JSON texts.

Runs in Spark's executors and in the local engine. JSON is made of whole columns: each column
becomes an array of texts, and Arrow joins the texts of a row. As in Hudi's change data, timestamps
are microseconds and dates are days since 1970; decimals are numbers.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, UnsupportedError, errors_in_file
from lakewright.format.data_block import data_block_rows
from lakewright.format.log_block import BlockKind, LogBlock, parse_blocks
from lakewright.model.file_group import FileSlice
from lakewright.model.instant import InstantTime
from lakewright.model.merge import Deletes, Upserts, merge_logs, merge_with_base
from lakewright.model.schema import COMMIT_TIME, META_COLUMNS, RECORD_KEY, conform, select_fields
from lakewright.scan.cdc.planner import (
    AFTER,
    BEFORE,
    OP,
    SCHEMA,
    TIME,
    CdcFileSplit,
    CdcInferenceCase,
    CdcScanPlan,
)
from lakewright.scan.scan_plan import ScanPlan
from lakewright.scan.slice_reader import (
    base_rows,
    batches_of,
    block_changes,
    effective_blocks,
    read_slices,
)
from lakewright.storage.base import Storage

_ESCAPE_PATTERN = r'[\x00-\x1f"\\]'
# The backslash comes first: the escapes of the others contain backslashes.
_ESCAPED_CHARACTERS = ["\\", '"', *map(chr, range(0x20))]


def row_texts(rows: pa.Table) -> pa.Array:
    """Return each row as a JSON object with all its columns, also those that are null."""
    columns = [column.combine_chunks() for column in rows.columns]
    return _object(rows.schema.names, columns, len(rows))


def struct_texts(rows: pa.Array) -> pa.Array:
    """Return each struct as a JSON object; null for a null."""
    return _to_json(rows)


def _to_json(array: pa.Array) -> pa.Array:
    """Return the values as JSON texts; null for null."""
    for applies, encode in _ENCODERS:
        if applies(array.type):
            return encode(array)
    raise UnsupportedError("a column type has no form in JSON", type=str(array.type))


def _concatenate(parts: Iterable[pa.Array | str]) -> pa.Array:
    """Concatenate the parts of each value; a null part becomes the text "null"."""
    arguments = [pa.scalar(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(
        *arguments, "", null_handling="replace", null_replacement="null"
    )


def _where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _object(names: Iterable[str], columns: Iterable[pa.Array], length: int) -> pa.Array:
    parts: list[pa.Array | str] = []
    for name, column in zip(names, columns, strict=True):
        separator = "," if parts else "{"
        parts += [f"{separator}{json.dumps(name, ensure_ascii=False)}:", _to_json(column)]
    if not parts:
        return pa.array(["{}"] * length, pa.string())
    return _concatenate([*parts, "}"])


def _struct(array: pa.Array) -> pa.Array:
    names = [field.name for field in array.type]
    return _where_valid(array, _object(names, array.flatten(), len(array)))


def _list(array: pa.Array) -> pa.Array:
    bounds = np.asarray(array.offsets)
    texts = _to_json(array.values[int(bounds[0]) : int(bounds[-1])])
    return _join_items(array, texts, "[", "]")


def _map(array: pa.Array) -> pa.Array:
    bounds = np.asarray(array.offsets)
    used = slice(int(bounds[0]), int(bounds[-1]))
    keys = array.keys[used]
    key_texts = _string(keys if pa.types.is_string(keys.type) else keys.cast(pa.string()))
    return _join_items(array, _concatenate([key_texts, ":", _to_json(array.items[used])]), "{", "}")


def _join_items(array: pa.Array, texts: pa.Array, begin: str, end: str) -> pa.Array:
    """Join the texts of the items of each list or map."""
    bounds = np.asarray(array.offsets)
    starts = pa.array((bounds - bounds[0]).astype(np.int32))
    items = pa.ListArray.from_arrays(starts, pc.fill_null(texts, "null"))
    return _where_valid(array, _concatenate([begin, pc.binary_join(items, ","), end]))


def _string(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, _ESCAPE_PATTERN)).as_py():
        array = reduce(_escape, _ESCAPED_CHARACTERS, array)
    return _where_valid(array, _concatenate(['"', array, '"']))


def _escape(array: pa.Array, character: str) -> pa.Array:
    return pc.replace_substring(array, character, json.dumps(character)[1:-1])


def _float(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return texts
    # JSON has no such numbers; they are written as strings, with Java's names.
    names = pc.case_when(
        pc.make_struct(pc.is_nan(array), pc.greater(array, 0.0)),
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
    )
    return pc.if_else(pc.is_finite(array), texts, names)


def _as_string(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _epoch(array: pa.Array) -> pa.Array:
    days = pa.types.is_date32(array.type)
    return array.cast(pa.int32() if days else pa.int64()).cast(pa.string())


def _binary(array: pa.Array) -> pa.Array:
    # Arrow has no Base64 function, so values are encoded one by one.
    encoded = [
        None if v is None else base64.b64encode(v).decode("ascii") for v in array.to_pylist()
    ]
    return _where_valid(array, _concatenate(['"', pa.array(encoded, pa.string()), '"']))


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _as_string),
    (pa.types.is_integer, _as_string),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _as_string),
    (pa.types.is_timestamp, _epoch),
    (pa.types.is_date32, _epoch),
    (pa.types.is_binary, _binary),
    (pa.types.is_struct, _struct),
    (pa.types.is_list, _list),
    (pa.types.is_map, _map),
)


# Changes.


INSERT, UPDATE, DELETE = "i", "u", "d"
_KEY = "record_key"
# JSON is made of this many rows at a time.
_BATCH_ROWS = 16 * 1024


def read_cdc(storage: Storage, plan: CdcScanPlan) -> Iterator[pa.RecordBatch]:
    """Return the changes of all file groups of a plan, those of a group in order."""
    reader = _Reader(storage, plan.read)
    for group in plan.groups:
        for kind, splits in groupby(group.splits, key=_batch_key):
            for changes in reader.read(kind[0], list(splits)):
                yield from changes.select(plan.columns).combine_chunks().to_batches(_BATCH_ROWS)


def _batch_key(split: CdcFileSplit) -> tuple[CdcInferenceCase, str]:
    """Return a key that is equal for splits read together: log files of the same base file."""
    base = split.after.base if split.after is not None else None
    appended = split.kind is CdcInferenceCase.APPENDED
    return split.kind, (base.name if base is not None else "") if appended else split.instant


@dataclass(frozen=True)
class _Reader:
    """Reads splits; `plan` has the columns commit time and key, then those of the row images."""

    storage: Storage
    plan: ScanPlan

    def read(self, kind: CdcInferenceCase, steps: Sequence[CdcFileSplit]) -> Iterator[pa.Table]:
        """Return the changes of splits that are read together."""
        if kind is CdcInferenceCase.APPENDED:
            yield from self._appended(steps)
            return
        read = {
            CdcInferenceCase.LOGGED: self._logged,
            CdcInferenceCase.INSERTED: self._inserted,
            CdcInferenceCase.REPLACED: self._replaced,
            CdcInferenceCase.REWRITTEN: self._rewritten,
            CdcInferenceCase.STATE: self._state,
        }[kind]
        for step in steps:
            yield from read(step)

    def _rows(
        self, item: FileSlice | None, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """Return the rows of a file slice, batch by batch."""
        slices = () if item is None else (item,)
        plan = replace(self.plan, slices=slices, columns=tuple(columns or self.plan.columns))
        for batch in read_slices(self.storage, plan):
            yield pa.Table.from_batches([batch])

    def _inserted(self, split: CdcFileSplit) -> Iterator[pa.Table]:
        for rows in self._rows(split.after):
            inserted = rows.filter(pc.equal(rows.column(COMMIT_TIME), split.instant))
            yield from self._changes(INSERT, split.instant, None, inserted)

    def _replaced(self, split: CdcFileSplit) -> Iterator[pa.Table]:
        for rows in self._rows(split.before):
            yield from self._changes(DELETE, split.instant, rows, None)

    def _state(self, split: CdcFileSplit) -> Iterator[pa.Table]:
        for rows in self._rows(split.after):
            for changes in self._changes(INSERT, split.instant, None, rows):
                times = rows.column(COMMIT_TIME).slice(0, len(changes))
                rows = rows.slice(len(changes))
                yield changes.set_column(1, SCHEMA.field(TIME), times)

    def _rewritten(self, split: CdcFileSplit) -> Iterator[pa.Table]:
        """Compare two base files: rows with the write's commit time are inserted or updated."""
        key_chunks, written = [], [self._empty]
        for rows in self._rows(split.after):
            key_chunks += rows.column(RECORD_KEY).chunks
            written.append(rows.filter(pc.equal(rows.column(COMMIT_TIME), split.instant)))
        new_state_keys = pa.chunked_array(key_chunks, pa.string()).combine_chunks()
        new = pa.concat_tables(written)
        old_keys = pa.chunked_array(
            [
                chunk
                for rows in self._rows(split.before, [RECORD_KEY])
                for chunk in rows.column(0).chunks
            ],
            pa.string(),
        )
        # One look-up for all keys: each call of is_in builds an index of its value set.
        changed = pc.is_in(old_keys, value_set=new.column(RECORD_KEY).combine_chunks())
        deleted = pc.invert(pc.is_in(old_keys, value_set=new_state_keys))
        old = self._filter_by_mask(split.before, pc.or_(changed, deleted))
        yield from self._differences(split.instant, old, new)

    def _filter_by_mask(self, item: FileSlice | None, mask: pa.ChunkedArray) -> pa.Table:
        selected, start = [self._empty], 0
        for rows in self._rows(item):
            selected.append(rows.filter(mask.slice(start, len(rows))))
            start += len(rows)
        return pa.concat_tables(selected)

    def _appended(self, splits: Sequence[CdcFileSplit]) -> Iterator[pa.Table]:
        """Read log files of one base file, of which only rows with changed keys are kept."""
        last = max(
            (split.after for split in splits if split.after), key=lambda item: len(item.logs)
        )
        blocks = self._read_blocks(last)
        schema = self.plan.merge_schema
        with errors_in_file(f"log files of {last.path(last.logs[0])}"):
            changes = {
                id(block): block_changes(block, schema, last.file_id)
                for block in blocks
                if block.kind is not BlockKind.COMMAND
            }
        keys_by_instant = {
            split.instant: _changed_keys(
                [changes[id(b)] for b in blocks if b.instant == split.instant and id(b) in changes]
            )
            for split in splits
        }
        all_keys = (
            pa.chunked_array(list(keys_by_instant.values()), pa.string()).combine_chunks().unique()
        )
        candidates = _with_keys(base_rows(self.storage, last, schema), all_keys)
        base = pa.concat_tables([schema.empty_table(), *candidates]).combine_chunks()

        def state(item: FileSlice | None, keys: pa.Array) -> pa.Table:
            if item is None:
                return self._empty
            names = {item.path(log) for log in item.logs}
            slice_blocks = [b for b in blocks if b.file_name in names]
            effective = [changes[id(b)] for b in effective_blocks(slice_blocks)]
            merged_logs = merge_logs(effective, schema, self.plan.rule)
            merged = merge_with_base(batches_of([base]), merged_logs, self.plan.rule)
            rows = pa.concat_tables([schema.empty_table(), *merged])
            selected = rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))
            return selected.select(self.plan.columns)

        for split in splits:
            keys = keys_by_instant[split.instant]
            yield from self._differences(
                split.instant, state(split.before, keys), state(split.after, keys)
            )

    def _read_blocks(self, item: FileSlice) -> list[LogBlock]:
        paths = [item.path(log) for log in item.logs]
        blocks: list[LogBlock] = []
        for path, data in zip(paths, self.storage.read_many(paths), strict=True):
            blocks += parse_blocks(data, file_name=path)
        return blocks

    def _differences(
        self, instant: InstantTime, old: pa.Table, new: pa.Table
    ) -> Iterator[pa.Table]:
        """Return the changes from old rows to new ones; unchanged rows are left out."""
        old, new = old.combine_chunks(), new.combine_chunks()
        old_keys, new_keys = old.column(RECORD_KEY), new.column(RECORD_KEY)
        old_index = pc.index_in(new_keys, value_set=old_keys.combine_chunks())
        yield from self._changes(INSERT, instant, None, new.filter(old_index.is_null()))
        both = new.filter(old_index.is_valid())
        yield from self._updates(instant, old.take(old_index.drop_null()), both)
        deleted = pc.invert(pc.is_in(old_keys, value_set=new_keys.combine_chunks()))
        yield from self._changes(DELETE, instant, old.filter(deleted), None)

    def _updates(self, instant: InstantTime, old: pa.Table, new: pa.Table) -> Iterator[pa.Table]:
        for changes in self._changes(UPDATE, instant, old, new):
            written = pc.equal(new.column(COMMIT_TIME).slice(0, len(changes)), instant)
            new = new.slice(len(changes))
            # With partial updates, a late row may still set columns that others leave out.
            differs = pc.not_equal(changes.column(BEFORE), changes.column(AFTER))
            yield changes.filter(pc.or_(pc.fill_null(written, False), differs))

    def _logged(self, split: CdcFileSplit) -> Iterator[pa.Table]:
        """Return logged changes; rows that are not logged are looked up, all at once."""
        logged = []
        for path, data in zip(split.files, self.storage.read_many(split.files), strict=True):
            for block in parse_blocks(data, file_name=path):
                if block.kind is not BlockKind.CDC:
                    raise CorruptError("a CDC log file contains other blocks", file=path)
                logged.append(data_block_rows(block))
        looked_up = {
            name: self._look_up_rows(item, name, logged, split)
            for name, item in ((BEFORE, split.before), (AFTER, split.after))
            if any(name not in rows.column_names for rows in logged)
        }
        for rows in logged:
            for start in range(0, len(rows), _BATCH_ROWS):
                yield self._logged_changes(split, rows.slice(start, _BATCH_ROWS), looked_up)

    def _look_up_rows(
        self, item: FileSlice | None, name: str, logged: Sequence[pa.Table], split: CdcFileSplit
    ) -> pa.Table:
        """Return the rows of a base file that logged changes refer to by key."""
        if item is None or any(_KEY not in rows.column_names for rows in logged):
            raise CorruptError(
                "a CDC log file lacks the rows that changed", files=split.files, lacks=name
            )
        chunks = [chunk for rows in logged for chunk in rows.column(_KEY).chunks]
        keys = pa.chunked_array(chunks, pa.string()).combine_chunks()
        tables = [self._empty, *_with_keys(self._rows(item), keys)]
        return pa.concat_tables(tables).combine_chunks()

    def _logged_changes(
        self, split: CdcFileSplit, rows: pa.Table, looked_up: Mapping[str, pa.Table]
    ) -> pa.Table:
        op = rows.column(OP).combine_chunks()
        images = [
            self._looked_up_image(rows, looked_up[name], pc.not_equal(op, op_without_image), split)
            if name in looked_up
            else self._logged_image(rows, name, split)
            for name, op_without_image in ((BEFORE, INSERT), (AFTER, DELETE))
        ]
        times = pa.repeat(pa.scalar(split.instant), len(rows))
        return pa.table([op, times, *images], schema=SCHEMA)

    def _logged_image(self, rows: pa.Table, name: str, split: CdcFileSplit) -> pa.Array:
        target = pa.schema([(name, pa.struct(list(self._image_schema)))])
        column = conform(rows.select([name]), target, source=split.files[0]).column(0)
        return struct_texts(column.combine_chunks())

    def _looked_up_image(
        self, rows: pa.Table, looked_up: pa.Table, has_image: pa.Array, split: CdcFileSplit
    ) -> pa.Array:
        index = pc.index_in(
            rows.column(_KEY).combine_chunks(),
            value_set=looked_up.column(RECORD_KEY).combine_chunks(),
        )
        if pc.any(pc.and_(has_image, index.is_null())).as_py():
            raise CorruptError("a row that changed is not in its base file", files=split.files)
        images = looked_up.take(index.filter(has_image))
        texts = row_texts(self._images(images))
        number = np.cumsum(np.asarray(has_image), dtype=np.int32) - 1
        return texts.take(pa.array(number, mask=~np.asarray(has_image)))

    @property
    def _image_schema(self) -> pa.Schema:
        names = [name for name in self.plan.columns if name not in META_COLUMNS]
        return select_fields(self.plan.schema, names)

    def _images(self, rows: pa.Table) -> pa.Table:
        return rows.select(self._image_schema.names)

    @property
    def _empty(self) -> pa.Table:
        return self.plan.result_schema.empty_table()

    def _changes(
        self, op: str, instant: InstantTime, before: pa.Table | None, after: pa.Table | None
    ) -> Iterator[pa.Table]:
        """Return changes of the same kind of many rows."""
        rows = after if before is None else before
        assert rows is not None
        for start in range(0, len(rows), _BATCH_ROWS):
            length = min(_BATCH_ROWS, len(rows) - start)
            texts = [
                pa.nulls(length, pa.string())
                if side is None
                else row_texts(self._images(side.slice(start, length)))
                for side in (before, after)
            ]
            constants = [pa.repeat(pa.scalar(text), length) for text in (op, instant)]
            yield pa.table([*constants, *texts], schema=SCHEMA)


def _with_keys(tables: Iterable[pa.Table], keys: pa.Array) -> Iterator[pa.Table]:
    """Return the rows that have one of these keys.

    Many rows are filtered at a time, because each call of is_in indexes the keys.
    """
    buffered: list[pa.Table] = []
    for table in tables:
        buffered.append(table)
        if sum(map(len, buffered)) >= len(keys):
            yield _filter_by_key(buffered, keys)
            buffered = []
    if buffered:
        yield _filter_by_key(buffered, keys)


def _filter_by_key(tables: Sequence[pa.Table], keys: pa.Array) -> pa.Table:
    rows = pa.concat_tables(tables)
    return rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))


def _changed_keys(changes: Sequence[Upserts | Deletes]) -> pa.Array:
    chunks = [
        chunk
        for change in changes
        for chunk in (
            [change.keys.cast(pa.string())]
            if isinstance(change, Deletes)
            else change.rows.column(RECORD_KEY).chunks
        )
    ]
    return pa.chunked_array(chunks, pa.string()).combine_chunks().unique()
