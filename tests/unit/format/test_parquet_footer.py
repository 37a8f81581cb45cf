"""The footer of a base file: its bloom filter and range of record keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.bloom_filter import BloomSettings, BloomType
from lakewright.format.parquet_footer import BaseFileFooter, footer_metadata, parse_footer
from support.golden import GoldenTables

KEYS = pa.array(["b", "a", "ü", "c"])


def stored(settings: BloomSettings, keys: pa.Array = KEYS) -> dict[bytes, bytes]:
    return {k.encode(): v.encode() for k, v in footer_metadata(keys, settings).items()}


def test_a_footer_is_the_one_that_real_hudi_writes(golden: GoldenTables) -> None:
    files = sorted(golden["cow_basic"].rglob("*.parquet"))
    assert files
    for file in files:
        keys = pq.ParquetFile(file).read(["_hoodie_record_key"]).column(0).combine_chunks()
        metadata = pq.read_metadata(file).metadata
        ours = stored(BloomSettings(), keys)
        assert {key: metadata[key] for key in ours} == ours
        footer = parse_footer(metadata)
        assert footer.bloom_type is BloomType.DYNAMIC
        assert footer.may_contain(keys).all()
        assert not footer.may_contain(pa.array(["nobody", "k00000x"])).any()


@pytest.mark.parametrize("kind", list(BloomType))
def test_what_is_written_is_read(kind: BloomType) -> None:
    footer = parse_footer(stored(BloomSettings(kind, 100)))
    assert (footer.min_key, footer.max_key) == ("a", "ü")
    assert footer.bloom_type is kind
    assert footer.may_contain(pa.array(["a", "nobody", "ü", "z"])).tolist() == [
        True,
        False,
        True,
        False,
    ]


def test_a_file_without_rows_has_no_range() -> None:
    footer = parse_footer(stored(BloomSettings(entries=10), pa.array([], pa.string())))
    assert (footer.min_key, footer.max_key) == (None, None)
    assert not footer.may_contain(KEYS).any()


def test_a_footer_without_keys_may_contain_every_key() -> None:
    assert parse_footer(None) == parse_footer({b"other": b"x"}) == BaseFileFooter()
    assert BaseFileFooter().bloom_filter() is None
    assert BaseFileFooter().may_contain(KEYS).all()


def test_a_range_alone_can_exclude_keys() -> None:
    footer = BaseFileFooter("b", "c")
    assert footer.may_contain(KEYS).tolist() == [True, False, False, True]


# Below and above in UTF-16, the other way round in UTF-8.
SMILE, WIDE_A = "\U0001f600", "\uff21"
RANGES: dict[str, tuple[list[str], tuple[str, str] | None]] = {
    "characters below the surrogates have one order": (
        ["ü", "a", "\ud7ff"],
        ("a", "\ud7ff"),
    ),
    "between the bounds every character will do": (
        ["a", f"b{SMILE}", f"b{WIDE_A}", "c"],
        ("a", "c"),
    ),
    "no range if the highest key depends on the order": (["a", SMILE, WIDE_A], None),
    "no range if the lowest key depends on the order": ([f"a{SMILE}", f"a{WIDE_A}", "b"], None),
    "no range if another key may make it depend on the order": (["a", WIDE_A], None),
}


@pytest.mark.parametrize(("keys", "expected"), RANGES.values(), ids=list(RANGES))
def test_only_a_range_that_holds_in_both_orders_is_written(
    keys: list[str], expected: tuple[str, str] | None
) -> None:
    footer = parse_footer(stored(BloomSettings(), pa.array(keys)))
    assert (footer.min_key, footer.max_key) == (expected or (None, None))
    assert footer.may_contain(pa.array(keys)).all()
    if expected:
        by_java = sorted(keys, key=lambda key: key.encode("utf-16-be"))
        assert (by_java[0], by_java[-1]) == expected


FOREIGN: dict[str, tuple[BaseFileFooter, list[bool]]] = {
    "written in the order of UTF-16": (BaseFileFooter(SMILE, WIDE_A), [True] * 4),
    "written in the order of UTF-8": (BaseFileFooter(WIDE_A, SMILE), [True] * 4),
    "the lowest key is certain alone": (BaseFileFooter("b", SMILE), [True] * 4),
    "both are certain": (BaseFileFooter("b", "c"), [False, False, False, True]),
}


@pytest.mark.parametrize(("footer", "expected"), FOREIGN.values(), ids=list(FOREIGN))
def test_a_range_excludes_keys_only_if_it_would_in_both_orders(
    footer: BaseFileFooter, expected: list[bool]
) -> None:
    keys = pa.array([SMILE, WIDE_A, "a", f"b{SMILE}"])
    assert footer.in_range(keys).tolist() == footer.may_contain(keys).tolist() == expected


DAMAGED: dict[str, tuple[dict[bytes, bytes], type[Exception]]] = {
    "a filter that is not Base64": ({b"org.apache.hudi.bloomfilter": b"*"}, CorruptError),
    "a key that is not text": ({b"hoodie_min_record_key": b"\xff"}, CorruptError),
    "an unknown kind of filter": ({b"hoodie_bloom_filter_type_code": b"NEW"}, UnsupportedError),
}


@pytest.mark.parametrize(("metadata", "error"), DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_footer_is_an_error(metadata: dict[bytes, bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        parse_footer(metadata)


def test_a_damaged_filter_is_an_error_when_it_is_used() -> None:
    footer = parse_footer({b"org.apache.hudi.bloomfilter": b"AAAA"})
    with pytest.raises(CorruptError):
        footer.may_contain(KEYS)
