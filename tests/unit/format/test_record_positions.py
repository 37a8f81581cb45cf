"""Record positions: Roaring bitmaps with all three kinds of containers, judged by pyroaring."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest
from pyroaring import BitMap64

from lakewright.errors import CorruptError
from lakewright.format.log_block import BlockKind, Header, LogBlock, parse_blocks
from lakewright.format.record_positions import (
    RecordPositions,
    format_positions,
    parse_positions,
    record_positions,
)
from support.golden import GoldenTables

MANY = 1 << 20
SHAPES = {
    "nothing": [],
    "one": [0],
    "a few": [1, 2, 5, 65_535],
    "two containers": [7, 65_536],
    "as many as a list holds": list(range(0, 8192, 2)),
    "one more than a list holds": list(range(0, 8194, 2)),
    "a full container": list(range(65_536)),
    "a run": list(range(1000, 3000)),
    "runs in one container": [*range(100, 300), *range(5000, 9000)],
    "runs in many containers": [n + c * 65_536 for c in range(6) for n in range(500)],
    "all kinds": [
        *range(10, 5000),
        *range(65_536, 131_072, 3),
        *(131_072 + n for n in (1, 5, 9)),
    ],
    "beyond 32 bits": [3, 1 << 32, (1 << 32) + 65_536, (1 << 40) + 5],
    "the last one": [(1 << 64) - 1],
}


@pytest.mark.parametrize("values", SHAPES.values(), ids=list(SHAPES))
def test_positions_come_back_and_pyroaring_agrees(values: list[int]) -> None:
    text = format_positions(np.array(values, np.uint64))
    assert parse_positions(text, len(values)).tolist() == values
    assert list(BitMap64.deserialize(base64.b64decode(text))) == values


@pytest.mark.parametrize("values", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize("runs", [False, True], ids=["as it is", "with runs"])
def test_what_pyroaring_writes_is_read(values: list[int], runs: bool) -> None:
    bitmap = BitMap64(values)
    if runs:
        bitmap.run_optimize()
    text = base64.b64encode(bitmap.serialize()).decode()
    assert parse_positions(text, len(values)).tolist() == values


def test_positions_of_real_hudi_are_written_back_the_same(golden: GoldenTables) -> None:
    blocks = 0
    for file in golden["mor_positions"].glob("2026*/.*.log.*"):
        if file.name.endswith(".crc"):
            continue
        for block in parse_blocks(file.read_bytes(), file_name=file.name):
            parsed = record_positions(block, MANY)
            assert parsed is not None
            headers = parsed.headers()
            assert headers == {key: block.headers[key] for key in headers}
            blocks += 1
    assert blocks


def test_a_block_without_both_headers_has_no_positions() -> None:
    text = format_positions(np.array([1], np.uint64))
    for headers in (
        {Header.INSTANT_TIME: "1"},
        {Header.INSTANT_TIME: "1", Header.RECORD_POSITIONS: text},
        {Header.INSTANT_TIME: "1", Header.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS: "0"},
    ):
        assert record_positions(LogBlock(BlockKind.AVRO, headers, memoryview(b"")), 1) is None


def test_an_error_of_a_damaged_header_names_its_block() -> None:
    headers = RecordPositions("0", np.array([1], np.uint64)).headers()
    headers[Header.RECORD_POSITIONS] = "*"
    block = LogBlock(BlockKind.AVRO, headers, memoryview(b""), 7, "a.log")
    with pytest.raises(CorruptError) as caught:
        record_positions(block, 1)
    assert caught.value.facts["file_name"] == "a.log"


def bitmap(*parts: bytes, buckets: int = 1, high: int = 0) -> bytes:
    return struct.pack("<QI", buckets, high) + b"".join(parts)


PLAIN = struct.pack("<II", 12346, 1)
ONE_RUN = struct.pack("<IB", 12347, 1)
GOOD = bitmap(PLAIN, struct.pack("<HHIHH", 0, 1, 16, 3, 9))
DAMAGED = {
    "nothing": b"",
    "half a count": b"\x01\x00",
    "an absurd number of buckets": bitmap(GOOD[12:], buckets=1 << 60),
    "fewer buckets than there are": bitmap(GOOD[12:], buckets=0),
    "another cookie": bitmap(struct.pack("<II", 12345, 1)),
    "an absurd number of containers": bitmap(struct.pack("<II", 12346, 1 << 31)),
    "a container that is not there": bitmap(PLAIN),
    "a list that is cut off": GOOD[:-1],
    "bytes after the end": GOOD + b"\x00",
    "a list that does not ascend": bitmap(PLAIN, struct.pack("<HHIHH", 0, 1, 16, 9, 3)),
    "a list with a value twice": bitmap(PLAIN, struct.pack("<HHIHH", 0, 1, 16, 9, 9)),
    "a run over the end": bitmap(ONE_RUN, struct.pack("<HHHHH", 0, 9, 1, 65_530, 9)),
    "a run of another length": bitmap(ONE_RUN, struct.pack("<HHHHH", 0, 5, 1, 0, 9)),
    "a bitmap with another number of bits": bitmap(
        PLAIN, struct.pack("<HHI", 0, 5000, 16), b"\x01" * 8192
    ),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=list(DAMAGED))
def test_damaged_positions_are_an_error(data: bytes) -> None:
    with pytest.raises(CorruptError):
        parse_positions(base64.b64encode(data).decode(), MANY)


def test_text_that_is_no_base64_is_an_error() -> None:
    for text in ("*", "AQ", "ü", "AAA\nA"):
        with pytest.raises(CorruptError):
            parse_positions(text, MANY)


def test_the_good_one_among_the_damaged_is_good() -> None:
    assert parse_positions(base64.b64encode(GOOD).decode(), 2).tolist() == [3, 9]


def test_more_positions_than_records_are_not_expanded() -> None:
    """Some kilobytes of runs stand for 2^32 positions: 32 GB, if they were expanded first."""
    containers = 1 << 16
    bits = np.packbits(np.ones(containers, np.uint8)).tobytes()
    keys = np.stack([np.arange(containers), np.full(containers, 65_535)], axis=1).astype("<u2")
    runs = struct.pack("<HHH", 1, 0, 65_535) * containers
    head = struct.pack("<I", 12347 | (containers - 1) << 16)
    data = bitmap(head, bits, keys.tobytes(), bytes(4 * containers), runs)
    with pytest.raises(CorruptError, match="more record positions than records") as caught:
        parse_positions(base64.b64encode(data).decode(), MANY)
    assert caught.value.facts == {"claimed": 1 << 32, "limit": MANY}


def test_the_bound_is_on_all_buckets_together() -> None:
    text = format_positions(np.array([1, 2, 1 << 32, 1 << 33], np.uint64))
    assert len(parse_positions(text, 4)) == 4
    with pytest.raises(CorruptError, match="more record positions than records"):
        parse_positions(text, 3)
