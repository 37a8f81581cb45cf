"""The changes of file groups to rows, where the data is: on Spark and in a plain loop alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.core.base_merge import merge_with_base
from lakewright.core.merge import Deletes, Upserts, merge_logs
from lakewright.core.meta_columns import COMMIT_TIME, META_COLUMNS, RECORD_KEY
from lakewright.core.schema import conform, select_fields
from lakewright.core.slices import FileSlice
from lakewright.errors import CorruptError, found_in
from lakewright.format.log_blocks import BlockKind, LogBlock, parse_blocks
from lakewright.format.log_records import data_block_rows
from lakewright.read.cdc.images import row_texts, struct_texts
from lakewright.read.cdc.step import AFTER, BEFORE, OP, SCHEMA, TIME, CdcPlan, Step, StepKind
from lakewright.read.log_order import effective_blocks
from lakewright.read.plan import ReadPlan
from lakewright.read.worker import base_rows, batches_of, block_changes, read_slices
from lakewright.storage.base import Storage

INSERT, UPDATE, DELETE = "i", "u", "d"
_KEY = "record_key"
# Texts of so many rows are made at a time.
_BATCH_ROWS = 16 * 1024


def read_changes(storage: Storage, plan: CdcPlan) -> Iterator[pa.RecordBatch]:
    """The changes of all file groups of a plan, those of each in order, in its result schema."""
    reader = _Reader(storage, plan.read)
    for group in plan.groups:
        for kind, steps in groupby(group.steps, key=_together):
            for changes in reader.read(kind[0], list(steps)):
                yield from changes.select(plan.columns).combine_chunks().to_batches(_BATCH_ROWS)


def _together(step: Step) -> tuple[StepKind, str]:
    """Steps that are read at once: log files beside the same base file, one after the other."""
    base = step.after.base if step.after is not None else None
    appended = step.kind is StepKind.APPENDED
    return step.kind, (base.name if base is not None else "") if appended else step.instant


@dataclass(frozen=True)
class _Reader:
    """Reads steps; `plan` has the columns of rows: commit time and key, then those of images."""

    storage: Storage
    plan: ReadPlan

    def read(self, kind: StepKind, steps: Sequence[Step]) -> Iterator[pa.Table]:
        """The changes of steps that are read at once."""
        if kind is StepKind.APPENDED:
            yield from self._appended(steps)
            return
        read = {
            StepKind.LOGGED: self._logged,
            StepKind.INSERTED: self._inserted,
            StepKind.REPLACED: self._replaced,
            StepKind.REWRITTEN: self._rewritten,
            StepKind.STATE: self._state,
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

    def _inserted(self, step: Step) -> Iterator[pa.Table]:
        for rows in self._rows(step.after):
            new = rows.filter(pc.equal(rows.column(COMMIT_TIME), step.instant))
            yield from self._told(INSERT, step.instant, None, new)

    def _replaced(self, step: Step) -> Iterator[pa.Table]:
        for rows in self._rows(step.before):
            yield from self._told(DELETE, step.instant, rows, None)

    def _state(self, step: Step) -> Iterator[pa.Table]:
        for rows in self._rows(step.after):
            for changes in self._told(INSERT, step.instant, None, rows):
                times = rows.column(COMMIT_TIME).slice(0, len(changes))
                rows = rows.slice(len(changes))
                yield changes.set_column(1, SCHEMA.field(TIME), times)

    def _rewritten(self, step: Step) -> Iterator[pa.Table]:
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

    def _appended(self, steps: Sequence[Step]) -> Iterator[pa.Table]:
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

    def _differences(self, instant: str, old: pa.Table, new: pa.Table) -> Iterator[pa.Table]:
        """The changes that lead from old rows to new ones; a row that stayed is none."""
        old, new = old.combine_chunks(), new.combine_chunks()
        old_keys, new_keys = old.column(RECORD_KEY), new.column(RECORD_KEY)
        at = pc.index_in(new_keys, value_set=old_keys.combine_chunks())
        yield from self._told(INSERT, instant, None, new.filter(at.is_null()))
        both = new.filter(at.is_valid())
        yield from self._updates(instant, old.take(at.drop_null()), both)
        gone = pc.invert(pc.is_in(old_keys, value_set=new_keys.combine_chunks()))
        yield from self._told(DELETE, instant, old.filter(gone), None)

    def _updates(self, instant: str, old: pa.Table, new: pa.Table) -> Iterator[pa.Table]:
        for changes in self._told(UPDATE, instant, old, new):
            written = pc.equal(new.column(COMMIT_TIME).slice(0, len(changes)), instant)
            new = new.slice(len(changes))
            # A late row may still fill in what others leave out, where rows are updated in part.
            differs = pc.not_equal(changes.column(BEFORE), changes.column(AFTER))
            yield changes.filter(pc.or_(pc.fill_null(written, False), differs))

    def _logged(self, step: Step) -> Iterator[pa.Table]:
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
        self, item: FileSlice | None, name: str, logged: Sequence[pa.Table], step: Step
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

    def _recorded(self, step: Step, rows: pa.Table, known: Mapping[str, pa.Table]) -> pa.Table:
        op = rows.column(OP).combine_chunks()
        images = [
            self._known_image(rows, known[name], pc.not_equal(op, without), step)
            if name in known
            else self._logged_image(rows, name, step)
            for name, without in ((BEFORE, INSERT), (AFTER, DELETE))
        ]
        times = pa.repeat(pa.scalar(step.instant), len(rows))
        return pa.table([op, times, *images], schema=SCHEMA)

    def _logged_image(self, rows: pa.Table, name: str, step: Step) -> pa.Array:
        target = pa.schema([(name, pa.struct(list(self._image_schema)))])
        column = conform(rows.select([name]), target, source=step.files[0]).column(0)
        return struct_texts(column.combine_chunks())

    def _known_image(
        self, rows: pa.Table, known: pa.Table, wanted: pa.Array, step: Step
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

    def _told(
        self, op: str, instant: str, before: pa.Table | None, after: pa.Table | None
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
