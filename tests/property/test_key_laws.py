"""Laws of keys, hashes and partition paths."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lakewright.model.hashing import (
    bucket_of,
    java_string_hash,
    java_string_hashes,
    murmur_keys,
)
from lakewright.model.partition_paths import (
    DEFAULT_PARTITION,
    PartitionField,
    PartitionRule,
    escape,
    partition_paths,
    partition_values,
    unescape,
)
from lakewright.model.record_keys import (
    EMPTY_TEXT,
    NULL_TEXT,
    KeyRule,
    bucket_ids,
    hash_keys,
    java_double,
    java_float,
    record_keys,
)
from lakewright.testing.checksums import murmur2

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TEXTS = st.lists(st.none() | TEXT, max_size=20)
NAMES = st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True)
# What neither a key nor a path can be confused by.
TAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=",:/"), max_size=8
).filter(lambda text: text not in (NULL_TEXT, EMPTY_TEXT))


@given(TEXTS)
def test_a_column_is_hashed_like_its_values(texts: list[str | None]) -> None:
    hashes = java_string_hashes(pa.array(texts, pa.string()))
    assert hashes.tolist() == [0 if text is None else java_string_hash(text) for text in texts]


@given(st.lists(TEXT, max_size=20), st.integers(0, 2**32 - 1))
def test_prepared_keys_are_hashed_like_their_bytes(texts: list[str], seed: int) -> None:
    hashes = np.zeros(len(texts), np.int32)
    for group in murmur_keys(pa.array(texts, pa.string())):
        seeds = np.full(len(group.index), seed, np.uint32)
        hashes[group.index] = group.hash(seeds).view(np.int32)
    assert hashes.tolist() == [murmur2(text.encode(), seed) for text in texts]


@given(st.floats(allow_nan=False))
def test_a_double_is_read_back_from_its_text(value: float) -> None:
    assert float(java_double(value).replace("Infinity", "inf")) == value


@given(st.floats(width=32, allow_nan=False))
@example(9.80908925027372e-45)
def test_a_float_is_read_back_from_its_text(value: float) -> None:
    assert np.float32(java_float(value).replace("Infinity", "inf")) == np.float32(value)


@given(NAMES, st.data())
def test_a_record_key_contains_its_values(names: list[str], data: st.DataObject) -> None:
    values = data.draw(st.tuples(*(st.none() | TAME for _ in names)).filter(any))
    rows = pa.table({n: pa.array([v], pa.string()) for n, v in zip(names, values, strict=True)})
    (key,) = record_keys(rows, KeyRule(tuple(names), names_fields=True)).to_pylist()
    if len(names) > 1:
        assert hash_keys(key) == values
        assert hash_keys(key, names[1:]) == values[1:]
    else:
        assert hash_keys(key) == (key,)


@given(
    st.lists(st.text("ab:,_", max_size=12) | TEXT, max_size=12),
    NAMES,
    st.lists(st.sampled_from("abcde"), max_size=2),
    st.integers(1, 300),
)
def test_buckets_of_a_column_are_those_of_its_keys(
    keys: list[str], names: list[str], hashed: list[str], buckets: int
) -> None:
    rule = KeyRule(tuple(names), names_fields=True)
    ids = bucket_ids(pa.array(keys, pa.string()), rule, hashed, buckets)
    assert ids.tolist() == [bucket_of(hash_keys(key, hashed), buckets) for key in keys]


@given(TEXT)
def test_escaping_is_undone_and_leaves_a_single_folder(text: str) -> None:
    assert unescape(escape(text)) == text
    assert "/" not in escape(text)


@given(NAMES, st.booleans(), st.data())
def test_a_partition_path_contains_its_values(
    names: list[str], hive_style: bool, data: st.DataObject
) -> None:
    folders = TEXT.filter(lambda text: text != DEFAULT_PARTITION)
    values = data.draw(st.tuples(*(st.none() | folders for _ in names)))
    rows = pa.table({n: pa.array([v], pa.string()) for n, v in zip(names, values, strict=True)})
    rule = PartitionRule(
        tuple(PartitionField(name) for name in names), hive_style=hive_style, url_encoded=True
    )
    (path,) = partition_paths(rows, rule).to_pylist()
    parsed = partition_values(path, names, hive_style=hive_style, url_encoded=True)
    assert parsed == tuple(value or None for value in values)
