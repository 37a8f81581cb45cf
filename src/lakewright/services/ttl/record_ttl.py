"""Rows that are older than a policy of level RECORD allows: where they are, and which they are.

Their age is counted from the table's event time, or else from the write that brought them. A row
without a time is never old. Which partitions have old rows only their files tell: they are counted
first, as there may be many partitions and few of them take part in one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.clock import zone_of
from lakewright.model.event_time import event_millis
from lakewright.model.instant import parse_time
from lakewright.model.schema import COMMIT_TIME, META_COLUMNS, PARTITION_PATH, select_fields
from lakewright.model.table_config import MergeMode, TableConfig
from lakewright.model.ttl import refuse_keyless
from lakewright.scan.planner import plan_snapshot
from lakewright.scan.scan_plan import ScanPlan
from lakewright.scan.slice_reader import read_slices
from lakewright.services.base import ExecutionContext
from lakewright.services.ttl.planner import TtlDecision
from lakewright.storage.base import Storage
from lakewright.write.options import write_settings
from lakewright.write.task import WriteToken
from lakewright.write.writer import RowSource

_TIME = r"^[0-9]{14}([0-9]{3})?$"
_SECONDS_DIGITS = 14

Limits = Mapping[str, int | str]
"""The time before which rows are old, by partition: milliseconds, or digits of the timeline."""


@dataclass(frozen=True)
class RecordTtl:
    """What the age of a table's rows is counted from."""

    config: TableConfig
    column: str

    @classmethod
    def for_table(cls, job: ExecutionContext) -> RecordTtl:
        """InvalidError if rows of the table cannot be deleted one by one."""
        config = job.snapshot.config
        require_keys(config)
        return cls(config, write_settings(config, job.options).event_time or COMMIT_TIME)

    @property
    def is_ordered(self) -> bool:
        """Whether a delete competes by order: a newer version that comes meanwhile then stays."""
        by_event = self.config.merge_mode is MergeMode.EVENT_TIME
        return by_event and bool(self.config.ordering_fields)

    def limits(self, verdicts: Iterable[TtlDecision]) -> Limits:
        """From when on rows are young enough, by partition."""
        told = {v.partition: v.rows_before for v in verdicts if v.rows_before is not None}
        if self.column == COMMIT_TIME:
            return told
        zone = zone_of(self.config.timeline_zone)
        return {p: int(parse_time(at, zone).timestamp() * 1000) for p, at in told.items()}

    def rows(self, job: ExecutionContext, verdicts: Sequence[TtlDecision]) -> RowSource:
        """The old rows of partitions, with the columns that tell them from others."""
        fields = (*self.config.record_key_fields, *self.config.partition_fields)
        ordering = self.config.ordering_fields if self.is_ordered else ()
        names = dict.fromkeys(name.split(".")[0] for name in (*fields, *ordering))
        plan = self._plan(job, verdicts, tuple(names))
        schema = select_fields(plan.schema, [n for n in names if n not in META_COLUMNS])
        pick = partial(pick_old, self.column, self.limits(verdicts), tuple(schema.names))
        return job.engine.scan(job.writer.storage, plan).map_batches(pick, schema)

    def counts(
        self, job: ExecutionContext, verdicts: Sequence[TtlDecision]
    ) -> list[tuple[str, int]]:
        """The partitions that have old rows, and how many; that with the oldest one first."""
        plan = self._plan(job, verdicts, ())
        count = partial(count_old, job.writer.storage, self.column, self.limits(verdicts))
        found: dict[str, tuple[int | str, int]] = {}
        for answer in job.engine.map(count, plan.tasks(), _size):
            for partition, oldest, number in answer:
                known = found.get(partition, (oldest, 0))
                found[partition] = (min(known[0], oldest), known[1] + number)
        ordered = sorted(found, key=lambda partition: (found[partition][0], partition))
        return [(partition, found[partition][1]) for partition in ordered]

    def _plan(
        self, job: ExecutionContext, verdicts: Sequence[TtlDecision], names: tuple[str, ...]
    ) -> ScanPlan:
        columns = tuple(dict.fromkeys((*names, self.column, PARTITION_PATH)))
        partitions = [verdict.partition for verdict in verdicts]
        return plan_snapshot(job.snapshot, columns=columns, partitions=partitions)


def require_keys(config: TableConfig) -> None:
    """InvalidError if rows of a table cannot be told from each other."""
    if not config.record_key_fields:
        refuse_keyless()


def pick_old(
    column: str, limits: Limits, names: Sequence[str], batch: pa.RecordBatch
) -> pa.RecordBatch:
    """The rows of a batch that are too old, and of their columns those with these names."""
    return batch.filter(_is_old(_times(batch, column), batch, limits)).select(list(names))


def count_old(
    storage: Storage, column: str, limits: Limits, plan: ScanPlan, token: WriteToken
) -> list[tuple[str, int | str, int]]:
    """Partition, oldest time and number of the rows of a query that are too old."""
    found: list[tuple[str, int | str, int]] = []
    for batch in read_slices(storage, plan):
        times = _times(batch, column)
        old = pa.table({"path": batch.column(PARTITION_PATH), "time": times})
        old = old.filter(_is_old(times, batch, limits))
        groups = old.group_by("path").aggregate([("time", "min"), ("time", "count")])
        names = ("path", "time_min", "time_count")
        found += zip(*(groups.column(name).to_pylist() for name in names), strict=True)
    return found


def _times(batch: pa.RecordBatch, column: str) -> pa.Array:
    """When each row is from; null if that is not known."""
    if column != COMMIT_TIME:
        return event_millis(batch.column(column), column)
    times = batch.column(column)
    times = pc.if_else(pc.match_substring_regex(times, _TIME), times, pa.scalar(None, pa.string()))
    # A time without milliseconds may be any in that second.
    late = pc.binary_join_element_wise(times, "999", "")
    return pc.if_else(pc.equal(pc.utf8_length(times), _SECONDS_DIGITS), late, times)


def _is_old(times: pa.Array, batch: pa.RecordBatch, limits: Limits) -> pa.Array:
    known = pc.index_in(batch.column(PARTITION_PATH), value_set=pa.array(list(limits)))
    limit = pa.array(list(limits.values()), times.type).take(known)
    return pc.fill_null(pc.less(times, limit), False)


def _size(plan: ScanPlan) -> int:
    return sum(item.size for item in plan.slices)
