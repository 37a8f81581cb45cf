"""Key range and bloom filter of a base file, in the key-value metadata of its parquet footer."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.bloom_filter import (
    BloomFilter,
    BloomSettings,
    BloomType,
    bloom_of_all_keys,
    build_bloom,
    format_bloom,
    parse_bloom,
)
from lakewright.utils.arrow_rows import as_array

_BLOOM = "org.apache.hudi.bloomfilter"
_BLOOM_TYPE = "hoodie_bloom_filter_type_code"
_MIN_KEY = "hoodie_min_record_key"
_MAX_KEY = "hoodie_max_record_key"

# Hudi compares keys as UTF-16 in some places and as UTF-8 in others. The two orders differ only
# between texts that both have characters from here on: a bound without one holds in both orders.
_ORDERS_DIFFER_FROM = "\ud800"


@dataclass(frozen=True, slots=True)
class BaseFileFooter:
    """The record key range and the bloom filter of a base file; None where it has none."""

    min_key: str | None = None
    max_key: str | None = None
    bloom: bytes | None = None
    bloom_type: BloomType = BloomType.SIMPLE

    def bloom_filter(self) -> BloomFilter | None:
        """Return the parsed bloom filter."""
        return None if self.bloom is None else parse_bloom(self.bloom, self.bloom_type)

    def in_range(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """For each key, whether it may be in the file's key range; False is certain."""
        if (
            self.min_key is None
            or self.max_key is None
            or not _valid_in_every_order(self.min_key, self.max_key)
        ):
            return np.ones(len(keys), bool)
        above = pc.greater_equal(keys, self.min_key)
        return np.asarray(pc.and_(above, pc.less_equal(keys, self.max_key)))

    def range_in(self, ascending: pa.Array) -> tuple[int, int]:
        """Return where the keys that may be in the file start and end, of keys in their order."""
        if (
            self.min_key is None
            or self.max_key is None
            or not _valid_in_every_order(self.min_key, self.max_key)
        ):
            return 0, len(ascending)
        # Texts compare in Python as their UTF-8 bytes do in Arrow.
        start = bisect_left(ascending, self.min_key, key=_text)
        return start, bisect_right(ascending, self.max_key, lo=start, key=_text)

    def may_contain(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """For each key, whether the file may hold it; False is certain."""
        possible = self.in_range(keys)
        bloom = self.bloom_filter()
        if bloom is None or not possible.any():
            return possible
        possible = possible.copy()
        possible[possible] = bloom.may_contain(keys.filter(pa.array(possible)))
        return possible


@dataclass
class FooterBuilder:
    """Collects the record keys of a base file, in their order, for its footer.

    Without `settings` the footer gets a filter that may contain any key, and the keys are not kept.
    """

    settings: BloomSettings | None
    _keys: list[pa.Array] = field(default_factory=list)
    _bounds: tuple[str, str] | None = None

    def add(self, keys: pa.ChunkedArray) -> None:
        """Add the next keys of the file."""
        if keys.null_count:
            raise InvalidError("a record key is null")
        if not len(keys):
            return
        found = pc.min_max(keys).as_py()
        low, high = self._bounds or (found["min"], found["max"])
        self._bounds = min(low, found["min"]), max(high, found["max"])
        if self.settings is not None:
            self._keys += keys.chunks

    def metadata(self) -> dict[str, str]:
        """Return the key-value metadata of the footer."""
        bloom = bloom_of_all_keys()
        if self.settings is not None:
            keys = as_array(pa.chunked_array(self._keys, pa.string()))
            bloom = build_bloom(keys, self.settings)
        metadata = {_BLOOM: base64.b64encode(format_bloom(bloom)).decode("ascii")}
        if bloom.kind is not BloomType.SIMPLE:
            metadata[_BLOOM_TYPE] = bloom.kind.value
        if self._bounds is not None and _valid_in_every_order(*self._bounds):
            metadata |= {_MIN_KEY: self._bounds[0], _MAX_KEY: self._bounds[1]}
        return metadata


def footer_metadata(keys: pa.Array, settings: BloomSettings | None) -> dict[str, str]:
    """Return the footer metadata of a base file that holds these record keys, in this order."""
    builder = FooterBuilder(settings)
    builder.add(pa.chunked_array([keys]))
    return builder.metadata()


def parse_footer(metadata: Mapping[bytes, bytes] | None) -> BaseFileFooter:
    """Parse the footer metadata of a base file; what it does not record is None."""
    values = metadata or {}
    stored = values.get(_BLOOM.encode())
    try:
        bloom = None if stored is None else base64.b64decode(stored, validate=True)
        kind = values.get(_BLOOM_TYPE.encode(), b"SIMPLE").decode()
        low, high = (values[key].decode() if key in values else None for key in _bound_keys())
    except (binascii.Error, ValueError) as error:
        raise CorruptError("the footer of a base file is damaged", cause=str(error)) from error
    if kind not in list(BloomType):
        raise UnsupportedError("a base file has an unknown kind of bloom filter", kind=kind)
    return BaseFileFooter(low, high, bloom, BloomType(kind))


def _text(value: pa.Scalar) -> str:
    text: str = value.as_py()
    return text


def _valid_in_every_order(*bounds: str) -> bool:
    """Whether these are bounds in every key order that readers and writers use."""
    return max("".join(bounds), default="") < _ORDERS_DIFFER_FROM


def _bound_keys() -> tuple[bytes, bytes]:
    return _MIN_KEY.encode(), _MAX_KEY.encode()
