"""Records of statistics: of one column in many files, or in many partitions."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakewright.errors import UnsupportedError
from lakewright.format.metadata_table.column_values import (
    StoredType,
    ValueType,
    WrappedValues,
    Wrapper,
    stored_type,
    wrap_values,
)
from lakewright.format.metadata_table.record_schema import COLUMN_STATS
from lakewright.model.metadata_keys import column_stats_keys, partition_stats_keys
from lakewright.model.metadata_partitions import IndexVersion, RecordType


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStatistics:
    """Statistics of one column in several places; each array has a value for each place.

    - `least` and `greatest` are bounds in the column's type; null says that there are no values,
      not that they are unknown, and readers pass over such a place;
    - `values` counts rows, those with nulls included;
    - `column_type` is None where there are no values to have a type: in a log file of deletes.
    """

    column: str
    column_type: pa.DataType | None
    least: pa.Array
    greatest: pa.Array
    values: pa.Array
    nulls: pa.Array
    total_sizes: pa.Array
    total_uncompressed_sizes: pa.Array


def file_statistics(
    statistics: ColumnStatistics, partitions: pa.Array, files: pa.Array, version: IndexVersion
) -> pa.Table:
    """Return the records of a column in some files.

    Args:
        statistics: the statistics of each file.
        partitions: the path of the partition of each file.
        files: the names of the files, without their folder.
        version: the version of the index.

    Raises:
        UnsupportedError: a column of this type has no statistics.
    """
    columns = pa.repeat(pa.scalar(statistics.column), len(files))
    keys = column_stats_keys(columns, partitions, files)
    return _records(statistics, keys, files, RecordType.COLUMN_STATS, version, is_tight=False)


def partition_statistics(
    statistics: ColumnStatistics, partitions: pa.Array, version: IndexVersion, *, is_tight: bool
) -> pa.Table:
    """Return the records of a column in some partitions.

    Args:
        statistics: the statistics of each partition.
        partitions: the paths of the partitions.
        version: the version of the index.
        is_tight: whether they are of all files of the partition; then they replace older ones, and
            otherwise they widen them.

    Raises:
        UnsupportedError: a column of this type has no statistics.
    """
    columns = pa.repeat(pa.scalar(statistics.column), len(partitions))
    keys = partition_stats_keys(columns, partitions)
    return _records(
        statistics, keys, partitions, RecordType.PARTITION_STATS, version, is_tight=is_tight
    )


def _records(
    statistics: ColumnStatistics,
    keys: pa.Array,
    places: pa.Array,
    kind: RecordType,
    version: IndexVersion,
    *,
    is_tight: bool,
) -> pa.Table:
    count = len(keys)
    stored = _stored(statistics, version)
    least, greatest = (
        _wrapped(values, stored) for values in (statistics.least, statistics.greatest)
    )
    value_type = stored.value_type if stored is not None else None
    if stored is None and version is IndexVersion.V2:
        value_type = ValueType.NULL
    columns = {
        "key": keys,
        "type": _same(int(kind), pa.int32(), count),
        "file_name": places.cast(pa.string()),
        "column_name": _same(statistics.column, pa.string(), count),
        "min_wrapper": least.wrappers,
        "min_value": least.values,
        "max_wrapper": greatest.wrappers,
        "max_value": greatest.values,
        "value_count": statistics.values.cast(pa.int64()),
        "null_count": statistics.nulls.cast(pa.int64()),
        "total_size": statistics.total_sizes.cast(pa.int64()),
        "total_uncompressed_size": statistics.total_uncompressed_sizes.cast(pa.int64()),
        "is_deleted": _same(False, pa.bool_(), count),
        "is_tight_bound": _same(is_tight, pa.bool_(), count),
        "value_type": _same(value_type, pa.int32(), count),
        "value_type_info": _same(stored.info if stored else None, pa.string(), count),
    }
    return pa.table([columns[name] for name in COLUMN_STATS.names], schema=COLUMN_STATS)


def _stored(statistics: ColumnStatistics, version: IndexVersion) -> StoredType | None:
    if statistics.column_type is None:
        return None
    stored = stored_type(statistics.column_type, version)
    if stored is None:
        raise UnsupportedError(
            "a column of this type has no statistics",
            column=statistics.column,
            type=str(statistics.column_type),
        )
    return stored


def _wrapped(values: pa.Array, stored: StoredType | None) -> WrappedValues:
    if stored is not None:
        return wrap_values(values, stored)
    count = len(values)
    return WrappedValues(_same(int(Wrapper.NULL), pa.int8(), count), _same(b"", pa.binary(), count))


def _same(value: object, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)
