"""What records of one key become, beside what Hudi's own reader made of the same records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.metadata_table.column_values import (
    WrappedValues,
    Wrapper,
    type_of_stored,
    unwrap_values,
)
from lakewright.format.metadata_table.files import DeletedKeys
from lakewright.format.metadata_table.merging import merge_records
from lakewright.format.metadata_table.record_schema import (
    COLUMN_STATS,
    RECORD_COLUMNS,
    SECONDARY_INDEX,
    RecordKind,
)
from support.metadata_records import INT, LONG, TEXT, WIDENED, Widened, listing, stats

Listing = dict[str, dict[str, int]]


def deleted(*keys: str) -> DeletedKeys:
    return DeletedKeys(pa.array(keys, pa.string()))


def as_listing(records: pa.Table) -> Listing:
    return {
        record["key"]: {f["name"]: -1 if f["is_deleted"] else f["size"] for f in record["files"]}
        for record in records.to_pylist()
    }


UNITED: dict[str, tuple[list[pa.Table | DeletedKeys], Listing]] = {
    "nothing": ([], {}),
    "a file is added": ([listing(p={"a": 5}), listing(p={"b": 6})], {"p": {"a": 5, "b": 6}}),
    "the larger size counts": ([listing(p={"a": 5}), listing(p={"a": 3})], {"p": {"a": 5}}),
    "a file goes": ([listing(p={"a": 5}), listing(p={"a": -1})], {"p": {}}),
    "a file that is not there goes": ([listing(p={"a": -1})], {"p": {"a": -1}}),
    "a file goes twice": ([listing(p={"a": -1}), listing(p={"a": -1})], {"p": {"a": -1}}),
    "a file comes again": (
        [listing(p={"a": 5}), listing(p={"a": -1}), listing(p={"a": 2})],
        {"p": {"a": 2}},
    ),
    "a file comes after its delete": ([listing(p={"a": -1}), listing(p={"a": 2})], {"p": {"a": 2}}),
    "a file comes and goes": (
        [listing(p={"a": 5}), listing(p={"a": -1}), listing(p={"a": 2}), listing(p={"a": -1})],
        {"p": {}},
    ),
    "a partition goes": ([listing(p={"a": 5}, q={"a": 1}), deleted("p")], {"q": {"a": 1}}),
    "a partition comes again": (
        [listing(p={"a": 5}), deleted("p", "x"), listing(p={"b": 1})],
        {"p": {"b": 1}},
    ),
    "a delete of nothing": ([deleted("p"), deleted()], {}),
    "a partition without files": ([listing(p={}), listing(q={})], {"p": {}, "q": {}}),
    "the same name in two partitions": (
        [listing(p={"a": 5}, q={"a": 6}), listing(q={"a": -1})],
        {"p": {"a": 5}, "q": {}},
    ),
}


@pytest.mark.parametrize(("sources", "expected"), UNITED.values(), ids=list(UNITED))
def test_listings_are_united(sources: list[pa.Table | DeletedKeys], expected: Listing) -> None:
    assert as_listing(merge_records(RecordKind.FILES, sources)) == expected


@pytest.mark.parametrize(
    "kind", [RecordKind.BLOOM_FILTERS, RecordKind.RECORD_INDEX, RecordKind.SECONDARY_INDEX]
)
def test_of_other_records_the_newest_stays(kind: RecordKind) -> None:
    columns = RECORD_COLUMNS[kind]
    name = columns.names[1]
    mark = columns.field(name).type

    def records(value: int, *keys: str) -> pa.Table:
        rows = [{"key": key, name: pa.scalar(value).cast(mark).as_py()} for key in keys]
        return pa.Table.from_pylist(rows, columns)

    merged = merge_records(
        kind,
        [
            records(0, "a", "b", "c", "d"),
            records(1, "b", "c"),
            deleted("c", "d", "e"),
            records(1, "d", "f"),
        ],
    )
    found = {row["key"]: row[name] for row in merged.to_pylist()}
    new, old = (pa.scalar(value).cast(mark).as_py() for value in (1, 0))
    assert found == {"a": old, "b": new, "d": new, "f": new}
    assert merged.schema == columns


def test_records_without_older_ones_stay_as_they_are() -> None:
    records = pa.Table.from_pylist([{"key": "a", "is_deleted": False}], SECONDARY_INDEX)
    assert merge_records(RecordKind.SECONDARY_INDEX, [records]).equals(records)
    assert not len(merge_records(RecordKind.SECONDARY_INDEX, []))


# -- statistics


def merged(*records: dict[str, Any]) -> dict[str, Any]:
    sources = [pa.Table.from_pylist([record], COLUMN_STATS) for record in records]
    (found,) = merge_records(RecordKind.COLUMN_STATS, sources).to_pylist()
    return dict(found)


def bound(record: dict[str, Any], side: str) -> object:
    wrapper = Wrapper(record[f"{side}_wrapper"])
    if wrapper is Wrapper.NULL:
        return None
    stored = type_of_stored(wrapper, record["value_type"], record["value_type_info"])
    wrapped = WrappedValues(
        pa.array([int(wrapper)], pa.int8()), pa.array([record[f"{side}_value"]], pa.binary())
    )
    return unwrap_values(wrapped, stored)[0].as_py()


@pytest.mark.parametrize("case", WIDENED.values(), ids=list(WIDENED))
def test_bounds_are_widened(case: Widened) -> None:
    found = merged(case.older, case.newer)
    assert repr((bound(found, "min"), bound(found, "max"))) == repr((case.least, case.greatest))
    assert found["value_type"] == case.value_type
    counts = [found[name] for name in ("value_count", "null_count", "total_size")]
    assert counts == [20, 2, 200]
    assert found["total_uncompressed_size"] == 400
    assert not found["is_tight_bound"]


def test_tight_bounds_replace_all_older_ones() -> None:
    tight = stats(INT, 4, 4, is_tight_bound=True, value_count=3)
    assert merged(stats(INT, 1, 9), tight) == merged(tight) == tight
    after = merged(stats(INT, 1, 9), tight, stats(INT, 7, 8))
    assert (bound(after, "min"), bound(after, "max"), after["value_count"]) == (4, 8, 13)
    assert merged(stats(TEXT, "a", "b"), tight) == tight


def test_a_record_that_is_marked_as_deleted_replaces_and_is_replaced() -> None:
    gone = stats(INT, 1, 9, is_deleted=True)
    assert merged(stats(INT, 0, 5), gone) == gone
    assert merged(gone, stats(INT, 3, 4)) == stats(INT, 3, 4)
    assert merged(stats(INT, 0, 5), gone, stats(INT, 3, 4)) == stats(INT, 3, 4)


def test_of_other_fields_the_newest_stay() -> None:
    found = merged(stats(INT, 1, 2, file_name="old"), stats(INT, 1, 2, file_name="new", type=3))
    assert (found["file_name"], found["type"]) == ("new", 3)


def test_statistics_of_many_keys_are_widened_at_once() -> None:
    older = pa.Table.from_pylist(
        [
            stats(INT, n, n, key=f"k{n}") if n % 3 else stats(TEXT, "m", "m", key=f"k{n}")
            for n in range(90)
        ],
        COLUMN_STATS,
    )
    newer = pa.Table.from_pylist(
        [
            stats(INT, 50, 50, key=f"k{n}") if n % 3 else stats(TEXT, "n", "n", key=f"k{n}")
            for n in range(60)
        ],
        COLUMN_STATS,
    )
    found = {
        record["key"]: (bound(record, "min"), bound(record, "max"))
        for record in merge_records(RecordKind.COLUMN_STATS, [older, newer]).to_pylist()
    }
    for n in range(90):
        if n % 3:
            own = (n, n) if n >= 60 else (min(n, 50), max(n, 50))
        assert found[f"k{n}"] == (own if n % 3 else ("m", "m" if n >= 60 else "n"))


def test_a_value_of_another_type_has_no_place_in_the_newest() -> None:
    for older in (stats(TEXT, "a", "b"), stats(LONG, 2**40, 2**40)):
        with pytest.raises(UnsupportedError):
            merged(older, stats(INT, 1, 2))


def test_statistics_without_counts_are_damage() -> None:
    with pytest.raises(CorruptError):
        merged(stats(INT, 1, 2, null_count=None), stats(INT, 1, 2))
    # Nothing is to be added.
    assert merged(stats(INT, 1, 2, null_count=None))["null_count"] is None
