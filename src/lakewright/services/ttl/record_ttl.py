"""Finds the rows that are older than a policy of level RECORD allows.

The age of a row is counted from its event time if the table has one, otherwise from its commit
time. A row without a time never expires. Only reading the files shows which partitions have old
rows, so these are counted first: there may be many partitions, of which one run handles only some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.model.event_time import event_millis
from lakewright.model.instant import parse_time
from lakewright.model.schema import COMMIT_TIME, META_COLUMNS, PARTITION_PATH, select_fields
from lakewright.model.table_config import MergeMode, TableConfig
from lakewright.model.ttl import refuse_keyless, ttl_settings, ttl_zone
from lakewright.scan.planner import plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.scan.slice_reader import read_slices
from lakewright.services.base import ExecutionContext
from lakewright.services.ttl.planner import TtlDecision
from lakewright.storage.base import Storage
from lakewright.write.options import write_settings
from lakewright.write.task import WriteToken
from lakewright.write.writer import RowSource

_INSTANT_TIME = r"^[0-9]{14}([0-9]{3})?$"
_SECONDS_DIGITS = 14

Limits = Mapping[str, int | str]
"""The time before which rows are old, by partition: epoch milliseconds, or an instant time."""


@dataclass(frozen=True)
class RecordTtl:
    """Finds the old rows of a table; `column` has the times from which ages are counted.

    `zone` is that of the times in decisions.
    """

    config: TableConfig
    column: str
    zone: tzinfo

    @classmethod
    def for_table(cls, context: ExecutionContext) -> RecordTtl:
        """Create it for a table; InvalidError if the table has no record keys to delete rows by."""
        config = context.snapshot.config
        require_keys(config)
        column = write_settings(config, context.options).event_time or COMMIT_TIME
        settings = ttl_settings(config.properties, context.options)
        return cls(config, column, ttl_zone(config.timeline_zone, settings))

    @property
    def is_ordered(self) -> bool:
        """Whether deletes have ordering values, so that a newer version of a row survives them."""
        by_event = self.config.merge_mode is MergeMode.EVENT_TIME
        return by_event and bool(self.config.ordering_fields)

    def limits(self, decisions: Iterable[TtlDecision]) -> Limits:
        """The time before which rows are old, by partition."""
        cutoffs = {d.partition: d.rows_before for d in decisions if d.rows_before is not None}
        if self.column == COMMIT_TIME:
            return cutoffs
        return {p: int(parse_time(at, self.zone).timestamp() * 1000) for p, at in cutoffs.items()}

    def rows(self, context: ExecutionContext, decisions: Sequence[TtlDecision]) -> RowSource:
        """The old rows of partitions, with the columns that a delete needs."""
        fields = (*self.config.record_key_fields, *self.config.partition_fields)
        ordering = self.config.ordering_fields if self.is_ordered else ()
        names = dict.fromkeys(name.split(".")[0] for name in (*fields, *ordering))
        plan = self._plan(context, decisions, tuple(names))
        schema = select_fields(plan.schema, [n for n in names if n not in META_COLUMNS])
        select = partial(pick_old, self.column, self.limits(decisions), tuple(schema.names))
        return context.engine.scan(context.writer.storage, plan).map_batches(select, schema)

    def counts(
        self, context: ExecutionContext, decisions: Sequence[TtlDecision]
    ) -> list[tuple[str, int]]:
        """The partitions with old rows, and how many; the one with the oldest row first."""
        plan = self._plan(context, decisions, ())
        count = partial(count_old, context.writer.storage, self.column, self.limits(decisions))
        totals: dict[str, tuple[int | str, int]] = {}
        for counts in context.engine.map(count, plan.tasks(), _size):
            for partition, oldest, number in counts:
                total = totals.get(partition, (oldest, 0))
                totals[partition] = (min(total[0], oldest), total[1] + number)
        ordered = sorted(totals, key=lambda partition: (totals[partition][0], partition))
        return [(partition, totals[partition][1]) for partition in ordered]

    def _plan(
        self, context: ExecutionContext, decisions: Sequence[TtlDecision], names: tuple[str, ...]
    ) -> ScanPlan:
        columns = tuple(dict.fromkeys((*names, self.column, PARTITION_PATH)))
        partitions = [decision.partition for decision in decisions]
        return plan_snapshot(context.snapshot, columns=columns, partitions=partitions)


def require_keys(config: TableConfig) -> None:
    """Raise InvalidError if a table has no record keys."""
    if not config.record_key_fields:
        refuse_keyless()


def pick_old(
    column: str, limits: Limits, names: Sequence[str], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """The old rows of a batch, with the named columns."""
    return batch.filter(_is_old(_times(batch, column), batch, limits)).select(list(names))


def count_old(
    storage: Storage, column: str, limits: Limits, plan: ScanPlan, token: WriteToken
) -> list[tuple[str, int | str, int]]:
    """Count the old rows of a scan; return partition, oldest time and number of rows."""
    counts: list[tuple[str, int | str, int]] = []
    for batch in read_slices(storage, plan):
        times = _times(batch, column)
        old = pa.table({"path": batch.column(PARTITION_PATH), "time": times})
        old = old.filter(_is_old(times, batch, limits))
        groups = old.group_by("path").aggregate([("time", "min"), ("time", "count")])
        names = ("path", "time_min", "time_count")
        counts += zip(*(groups.column(name).to_pylist() for name in names), strict=True)
    return counts


def _times(batch: pa.RecordBatch, column: str) -> pa.Array:
    """The time of each row; null if it is not known."""
    if column != COMMIT_TIME:
        return event_millis(batch.column(column), column)
    times = batch.column(column)
    times = pc.if_else(
        pc.match_substring_regex(times, _INSTANT_TIME), times, pa.scalar(None, pa.string())
    )
    # A time without milliseconds may be any time within that second: take the latest.
    latest = pc.binary_join_element_wise(times, "999", "")
    return pc.if_else(pc.equal(pc.utf8_length(times), _SECONDS_DIGITS), latest, times)


def _is_old(times: pa.Array, batch: pa.RecordBatch, limits: Limits) -> pa.Array:
    indexes = pc.index_in(batch.column(PARTITION_PATH), value_set=pa.array(list(limits)))
    limit = pa.array(list(limits.values()), times.type).take(indexes)
    return pc.fill_null(pc.less(times, limit), False)


def _size(plan: ScanPlan) -> int:
    return sum(item.size for item in plan.slices)
