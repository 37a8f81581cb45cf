"""What a compaction makes of a slice: what goes into the base file, and what stays beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.core.base_merge import beaten_rows
from lakewright.core.event_split import Changes, Cut, MergedLogRecords, split_logs
from lakewright.core.event_time import event_range
from lakewright.core.freshness import UNTOLD
from lakewright.core.merge import Flags, LogOutcome, MergeRule
from lakewright.core.meta_columns import RECORD_KEY
from lakewright.core.slices import FileSlice
from lakewright.read.worker import base_rows
from lakewright.write.task import WriteTask


@dataclass
class Fold:
    """The log versions that a base file takes, and those that stay back.

    `held` are rows of the old base file that stay back as well. `beyond` counts, when all rows were
    taken, those from the threshold on that had to go into the base file. `undone` are deletes that
    are not applied to it.
    """

    logs: MergedLogRecords
    cut: Cut | None = None
    held: list[pa.Table] = field(default_factory=list)
    beyond: int = 0
    undone: LogOutcome | None = None

    @classmethod
    def whole(cls, outcome: LogOutcome) -> Fold:
        """Everything goes into the base file."""
        return cls(MergedLogRecords(outcome, outcome.only(np.arange(0))))

    @property
    def versions(self) -> int:
        """How many versions won among those of their keys."""
        return len(self.logs.taken.keys) + len(self.logs.remaining.keys)

    def without_deletes_of(self, keys: pa.Array, *, unconditional: bool) -> None:
        """Leave the rows of keys that come back later in the base file; their deletes stay back.

        All of their deletes, or those alone that have no ordering value.
        """
        taken = self.logs.taken
        back = np.asarray(pc.is_in(taken.keys, value_set=keys), dtype=bool) & taken.deleted
        back &= taken.beats_any_base if unconditional else True
        self.undone = taken.only(np.flatnonzero(back))
        rest = taken.only(np.flatnonzero(~back))
        self.logs = MergedLogRecords(rest, self.logs.remaining)

    def deleted_from(self, event_time: str | None) -> int | None:
        """The least event time of the deletes that stay back, if there are any."""
        late = self.logs.remaining
        if self.undone is not None and len(self.undone.keys):
            return UNTOLD
        if event_time is None or not late.deleted.any():
            return None
        gone = pa.array(np.flatnonzero(late.deleted))
        return event_range(late.ordering[0].take(gone), event_time)[0]

    def base(self, tables: Iterable[pa.Table], rule: MergeRule) -> Iterator[pa.Table]:
        """The rows of the old base file that may stay in one."""
        for table in tables:
            late = self.cut.is_late(table) if self.cut is not None else None
            if late is None or not late.any():
                yield table
                continue
            rows = table.filter(pa.array(late))
            beaten = list(beaten_rows(rows.combine_chunks().to_batches(), self.logs.taken, rule))
            stays = np.ones(len(rows), bool)
            stays[np.concatenate([np.zeros(0, np.int64), *beaten])] = False
            self.held.append(rows.filter(pa.array(stays)))
            yield table.filter(pa.array(~late))

    def counted(self, tables: Iterable[pa.Table], cut: Cut | None) -> Iterator[pa.Table]:
        """The rows of the new base file, counted where they are late."""
        for table in tables:
            if cut is not None:
                self.beyond += int(cut.is_late(table).sum())
            yield table

    def left(self) -> pa.Table:
        """The rows that stay beside the base file, stronger ones of a key last."""
        schema = self.logs.remaining.rows.schema
        stays = pa.Table.from_batches(self.logs.remain_logs_iterator(), schema)
        return pa.concat_tables([*self.held, stays])


def split_slice(task: WriteTask, item: FileSlice, changes: Changes, cut: Cut) -> Fold:
    """Split a slice at an event time, as far as the table's index allows.

    With a bucket index everything late stays out of the base file, rows of the old one too. Other
    indexes find a row by its key in a base file, so that some version must stay there.
    """
    in_base = None if task.buckets else _KeysInBase(task, item)
    logs = split_logs(changes, task.stored_schema, task.rule, cut, in_base)
    return Fold(logs, cut if task.buckets else None)


@dataclass(frozen=True, slots=True)
class _KeysInBase:
    """Which of some keys a base file has, by reading its keys alone."""

    task: WriteTask
    item: FileSlice

    def __call__(self, keys: pa.Array) -> Flags:
        schema = pa.schema([self.task.stored_schema.field(RECORD_KEY)])
        found = np.zeros(len(keys), bool)
        for table in base_rows(self.task.storage, self.item, schema):
            found |= np.asarray(pc.is_in(keys, value_set=table.column(RECORD_KEY)), dtype=bool)
        return found
