"""Combine statistics of one column in one place: a newer record widens an older one.

Hudi compares values in the order of Java's types (see `model/value_order.py`), and fails if a
record has another type than an older one. Here older values get the newest type, if they have a
place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.metadata_table.column_values import (
    StoredType,
    WrappedValues,
    Wrapper,
    known_type,
    unwrap_values,
    wrap_values,
)
from lakewright.model.value_order import value_ranks
from lakewright.utils.grouped_rows import GroupedRows, Numbers, reduce_spans, rows_of_spans

_COUNTS = ("value_count", "null_count", "total_size", "total_uncompressed_size")
_SIDES = ("min", "max")
_COMBINED = [
    *_COUNTS,
    *(f"{side}_{part}" for side in _SIDES for part in ("wrapper", "value")),
    "value_type",
    "value_type_info",
]


def widen(records: pa.Table, keys: Numbers) -> pa.Table:
    """Return one record for each key, from records in the order of their age.

    A record with tight bounds replaces all older ones, and so does one that is marked as deleted.

    Raises:
        UnsupportedError: an older value is of a type that does not become the newest one.
    """
    # Most keys have one record, which costs nothing.
    is_repeated = np.bincount(keys)[keys] > 1
    if not is_repeated.any():
        return records
    single = records.filter(pa.array(~is_repeated))
    repeated = records.filter(pa.array(is_repeated))
    return pa.concat_tables([single, _widened(repeated, keys[is_repeated])])


def _widened(records: pa.Table, keys: Numbers) -> pa.Table:
    groups = GroupedRows.of(keys)
    records = records.combine_chunks()
    is_tight, is_deleted = (
        np.asarray(records[name].combine_chunks())[groups.order]
        for name in ("is_tight_bound", "is_deleted")
    )
    begins = is_tight | is_deleted
    begins[1:] |= is_deleted[:-1]
    starts = np.maximum(groups.last_true(begins), groups.starts)
    newest = records.take(pa.array(groups.order[groups.ends - 1]))
    combined = starts < groups.ends - 1
    if not combined.any():
        return newest
    spans = (starts[combined], groups.ends[combined])
    ends = np.cumsum(spans[1] - spans[0])
    rows = records.select(_COMBINED).take(pa.array(groups.order[rows_of_spans(*spans)]))
    columns = _combined(rows, ends - (spans[1] - spans[0]), ends)
    mask = pa.array(combined)
    for name, values in columns.items():
        place = newest.schema.get_field_index(name)
        replaced = pc.replace_with_mask(newest[name].combine_chunks(), mask, values)
        newest = newest.set_column(place, newest.field(place), replaced)
    return newest


def _combined(rows: pa.Table, starts: Numbers, ends: Numbers) -> dict[str, pa.Array]:
    """Return the columns that differ from those of the newest record, one row for each span."""
    columns = {}
    for name in _COUNTS:
        if rows[name].null_count:
            raise CorruptError("statistics without counts cannot be combined", column=name)
        counts = np.asarray(rows[name].combine_chunks())
        columns[name] = pa.array(reduce_spans(np.add, counts, starts, ends))
    types = _RowTypes.of(rows)
    newest = types.newest(starts, ends)
    targets = np.repeat(newest, ends - starts)
    for side in _SIDES:
        values = types.converted(_wrapped(rows, side), targets)
        ranks = types.ranks(values, targets)
        chosen = pa.array(_chosen(ranks, starts, ends, greatest=side == "max"))
        columns[f"{side}_wrapper"] = values.wrappers.take(chosen)
        columns[f"{side}_value"] = values.values.take(chosen)
    last = pa.array(ends - 1)
    known = pa.array(newest >= 0)
    for name, stored in types.columns(newest).items():
        columns[name] = pc.if_else(known, stored, rows[name].combine_chunks().take(last))
    return columns


def _wrapped(rows: pa.Table, side: str) -> WrappedValues:
    wrappers, values = (rows[f"{side}_{part}"].combine_chunks() for part in ("wrapper", "value"))
    return WrappedValues(wrappers, values)


def _chosen(ranks: Numbers, starts: Numbers, ends: Numbers, *, greatest: bool) -> Numbers:
    """Return the row of each span with the least or the greatest rank, of equal ones the oldest.

    Rows without a value have rank -1; a span without any value has its last row.
    """
    count = len(ranks)
    places = np.arange(count)
    if greatest:
        marks = ranks * count + (count - 1 - places)
        best = reduce_spans(np.maximum, marks, starts, ends)
        return np.where(best >= 0, count - 1 - best % count, ends - 1)
    none = np.iinfo(np.int64).max
    marks = np.where(ranks >= 0, ranks * count + places, none)
    best = reduce_spans(np.minimum, marks, starts, ends)
    return np.where(best < none, best % count, ends - 1)


@dataclass(frozen=True, slots=True, eq=False)
class _RowTypes:
    """The types of the values of some rows; `numbers` is -1 where a row has no type."""

    types: list[StoredType]
    numbers: Numbers

    @classmethod
    def of(cls, rows: pa.Table) -> _RowTypes:
        wrappers = pc.max_element_wise(rows["min_wrapper"], rows["max_wrapper"])
        # In version 2 the wrapper follows from the type, and null values have none.
        is_v1 = pc.is_null(rows["value_type"])
        columns = {
            "wrapper": pc.if_else(is_v1, wrappers, pa.scalar(int(Wrapper.NULL), pa.int8())),
            "type": rows["value_type"],
            "info": rows["value_type_info"],
        }
        described = pa.table(columns)
        types: list[StoredType] = []
        numbers = np.full(rows.num_rows, -1)
        for kind in described.group_by(list(columns)).aggregate([]).to_pylist():
            stored = known_type(Wrapper(kind["wrapper"]), kind["type"], kind["info"])
            if stored is not None:
                numbers[_equal(described, kind)] = len(types)
                types.append(stored)
        return cls(types, numbers)

    def newest(self, starts: Numbers, ends: Numbers) -> Numbers:
        """Return the type of the newest row of each span that has one."""
        places = np.where(self.numbers >= 0, np.arange(len(self.numbers)), -1)
        last = reduce_spans(np.maximum, places, starts, ends)
        return np.where(last >= starts, self.numbers[last], -1)

    def converted(self, values: WrappedValues, targets: Numbers) -> WrappedValues:
        """Return values in other types."""
        wrappers, stored = values.wrappers, values.values
        differ = (self.numbers != targets) & (self.numbers >= 0)
        pairs = np.stack([self.numbers, targets], axis=1)[differ]
        for own, target in np.unique(pairs, axis=0).tolist():
            which = pa.array(differ & (self.numbers == own) & (targets == target))
            part = WrappedValues(wrappers.filter(which), stored.filter(which))
            found = _as_type(part, self.types[own], self.types[target])
            wrappers = pc.replace_with_mask(wrappers, which, found.wrappers)
            stored = pc.replace_with_mask(stored, which, found.values)
        return WrappedValues(wrappers, stored)

    def ranks(self, values: WrappedValues, targets: Numbers) -> Numbers:
        """Return the ranks of values among those of their type, -1 without a value."""
        has_value = np.asarray(values.wrappers) != Wrapper.NULL
        ranks = np.full(len(targets), -1)
        for target in np.unique(targets[has_value]).tolist():
            which = has_value & (targets == target)
            mask = pa.array(which)
            part = WrappedValues(values.wrappers.filter(mask), values.values.filter(mask))
            ranks[which] = value_ranks(unwrap_values(part, self.types[target]))
        return ranks

    def columns(self, numbers: Numbers) -> dict[str, pa.Array]:
        """Return how records name some types."""
        value_types = pa.array([stored.value_type for stored in self.types], pa.int32())
        infos = pa.array([stored.info for stored in self.types], pa.string())
        index = pa.array(numbers, mask=numbers < 0)
        return {"value_type": value_types.take(index), "value_type_info": infos.take(index)}


def _equal(rows: pa.Table, values: Mapping[str, object]) -> npt.NDArray[np.bool_]:
    which = np.ones(rows.num_rows, bool)
    for name, value in values.items():
        column = rows[name]
        same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
        which &= np.asarray(same)
    return which


def _as_type(values: WrappedValues, own: StoredType, target: StoredType) -> WrappedValues:
    plain = unwrap_values(values, own)
    try:
        return wrap_values(plain.cast(target.arrow), target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedError(
            "statistics with values of different types cannot be combined",
            older=str(own.arrow),
            newer=str(target.arrow),
        ) from error
