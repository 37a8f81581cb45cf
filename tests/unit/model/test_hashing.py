"""The hashes of the format; the expected values are those that Java and Hudi 1.2.0 gave."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakewright.model.hashing import (
    bucket_of,
    buckets_of,
    java_list_hash,
    java_string_hash,
    java_string_hashes,
    murmur_keys,
    xxh64,
)
from lakewright.testing.checksums import murmur2

# text: String.hashCode, Murmur with seeds 0 and -5
TEXTS = {
    "": (0, 0, 580903787),
    "a": (97, -1838653602, 455925132),
    "k00010": (-1185841468, 752426566, 2137669772),
    "ü€😀": (17318035, -589040864, 208716700),
    "12345678901234567": (-1437582535, -236135411, -1447146443),
    "0123456789" * 4: (1478511252, 748793347, 1400837549),
}
# signed bytes: Murmur with seeds 0 and 77
BYTES = {
    (): (0, -1641906793),
    (1,): (0, -1413677476),
    (-1,): (-1725167783, -1308435563),
    (1, 2): (1260776566, 121702657),
    (-1, -2): (553029938, -358145368),
    (1, 2, 3): (947344187, -1985348093),
    (-1, -2, -3): (992110096, -2016804919),
    (1, 2, 3, 4, -5, -6, -7): (-963181012, 1185525085),
    (1, 2, 3, 4, 5, -6): (1036354105, -469610678),
    (-128, 127, -128, 127, -128): (-1999707166, 532735628),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_hashes_of_java(text: str) -> None:
    assert (
        java_string_hash(text),
        murmur2(text.encode(), 0),
        murmur2(text.encode(), -5),
    ) == TEXTS[text]


@pytest.mark.parametrize("signed", BYTES)
def test_murmur_takes_its_last_bytes_as_signed(signed: tuple[int, ...]) -> None:
    data = bytes(byte % 256 for byte in signed)
    assert (murmur2(data, 0), murmur2(data, 77)) == BYTES[signed]


def test_half_a_character_is_hashed_as_java_does() -> None:
    assert java_string_hash("\ud800") == 0xD800


LISTS: dict[str, tuple[list[str | None], int]] = {
    "no values": ([], 1),
    "one empty value": ([""], 31),
    "one null": ([None], 31),
    "a letter": (["a"], 128),
    "two values": (["a", "b"], 31 * 128 + 98),
    "a hash below zero": (["k00010"], -1185841437),
}


@pytest.mark.parametrize(("values", "expected"), LISTS.values(), ids=list(LISTS))
def test_a_list_has_the_hash_of_java(values: list[str | None], expected: int) -> None:
    assert java_list_hash(values) == expected


def test_columns_are_hashed_like_single_values() -> None:
    texts = [*TEXTS, None, "x" * 1000, "\x00", *TEXTS]
    column = pa.array(texts, pa.string())
    expected = [0 if text is None else java_string_hash(text) for text in texts]
    assert java_string_hashes(column).tolist() == expected
    assert java_string_hashes(column.slice(3, 5)).tolist() == expected[3:8]
    assert java_string_hashes(column.slice(0, 0)).tolist() == []
    assert java_string_hashes(column.cast(pa.large_string())).tolist() == expected


def test_buckets_of_columns_are_those_of_single_keys() -> None:
    first = [*TEXTS, None, "x"]
    second = list(reversed(first))
    buckets = buckets_of([pa.array(first, pa.string()), pa.array(second, pa.string())], 7)
    pairs = zip(first, second, strict=True)
    assert buckets.tolist() == [bucket_of(pair, 7) for pair in pairs]
    assert set(buckets.tolist()) <= set(range(7))


def test_prepared_keys_have_the_same_murmur_hash_with_any_seed() -> None:
    texts = [*TEXTS, "a", "ab", "abc", "\x7f\x7f", "é"]
    for seed in (0, 1, 0x80000000, 0xFFFFFFFF):
        hashes = np.zeros(len(texts), np.int32)
        for group in murmur_keys(pa.array(texts)):
            seeds = np.full(len(group.index), seed, np.uint32)
            hashes[group.index] = group.hash(seeds).view(np.int32)
        assert hashes.tolist() == [murmur2(text.encode(), seed) for text in texts]


SEED = 0xFFFFFFFFDABADABA
# Those without a seed are of the reference implementation, the others of Hudi.
XXH64 = {
    (b"", 0): 0xEF46DB3751D8E999,
    (b"a", 0): 0xD24EC4F1A98C6E5B,
    (b"abc", 0): 0x44BC2CF5AD770999,
    (b"Nobody inspects the spammish repetition", 0): 0xFBCEA83C8A378BF1,
    (b"", SEED): 0x0D6FDE68D55B45DA,
    (b"v", SEED): 0x84F8F3057D4E2B93,
    (b"x" * 31, SEED): 0xFEB7C44F77D3D6B2,
    (b"x" * 32, SEED): 0x927317E0E2498F6F,
    (b"x" * 33, SEED): 0x7A5CE21E2982DDD3,
    (b"abcdefgh" * 9 + b"xyz", SEED): 0x10F3D88033290E58,
    (("ü€😀" * 20).encode(), SEED): 0xD1F098F4FDAD9EEE,
}


@pytest.mark.parametrize(("data", "seed"), XXH64)
def test_xxhash_is_that_of_its_authors(data: bytes, seed: int) -> None:
    assert xxh64(data, seed) == XXH64[data, seed]
