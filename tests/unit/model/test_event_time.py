"""Log versions split by event time: which go into the base file, and which remain in logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from lakewright.model.event_time import EventTimeThreshold, split_logs
from lakewright.model.merge import Deletes, Flags, MergeRule, Upserts
from lakewright.model.schema import RECORD_KEY

T = 1_000_000_000_000
SCHEMA = pa.schema([(RECORD_KEY, pa.string()), ("ts", pa.int64())])
RULE = MergeRule(("ts",))
CUT = EventTimeThreshold("ts", T + 10, in_order=True)


def rows(**times: int) -> Upserts:
    """Rows by key; times count from T."""
    columns = [pa.array(list(times)), pa.array([T + t for t in times.values()])]
    return Upserts(pa.table(columns, schema=SCHEMA))


def deletes(**times: int | None) -> Deletes:
    """Deletes by key, unconditional without a time."""
    ordering = pa.array([None if t is None else T + t for t in times.values()], pa.int64())
    return Deletes(pa.array(list(times)), (ordering,), ordering.is_null())


@dataclass(frozen=True)
class Case:
    """Blocks in order, and what they come to: rows by key, `-` before a key that is deleted."""

    blocks: list[Upserts | Deletes]
    taken: dict[str, int | None]
    remaining: dict[str, int | None]
    base: frozenset[str] = frozenset()
    buckets: bool = True


CASES = {
    "all before": Case([rows(a=1), rows(a=2)], {"a": 2}, {}),
    "all after": Case([rows(a=11), rows(a=12)], {}, {"a": 12}),
    "the best before, and the best": Case(
        [rows(a=3, b=4), rows(a=12)], {"a": 3, "b": 4}, {"a": 12}
    ),
    "a late one does not win": Case([rows(a=12), rows(a=3)], {"a": 3}, {"a": 12}),
    "a delete before": Case([rows(a=1), deletes(a=5)], {"-a": 5}, {}),
    "a delete after": Case([rows(a=1), deletes(a=15)], {"a": 1}, {"-a": 15}),
    "a row after a delete after": Case([deletes(a=15), rows(a=16)], {}, {"a": 16}),
    "a row before a delete after it": Case([deletes(a=15), rows(a=3)], {"a": 3}, {"-a": 15}),
    "an unconditional delete is applied": Case([rows(a=12), deletes(a=None)], {"-a": None}, {}),
    "an unconditional delete is not, where a row came back": Case(
        [deletes(a=None), rows(a=12)], {}, {"a": 12}
    ),
    "no version in the base file": Case([rows(a=12, b=3)], {"a": 12, "b": 3}, {}, buckets=False),
    "a version in the base file": Case(
        [rows(a=12, b=3)], {"b": 3}, {"a": 12}, frozenset("ab"), buckets=False
    ),
    "a version that gets into the base file": Case(
        [rows(a=3), rows(a=12)], {"a": 3}, {"a": 12}, buckets=False
    ),
    "a version that a delete takes out of the base file": Case(
        [deletes(a=3), rows(a=12)], {"a": 12}, {}, frozenset("a"), buckets=False
    ),
    "a row that came back stays where its base row stays": Case(
        [deletes(a=None), rows(a=12)], {}, {"a": 12}, frozenset("a"), buckets=False
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_versions_are_split(case: Case) -> None:
    def in_base(keys: pa.Array) -> Flags:
        return np.array([key.as_py() in case.base for key in keys], dtype=bool)

    split = split_logs(case.blocks, SCHEMA, RULE, CUT, None if case.buckets else in_base)
    for outcome, expected in ((split.to_merge, case.taken), (split.remaining, case.remaining)):
        versions = zip(outcome.keys.to_pylist(), outcome.deleted, outcome.ordering[0], strict=True)
        assert {
            f"-{key}" if deleted else key: None if not ts.is_valid else ts.as_py() - T
            for key, deleted, ts in versions
        } == expected


def test_the_rows_that_remain_are_those_of_late_events() -> None:
    split = split_logs([rows(a=3, b=4), rows(a=12)], SCHEMA, RULE, CUT)
    (batch,) = split.remain_logs_iterator()
    assert batch.to_pylist() == [{RECORD_KEY: "a", "ts": T + 12}]
