"""Rows as JSON texts, whole columns at a time.

Each column becomes an array of texts, and Arrow joins the texts of a row. Times are microseconds
and dates are days since 1970, as Hudi has them in change data; decimals are numbers.
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

from lakewright.errors import CorruptError, UnsupportedError, found_in
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

_SPECIAL = r'[\x00-\x1f"\\]'
# The backslash comes first: the others bring some of their own.
_ESCAPED = ["\\", '"', *map(chr, range(0x20))]


def row_texts(rows: pa.Table) -> pa.Array:
    """Each row as a JSON object with all its columns; nulls are told."""
    columns = [column.combine_chunks() for column in rows.columns]
    return _object(rows.schema.names, columns, len(rows))


def struct_texts(rows: pa.Array) -> pa.Array:
    """Each struct as a JSON object; null where there is none."""
    return _texts(rows)


def _texts(array: pa.Array) -> pa.Array:
    """The values as JSON; null for null."""
    for applies, encode in _ENCODERS:
        if applies(array.type):
            return encode(array)
    raise UnsupportedError("a column type has no form in JSON", type=str(array.type))


def _join(parts: Iterable[pa.Array | str]) -> pa.Array:
    """The parts of each value put together; null is a word here."""
    scalars = [pa.scalar(p) if isinstance(p, str) else p for p in parts]
    return pc.binary_join_element_wise(
        *scalars, "", null_handling="replace", null_replacement="null"
    )


def _where_valid(array: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _object(names: Iterable[str], columns: Iterable[pa.Array], length: int) -> pa.Array:
    parts: list[pa.Array | str] = []
    for name, column in zip(names, columns, strict=True):
        lead = "," if parts else "{"
        parts += [f"{lead}{json.dumps(name, ensure_ascii=False)}:", _texts(column)]
    if not parts:
        return pa.array(["{}"] * length, pa.string())
    return _join([*parts, "}"])


def _struct(array: pa.Array) -> pa.Array:
    names = [field.name for field in array.type]
    return _where_valid(array, _object(names, array.flatten(), len(array)))


def _list(array: pa.Array) -> pa.Array:
    bounds = np.asarray(array.offsets)
    texts = _texts(array.values[int(bounds[0]) : int(bounds[-1])])
    return _listed(array, texts, "[", "]")


def _map(array: pa.Array) -> pa.Array:
    bounds = np.asarray(array.offsets)
    part = slice(int(bounds[0]), int(bounds[-1]))
    keys = array.keys[part]
    named = _string(keys if pa.types.is_string(keys.type) else keys.cast(pa.string()))
    return _listed(array, _join([named, ":", _texts(array.items[part])]), "{", "}")


def _listed(array: pa.Array, texts: pa.Array, begin: str, end: str) -> pa.Array:
    """The texts of items put together, those of each value by themselves."""
    bounds = np.asarray(array.offsets)
    starts = pa.array((bounds - bounds[0]).astype(np.int32))
    items = pa.ListArray.from_arrays(starts, pc.fill_null(texts, "null"))
    return _where_valid(array, _join([begin, pc.binary_join(items, ","), end]))


def _string(array: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(array, _SPECIAL)).as_py():
        array = reduce(_escaped, _ESCAPED, array)
    return _where_valid(array, _join(['"', array, '"']))


def _escaped(array: pa.Array, character: str) -> pa.Array:
    return pc.replace_substring(array, character, json.dumps(character)[1:-1])


def _float(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return texts
    # JSON has no numbers for these; their names are those of Java.
    names = pc.case_when(
        pc.make_struct(pc.is_nan(array), pc.greater(array, 0.0)),
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
    )
    return pc.if_else(pc.is_finite(array), texts, names)


def _plain(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _since_1970(array: pa.Array) -> pa.Array:
    days = pa.types.is_date32(array.type)
    return array.cast(pa.int32() if days else pa.int64()).cast(pa.string())


def _binary(array: pa.Array) -> pa.Array:
    # Arrow knows no base64, so this goes value by value.
    encoded = [
        None if v is None else base64.b64encode(v).decode("ascii") for v in array.to_pylist()
    ]
    return _where_valid(array, _join(['"', pa.array(encoded, pa.string()), '"']))


_ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_string, _string),
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _plain),
    (pa.types.is_timestamp, _since_1970),
    (pa.types.is_date32, _since_1970),
    (pa.types.is_binary, _binary),
    (pa.types.is_struct, _struct),
    (pa.types.is_list, _list),
    (pa.types.is_map, _map),
)


# ------------------------------------------------------------------------------------------------
# The changes of file groups to rows, where the data is: on Spark and in a plain loop alike.


INSERT, UPDATE, DELETE = "i", "u", "d"
_KEY = "record_key"
# Texts of so many rows are made at a time.
_BATCH_ROWS = 16 * 1024


def read_cdc(storage: Storage, plan: CdcScanPlan) -> Iterator[pa.RecordBatch]:
    """The changes of all file groups of a plan, those of each in order, in its result schema."""
    reader = _Reader(storage, plan.read)
    for group in plan.groups:
        for kind, steps in groupby(group.splits, key=_together):
            for changes in reader.read(kind[0], list(steps)):
                yield from changes.select(plan.columns).combine_chunks().to_batches(_BATCH_ROWS)


def _together(step: CdcFileSplit) -> tuple[CdcInferenceCase, str]:
    """Steps that are read at once: log files beside the same base file, one after the other."""
    base = step.after.base if step.after is not None else None
    appended = step.kind is CdcInferenceCase.APPENDED
    return step.kind, (base.name if base is not None else "") if appended else step.instant


@dataclass(frozen=True)
class _Reader:
    """Reads steps; `plan` has the columns of rows: commit time and key, then those of images."""

    storage: Storage
    plan: ScanPlan

    def read(self, kind: CdcInferenceCase, steps: Sequence[CdcFileSplit]) -> Iterator[pa.Table]:
        """The changes of steps that are read at once."""
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
        """The rows of a state, batch by batch."""
        slices = () if item is None else (item,)
        plan = replace(self.plan, slices=slices, columns=tuple(columns or self.plan.columns))
        for batch in read_slices(self.storage, plan):
            yield pa.Table.from_batches([batch])

    def _inserted(self, step: CdcFileSplit) -> Iterator[pa.Table]:
        for rows in self._rows(step.after):
            new = rows.filter(pc.equal(rows.column(COMMIT_TIME), step.instant))
            yield from self._changes(INSERT, step.instant, None, new)

    def _replaced(self, step: CdcFileSplit) -> Iterator[pa.Table]:
        for rows in self._rows(step.before):
            yield from self._changes(DELETE, step.instant, rows, None)

    def _state(self, step: CdcFileSplit) -> Iterator[pa.Table]:
        for rows in self._rows(step.after):
            for changes in self._changes(INSERT, step.instant, None, rows):
                times = rows.column(COMMIT_TIME).slice(0, len(changes))
                rows = rows.slice(len(changes))
                yield changes.set_column(1, SCHEMA.field(TIME), times)

    def _rewritten(self, step: CdcFileSplit) -> Iterator[pa.Table]:
        """Two base files: rows that carry the write's instant are new, or new versions."""
        keys, fresh = [], [self._empty]
        for rows in self._rows(step.after):
            keys += rows.column(RECORD_KEY).chunks
            fresh.append(rows.filter(pc.equal(rows.column(COMMIT_TIME), step.instant)))
        there = pa.chunked_array(keys, pa.string()).combine_chunks()
        new = pa.concat_tables(fresh)
        old_keys = pa.chunked_array(
            [c for rows in self._rows(step.before, [RECORD_KEY]) for c in rows.column(0).chunks],
            pa.string(),
        )
        # One look-up for all keys: each builds an index of what it looks in.
        changed = pc.is_in(old_keys, value_set=new.column(RECORD_KEY).combine_chunks())
        gone = pc.invert(pc.is_in(old_keys, value_set=there))
        old = self._chosen(step.before, pc.or_(changed, gone))
        yield from self._differences(step.instant, old, new)

    def _chosen(self, item: FileSlice | None, mask: pa.ChunkedArray) -> pa.Table:
        found, start = [self._empty], 0
        for rows in self._rows(item):
            found.append(rows.filter(mask.slice(start, len(rows))))
            start += len(rows)
        return pa.concat_tables(found)

    def _appended(self, steps: Sequence[CdcFileSplit]) -> Iterator[pa.Table]:
        """Log files beside one base file, of which only rows are taken that they can change."""
        last = max((step.after for step in steps if step.after), key=lambda item: len(item.logs))
        blocks = self._blocks(last)
        schema = self.plan.merge_schema
        with found_in(f"log files of {last.path(last.logs[0])}"):
            changes = {
                id(block): block_changes(block, schema, last.file_id)
                for block in blocks
                if block.kind is not BlockKind.COMMAND
            }
        own = {
            step.instant: _keys_of(
                [changes[id(b)] for b in blocks if b.instant == step.instant and id(b) in changes]
            )
            for step in steps
        }
        every = pa.chunked_array(list(own.values()), pa.string()).combine_chunks().unique()
        old = _with_keys(base_rows(self.storage, last, schema), every)
        base = pa.concat_tables([schema.empty_table(), *old]).combine_chunks()

        def state(item: FileSlice | None, keys: pa.Array) -> pa.Table:
            if item is None:
                return self._empty
            names = {item.path(log) for log in item.logs}
            seen = [b for b in blocks if b.file_name in names]
            counted = [changes[id(b)] for b in effective_blocks(seen)]
            outcome = merge_logs(counted, schema, self.plan.rule)
            merged = merge_with_base(batches_of([base]), outcome, self.plan.rule)
            rows = pa.concat_tables([schema.empty_table(), *merged])
            kept = rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))
            return kept.select(self.plan.columns)

        for step in steps:
            keys = own[step.instant]
            yield from self._differences(
                step.instant, state(step.before, keys), state(step.after, keys)
            )

    def _blocks(self, item: FileSlice) -> list[LogBlock]:
        paths = [item.path(log) for log in item.logs]
        found: list[LogBlock] = []
        for path, data in zip(paths, self.storage.read_many(paths), strict=True):
            found += parse_blocks(data, file_name=path)
        return found

    def _differences(
        self, instant: InstantTime, old: pa.Table, new: pa.Table
    ) -> Iterator[pa.Table]:
        """The changes that lead from old rows to new ones; a row that stayed is none."""
        old, new = old.combine_chunks(), new.combine_chunks()
        old_keys, new_keys = old.column(RECORD_KEY), new.column(RECORD_KEY)
        at = pc.index_in(new_keys, value_set=old_keys.combine_chunks())
        yield from self._changes(INSERT, instant, None, new.filter(at.is_null()))
        both = new.filter(at.is_valid())
        yield from self._updates(instant, old.take(at.drop_null()), both)
        gone = pc.invert(pc.is_in(old_keys, value_set=new_keys.combine_chunks()))
        yield from self._changes(DELETE, instant, old.filter(gone), None)

    def _updates(self, instant: InstantTime, old: pa.Table, new: pa.Table) -> Iterator[pa.Table]:
        for changes in self._changes(UPDATE, instant, old, new):
            written = pc.equal(new.column(COMMIT_TIME).slice(0, len(changes)), instant)
            new = new.slice(len(changes))
            # A late row may still fill in what others leave out, where rows are updated in part.
            differs = pc.not_equal(changes.column(BEFORE), changes.column(AFTER))
            yield changes.filter(pc.or_(pc.fill_null(written, False), differs))

    def _logged(self, step: CdcFileSplit) -> Iterator[pa.Table]:
        """Changes as they were written down; rows that were not are looked up, all at once."""
        logged = []
        for path, data in zip(step.files, self.storage.read_many(step.files), strict=True):
            for block in parse_blocks(data, file_name=path):
                if block.kind is not BlockKind.CDC:
                    raise CorruptError("a change file holds something else", file=path)
                logged.append(data_block_rows(block))
        known = {
            name: self._looked_up(item, name, logged, step)
            for name, item in ((BEFORE, step.before), (AFTER, step.after))
            if any(name not in rows.column_names for rows in logged)
        }
        for rows in logged:
            for start in range(0, len(rows), _BATCH_ROWS):
                yield self._recorded(step, rows.slice(start, _BATCH_ROWS), known)

    def _looked_up(
        self, item: FileSlice | None, name: str, logged: Sequence[pa.Table], step: CdcFileSplit
    ) -> pa.Table:
        """The rows of a base file that changes name by their keys."""
        if item is None or any(_KEY not in rows.column_names for rows in logged):
            raise CorruptError(
                "a change file lacks the rows that changed", files=step.files, lacks=name
            )
        chunks = [chunk for rows in logged for chunk in rows.column(_KEY).chunks]
        keys = pa.chunked_array(chunks, pa.string()).combine_chunks()
        found = [self._empty, *_with_keys(self._rows(item), keys)]
        return pa.concat_tables(found).combine_chunks()

    def _recorded(
        self, step: CdcFileSplit, rows: pa.Table, known: Mapping[str, pa.Table]
    ) -> pa.Table:
        op = rows.column(OP).combine_chunks()
        images = [
            self._known_image(rows, known[name], pc.not_equal(op, without), step)
            if name in known
            else self._logged_image(rows, name, step)
            for name, without in ((BEFORE, INSERT), (AFTER, DELETE))
        ]
        times = pa.repeat(pa.scalar(step.instant), len(rows))
        return pa.table([op, times, *images], schema=SCHEMA)

    def _logged_image(self, rows: pa.Table, name: str, step: CdcFileSplit) -> pa.Array:
        target = pa.schema([(name, pa.struct(list(self._image_schema)))])
        column = conform(rows.select([name]), target, source=step.files[0]).column(0)
        return struct_texts(column.combine_chunks())

    def _known_image(
        self, rows: pa.Table, known: pa.Table, wanted: pa.Array, step: CdcFileSplit
    ) -> pa.Array:
        at = pc.index_in(
            rows.column(_KEY).combine_chunks(), value_set=known.column(RECORD_KEY).combine_chunks()
        )
        if pc.any(pc.and_(wanted, at.is_null())).as_py():
            raise CorruptError("a row that changed is not in its base file", files=step.files)
        here = known.take(at.filter(wanted))
        texts = row_texts(self._images(here))
        number = np.cumsum(np.asarray(wanted), dtype=np.int32) - 1
        return texts.take(pa.array(number, mask=~np.asarray(wanted)))

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
        """The same kind of change of many rows."""
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
            told = [pa.repeat(pa.scalar(text), length) for text in (op, instant)]
            yield pa.table([*told, *texts], schema=SCHEMA)


def _with_keys(tables: Iterable[pa.Table], keys: pa.Array) -> Iterator[pa.Table]:
    """The rows that have one of these keys; many at a time, as each look-up indexes the keys."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= len(keys):
            yield _chosen(waiting, keys)
            waiting = []
    if waiting:
        yield _chosen(waiting, keys)


def _chosen(tables: Sequence[pa.Table], keys: pa.Array) -> pa.Table:
    rows = pa.concat_tables(tables)
    return rows.filter(pc.is_in(rows.column(RECORD_KEY), value_set=keys))


def _keys_of(changes: Sequence[Upserts | Deletes]) -> pa.Array:
    chunks = [
        chunk
        for each in changes
        for chunk in (
            [each.keys.cast(pa.string())]
            if isinstance(each, Deletes)
            else each.rows.column(RECORD_KEY).chunks
        )
    ]
    return pa.chunked_array(chunks, pa.string()).combine_chunks().unique()
