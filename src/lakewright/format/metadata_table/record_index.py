"""Records of the record index: where each record key is.

A file id that is a UUID with a number is stored as three numbers, any other one as text. The format
demands the time of the instant that placed a row in milliseconds, which readers turn back into an
instant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.metadata_table.record_schema import RECORD_INDEX
from lakewright.utils.arrow_rows import as_dictionary
from lakewright.utils.grouped_rows import distinct_rows

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_FILE_ID = re.compile(rf"({_UUID})(?:-(0|[1-9][0-9]{{0,8}}))?")
_AS_UUID, _AS_TEXT = 0, 1
# The number of a file id that has none, and the numbers beside a file id that is stored as text.
_NO_INDEX = _NO_BITS = -1
_LONG = 1 << 64
_FILE_ID_COLUMNS = pa.schema(
    [
        RECORD_INDEX.field(name)
        for name in ("file_id_high", "file_id_low", "file_index", "file_id", "file_id_encoding")
    ]
)


def record_locations(
    keys: pa.Array, partitions: pa.Array, file_ids: pa.Array, instants_ms: pa.Array
) -> pa.Table:
    """Return the records of a record index.

    Args:
        keys: the record keys.
        partitions: the path of the partition of each key, empty in a table without partitions.
        file_ids: the id of the file group of each key; like the partitions, they may be dictionary
            arrays.
        instants_ms: the requested time of the instant that placed each key, in milliseconds
            (`epoch_ms`). Hudi takes the zone of its process for this, whatever that of the table.
    """
    ids, places = _coded(file_ids), _coded(partitions)
    stored = [_stored(file_id) for file_id in ids.dictionary.to_pylist()]
    names = [column.name for column in _FILE_ID_COLUMNS]
    by_id = [dict(zip(names, numbers, strict=True)) for numbers in stored]
    located = pa.Table.from_pylist(by_id, schema=_FILE_ID_COLUMNS).take(ids.indices)
    columns = {
        **{name: located[name] for name in names},
        "key": keys.cast(pa.string()),
        "partition": places.dictionary.cast(pa.string()).take(places.indices),
        "instant_ms": instants_ms.cast(pa.int64()),
        "position": pa.nulls(len(keys), pa.int64()),
    }
    return pa.table([columns[name] for name in RECORD_INDEX.names], schema=RECORD_INDEX)


def file_ids_of(records: pa.Table) -> pa.DictionaryArray:
    """Return the file ids in the records of a record index."""
    names = _FILE_ID_COLUMNS.names
    batch = records.select(names).combine_chunks().to_batches()
    if not batch:
        return pa.array([], pa.string()).dictionary_encode()
    distinct, numbers = distinct_rows(batch[0], names)
    texts = [_file_id(row) for row in distinct.to_pylist()]
    return pa.DictionaryArray.from_arrays(
        pa.array(numbers.astype(np.int32)), pa.array(texts, pa.string())
    )


def _coded(column: pa.Array) -> pa.DictionaryArray:
    coded = as_dictionary(column)
    if coded.null_count:
        raise InvalidError("a row is in no partition or no file group")
    return coded


def _stored(file_id: str) -> tuple[int, int, int, str, int]:
    match = _FILE_ID.fullmatch(file_id)
    if match is None:
        return _NO_BITS, _NO_BITS, _NO_INDEX, file_id, _AS_TEXT
    bits = int(match[1].replace("-", ""), 16)
    high, low = _signed(bits >> 64), _signed(bits & (_LONG - 1))
    return high, low, _NO_INDEX if match[2] is None else int(match[2]), "", _AS_UUID


def _file_id(row: Mapping[str, Any]) -> str:
    if row["file_id_encoding"] != _AS_UUID:
        if row["file_id"] is None:
            raise CorruptError("a record of the record index names no file group", **row)
        return str(row["file_id"])
    if row["file_id_high"] is None or row["file_id_low"] is None or row["file_index"] is None:
        raise CorruptError("a record of the record index names no file group", **row)
    bits = (row["file_id_high"] % _LONG) << 64 | row["file_id_low"] % _LONG
    digits = f"{bits:032x}"
    ends = (0, 8, 12, 16, 20, 32)
    uuid = "-".join(digits[start:end] for start, end in pairwise(ends))
    return uuid if row["file_index"] == _NO_INDEX else f"{uuid}-{row['file_index']}"


def _signed(bits: int) -> int:
    return bits - _LONG if bits >= _LONG // 2 else bits
