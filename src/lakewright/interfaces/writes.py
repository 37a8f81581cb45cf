"""Writes to a table: options in Hudi's words in, a commit out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lakewright.clock import Clock, SystemClock
from lakewright.core.instant import Instant, State
from lakewright.core.plans import Skip
from lakewright.errors import InvalidError
from lakewright.storage.base import Storage
from lakewright.table.locks import holding
from lakewright.table.metadata_table import drop_metadata_table
from lakewright.table.properties import update_properties
from lakewright.table.restore import run_restore
from lakewright.table.rollback import run_rollback
from lakewright.table.savepoint import run_savepoint
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.times import TimeSource
from lakewright.table.transaction import Writer
from lakewright.table.writable import require_writable
from lakewright.write.commit import (
    Commit,
    IncomingRows,
    NoRows,
    WriteRequest,
    partitions_named,
    write,
)
from lakewright.write.options import check_write_options, config_conflicts, write_settings
from lakewright.write.run import SparkRows
from lakewright.write.task import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Options = Mapping[str, str] | None

# Settings of a table that may change after it was made.
_STORED = ("hoodie.ttl.",)


@dataclass(frozen=True)
class TableWriter:
    """Everything that a write to one table needs besides its rows."""

    storage: Storage
    clock: Clock
    options: Mapping[str, str]

    @classmethod
    def of(cls, storage: Storage, options: Options, clock: Clock | None = None) -> TableWriter:
        """Check the options' names; one of Hudi's that does not matter here is a warning."""
        checked = check_write_options(options or {})
        for key in checked.ignored:
            warnings.warn(f"option {key} has no effect on writing", stacklevel=4)
        return cls(storage, clock or SystemClock(), checked.told)

    def write(
        self,
        operation: Operation,
        rows: IncomingRows,
        *,
        ordered: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> Commit:
        """Write rows; `ordered` deletes compete with the rows they mean by their ordering."""
        return self._run(operation, rows, ordered=ordered, extra=extra)

    def delete_partitions(self, patterns: Sequence[str]) -> Commit | Skip:
        """Take partitions out of the table: by path, or by patterns with `*` and `?`."""
        if not patterns:
            raise InvalidError("no partition to delete was named")
        if not partitions_named(load_snapshot(self.storage), patterns):
            return Skip(f"the table has no partition {', '.join(patterns)}")
        return self._run(Operation.DELETE_PARTITION, NoRows(), patterns=tuple(patterns))

    def _run(
        self,
        operation: Operation,
        rows: IncomingRows,
        *,
        ordered: bool = False,
        extra: Mapping[str, str] | None = None,
        patterns: tuple[str, ...] = (),
    ) -> Commit:
        prefix = write_settings(None, self.options).commit_metadata_prefix
        told = {k: v for k, v in self.options.items() if prefix and k.startswith(prefix)}
        request = WriteRequest(
            operation,
            self.options,
            ordered_deletes=ordered,
            extra={**told, **(extra or {})},
            patterns=patterns,
        )
        return write(self._writer(), request, rows)

    def rollback(self, instant: str) -> Instant:
        """Take back a write or a service, completed or not."""
        with self._locked() as (writer, snapshot, times):
            found = [i for i in snapshot.timeline if i.requested_at == instant and i.is_write]
            target = found[0] if found else Instant(instant, "commit", State.INFLIGHT)
            by_markers = writer.transaction.rollback_by_markers
            return run_rollback(snapshot, target, times, self.clock, by_markers=by_markers)

    def savepoint(self, instant: str, *, user: str, comment: str) -> Instant:
        """Keep the table as it was after a write."""
        with self._locked() as (_, snapshot, times):
            return run_savepoint(snapshot, instant, times, self.clock, user=user, comment=comment)

    def restore(self, instant: str) -> Instant:
        """Take the table back to a savepoint."""
        with self._locked() as (_, snapshot, times):
            return run_restore(snapshot, instant, times, self.clock)

    def store_settings(self) -> Skip:
        """Put settings of the table that the options name among its properties."""
        settings = {k: v for k, v in self.options.items() if k.startswith(_STORED)}
        with self._locked() as (_, snapshot, _):
            config_conflicts(snapshot.config, self.options)
            if settings:
                update_properties(self.storage, lambda old: {**old, **settings})
        return Skip(f"there are no columns to write; {len(settings)} settings were stored")

    @contextmanager
    def _locked(self) -> Iterator[tuple[Writer, Snapshot, TimeSource]]:
        """The table under its lock, ready to be changed: what it has must be maintained."""
        writer = self._writer()
        with holding(writer.new_lock()):
            snapshot = load_snapshot(self.storage)
            require_writable(snapshot.config)
            config = drop_metadata_table(self.storage, snapshot.config)
            times = writer.times(config, snapshot.timeline)
            yield writer, replace(snapshot, config=config), times

    def _writer(self) -> Writer:
        return Writer.from_options(self.storage, self.clock, self.options)


def write_frame(
    storage: Storage,
    frame: DataFrame,
    operation: Operation,
    options: Options = None,
    *,
    ordered: bool = False,
    extra: Mapping[str, str] | None = None,
) -> Commit | Skip:
    """Write a DataFrame; one without columns has no rows to write."""
    writer = TableWriter.of(storage, options)
    if not frame.columns:
        return writer.store_settings()
    return writer.write(operation, SparkRows(frame), ordered=ordered, extra=extra)
