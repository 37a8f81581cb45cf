"""Keys of the records in the metadata table, for columns of values.

Keys of statistics and bloom filters are made of hashes: of a column and of a partition by 64 bits,
of a file name by 128 bits, each in Base64. So all keys of a column, and of a partition within it,
have a prefix of their own. Keys of a secondary index hold the value and the record key themselves.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import md5

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.model.hashing import xxh64
from lakewright.utils.arrow_rows import as_dictionary

# The record that lists the partitions of the table.
ALL_PARTITIONS = "__all_partitions__"
# What stands for the path of the table's own folder, if the table has no partitions.
UNPARTITIONED = "."

# Java widens the seed, a number of 32 bits, with its sign.
_SEED = 0xFFFFFFFF_DABADABA
_PARTITION_LEVEL = "__partition_stat__"
_SEPARATOR = "$"
# A value that is null; in other values this character has a backslash before it.
_NULL_VALUE = "\0"
_TO_ESCAPE = r"([\\$\x00])"
_SPLIT = r"(?s)^(?P<value>(?:[^\\$]|\\.)*)\$(?P<key>.*)$"


def partition_id(path: str) -> str:
    """Return how keys name a partition of the table: the table's own folder has a dot as name."""
    return path or UNPARTITIONED


def partition_path(name: str) -> str:
    """Return the path of a partition that keys name; the inverse of `partition_id`."""
    return "" if name == UNPARTITIONED else name


def column_id(column: str) -> str:
    """Return the part of a key that stands for a column; nested columns have dots in their names.

    All keys of column statistics and partition statistics of the column begin with it.
    """
    return _hash64(column)


def column_stats_keys(columns: pa.Array, partitions: pa.Array, files: pa.Array) -> pa.Array:
    """Return the keys of column statistics.

    Args:
        columns: names of columns.
        partitions: paths of partitions.
        files: names of files, without their folder.
    """
    return _joined(_mapped(columns, _hash64), _partition_ids(partitions), _mapped(files, _hash128))


def partition_stats_keys(columns: pa.Array, partitions: pa.Array) -> pa.Array:
    """Return the keys of partition statistics."""
    return _joined(_mapped(columns, _hash64), _partition_ids(partitions))


def bloom_filter_keys(partitions: pa.Array, files: pa.Array) -> pa.Array:
    """Return the keys of bloom filters of base files."""
    return _joined(_partition_ids(partitions), _mapped(files, _hash128))


def expression_partition_keys(columns: pa.Array, partitions: pa.Array) -> pa.Array:
    """Return the keys of the records of an expression index that describe whole partitions."""
    level = pa.scalar(_hash64(_PARTITION_LEVEL))
    return _joined(_mapped(columns, _hash64), level, _partition_ids(partitions))


def secondary_index_keys(values: pa.Array, record_keys: pa.Array) -> pa.Array:
    """Return the keys of a secondary index, from the text of the values, which may be null."""
    if record_keys.null_count:
        raise InvalidError("a record key is null")
    return _joined(_escaped(values), pa.scalar(_SEPARATOR), _escaped(record_keys))


def secondary_value_prefixes(values: pa.Array) -> pa.Array:
    """Return what the keys of a secondary index begin with, for each value, which may be null."""
    return _joined(_escaped(values), pa.scalar(_SEPARATOR))


def secondary_index_prefixes(keys: pa.Array) -> pa.Array:
    """Return the part of each key of a secondary index that all keys of its value begin with."""
    return _joined(_split(keys)[0], pa.scalar(_SEPARATOR))


def split_secondary_index_keys(keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return values and record keys; the inverse of `secondary_index_keys`."""
    values, record_keys = _split(keys)
    is_null = pc.equal(values, _NULL_VALUE)
    return (
        pc.if_else(is_null, pa.scalar(None, pa.string()), _unescaped(values)),
        _unescaped(record_keys),
    )


def _split(keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    parts = pc.extract_regex(keys, _SPLIT)
    if parts.null_count:
        raise CorruptError("a key of a secondary index has no value")
    values, record_keys = parts.flatten()
    return values, record_keys


def _escaped(values: pa.Array) -> pa.Array:
    escaped = pc.replace_substring_regex(values.cast(pa.string()), _TO_ESCAPE, r"\\\1")
    return pc.fill_null(escaped, _NULL_VALUE)


def _unescaped(texts: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(texts, r"(?s)\\(.)", r"\1")


def _partition_ids(partitions: pa.Array) -> pa.Array:
    return _mapped(partitions, lambda path: _hash64(partition_id(path)))


def _mapped(column: pa.Array, function: Callable[[str], str]) -> pa.Array:
    """Call a function for each distinct value."""
    coded = as_dictionary(column)
    if coded.null_count:
        raise InvalidError("a key of the metadata table has no value for one of its parts")
    texts = pa.array(map(function, coded.dictionary.to_pylist()), pa.string())
    return texts.take(coded.indices)


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _hash64(text: str) -> str:
    return b64encode(xxh64(text.encode(), _SEED).to_bytes(8, "big")).decode()


def _hash128(text: str) -> str:
    return b64encode(md5(text.encode(), usedforsecurity=False).digest()).decode()
