"""Log framing: what real writers wrote comes back, and nothing broken is passed over."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.format.log_block import (
    BlockKind,
    Header,
    LogBlock,
    format_block,
    parse_blocks,
    parse_heads,
)
from support.golden import NAMES, GoldenTables

HEADERS = {Header.INSTANT_TIME: "20260101000000000", Header.SCHEMA: '{"type":"string"}'}
BLOCK = format_block(BlockKind.AVRO, HEADERS, b"content")
FIRST_HEADER = 26


def log_files(table: Path) -> list[Path]:
    return sorted(p for p in table.rglob(".*.log.*") if not p.name.endswith(".crc"))


def patched(offset: int, form: str, value: object, block: bytes = BLOCK) -> bytes:
    changed = bytearray(block)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("mor") or "cdc" in n])
def test_log_files_of_real_hudi_come_back_byte_by_byte(golden: GoldenTables, name: str) -> None:
    files = log_files(golden[name])
    assert files
    for file in files:
        data = file.read_bytes()
        blocks = parse_blocks(data, file_name=file.name)
        assert blocks
        assert b"".join(format_block(b.kind, b.headers, b.content) for b in blocks) == data


def test_the_layout_is_that_of_the_format() -> None:
    assert format_block(BlockKind.DELETE, {Header.INSTANT_TIME: "7"}, b"xy") == (
        b"#HUDI#"
        + struct.pack(">q", 8 + 13 + 8 + 2 + 4 + 8)
        + struct.pack(">ii", 1, 1)
        + struct.pack(">iii", 1, 0, 1)
        + b"7"
        + struct.pack(">q", 2)
        + b"xy"
        + struct.pack(">i", 0)
        + struct.pack(">q", 8 + 13 + 8 + 2 + 4 + 8 + 6)
    )


def test_an_empty_file_has_no_blocks() -> None:
    assert parse_blocks(b"", file_name="empty") == []


def test_blocks_are_views_and_know_where_they_are() -> None:
    first, second = parse_blocks(memoryview(BLOCK + BLOCK), file_name="name")
    assert (first.offset, second.offset) == (0, len(BLOCK))
    assert isinstance(second.content, memoryview)
    assert bytes(second.content) == b"content"
    assert second.file_name == "name"


def test_headers_are_read_by_meaning() -> None:
    headers = HEADERS | {
        Header.TARGET_INSTANT_TIME: "20251231000000000",
        Header.COMPACTED_BLOCK_TIMES: "1,2,3",
        Header.IS_PARTIAL: "true",
    }
    (block,) = parse_blocks(format_block(BlockKind.AVRO, headers, b""), file_name="")
    assert block.instant == "20260101000000000"
    assert block.schema_json == '{"type":"string"}'
    assert block.target_instant == "20251231000000000"
    assert block.compacted_instants == ("1", "2", "3")
    assert block.is_partial


def test_absent_headers_have_a_meaning_too() -> None:
    block = LogBlock(BlockKind.COMMAND, {Header.INSTANT_TIME: "1"}, memoryview(b""))
    assert block.schema_json is None
    assert block.target_instant is None
    assert block.compacted_instants == ()
    assert not block.is_partial


NO_INSTANT = format_block(BlockKind.AVRO, {Header.SCHEMA: "{}"}, b"")
TWICE = patched(
    FIRST_HEADER + 8 + 17,
    ">i",
    Header.INSTANT_TIME,
    format_block(BlockKind.AVRO, HEADERS, b""),
)
CONTENT_LENGTH = BLOCK.index(b"content") - 8
BROKEN = {
    "the last block is cut off by a byte": (BLOCK + BLOCK[:-1], len(BLOCK)),
    "the last block is cut off in its magic": (BLOCK + b"#HU", len(BLOCK)),
    "the last block is cut off after its length": (BLOCK + BLOCK[:14], len(BLOCK)),
    "a block in the middle is cut off": (BLOCK[:-3] + BLOCK, 0),
    "there is garbage between blocks": (BLOCK + b"xx" + BLOCK, len(BLOCK)),
    "there is garbage after the last block": (BLOCK + b"\x00" * 40, len(BLOCK)),
    "there is garbage in front": (b"\x00" + BLOCK, 0),
    "the magic is wrong": (b"#HUDY#" + BLOCK[6:], 0),
    "the trailing length is wrong": (patched(len(BLOCK) - 8, ">q", 99), 0),
    "the block length is zero": (patched(6, ">q", 0), 0),
    "the block length is negative": (patched(6, ">q", -1), 0),
    "the block length is absurd": (patched(6, ">q", 1 << 62), 0),
    "the block length is one too large": (patched(6, ">q", len(BLOCK) - 13) + BLOCK, 0),
    "the block length is one too small": (patched(6, ">q", len(BLOCK) - 15), 0),
    "the format version is unknown": (patched(14, ">i", 2), 0),
    "the type is unknown": (patched(18, ">i", 7), 0),
    "the type is the one for corrupt blocks": (patched(18, ">i", 2), 0),
    "the type is negative": (patched(18, ">i", -1), 0),
    "the number of headers is negative": (patched(22, ">i", -1), 0),
    "the number of headers is absurd": (patched(22, ">i", 1 << 30), 0),
    "a header key is unknown": (patched(FIRST_HEADER, ">i", 9), 0),
    "a header is negative in length": (patched(FIRST_HEADER + 4, ">i", -5), 0),
    "a header is longer than the block": (patched(FIRST_HEADER + 4, ">i", 1 << 30), 0),
    "a header is not text": (patched(FIRST_HEADER + 8, ">B", 0xFF), 0),
    "a header occurs twice": (TWICE, 0),
    "the content length is negative": (patched(CONTENT_LENGTH, ">q", -7), 0),
    "the content is longer than the block": (patched(CONTENT_LENGTH, ">q", 1 << 40), 0),
    "the content does not fill the block": (patched(CONTENT_LENGTH, ">q", 6), 0),
    "there are footers": (patched(len(BLOCK) - 12, ">i", 1), 0),
    "the instant is missing": (NO_INSTANT, 0),
}


@pytest.mark.parametrize(("data", "offset"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_block_is_never_passed_over(data: bytes, offset: int) -> None:
    with pytest.raises(CorruptError) as caught:
        parse_blocks(data, file_name="a.log")
    assert caught.value.facts == {"file_name": "a.log", "offset": offset}


def test_every_cut_of_a_file_is_noticed() -> None:
    whole = BLOCK + BLOCK
    for end in range(1, len(whole)):
        if end != len(BLOCK):
            with pytest.raises(CorruptError):
                parse_blocks(whole[:end], file_name="a.log")


VERSIONS = {
    "nothing at all": (b"", CorruptError),
    "half a version": (b"\x00\x00", CorruptError),
    "an old version": (struct.pack(">i", 1), UnsupportedError),
    "the one before": (struct.pack(">i", 2), UnsupportedError),
    "a later version": (struct.pack(">i", 4), CorruptError),
}


@pytest.mark.parametrize(("content", "error"), VERSIONS.values(), ids=list(VERSIONS))
def test_content_of_another_version_is_refused(content: bytes, error: type[Exception]) -> None:
    block = LogBlock(BlockKind.AVRO, HEADERS, memoryview(content))
    with pytest.raises(error):
        block.versioned_content()


def heads(data: bytes) -> list[LogBlock]:
    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    return list(parse_heads(read, len(data), file_name="name"))


def test_heads_are_the_blocks_without_their_contents() -> None:
    large = format_block(BlockKind.AVRO, HEADERS, bytes(3 << 20))
    data = large + format_block(BlockKind.DELETE, HEADERS, b"") + BLOCK
    expected = [(b.kind, b.headers, b.offset) for b in parse_blocks(data, file_name="name")]
    assert [(b.kind, b.headers, b.offset) for b in heads(data)] == expected
    assert not any(len(b.content) for b in heads(data))


def test_heads_say_where_the_contents_are() -> None:
    data = format_block(BlockKind.HFILE, HEADERS, b"one") + BLOCK
    for head, block in zip(heads(data), parse_blocks(data, file_name="name"), strict=True):
        start, size = head.content_offset, head.content_size
        assert (start, size) == (block.content_offset, block.content_size)
        assert data[start : start + size] == bytes(block.content)


def test_a_content_that_is_longer_than_its_block_is_noticed_without_reading_it() -> None:
    with pytest.raises(CorruptError, match="content longer"):
        heads(patched(CONTENT_LENGTH, ">q", 1 << 40))


def test_headers_are_read_and_contents_are_not() -> None:
    read: list[int] = []
    data = format_block(BlockKind.AVRO, HEADERS, bytes(5 << 20)) + BLOCK

    def count(offset: int, length: int) -> bytes:
        read.append(length)
        return data[offset : offset + length]

    assert len(list(parse_heads(count, len(data), file_name="name"))) == 2
    assert sum(read) < 2 << 17


def test_small_blocks_are_not_read_again_and_again() -> None:
    read: list[int] = []
    data = BLOCK * 20_000

    def count(offset: int, length: int) -> bytes:
        read.append(length)
        return data[offset : offset + length]

    assert len(list(parse_heads(count, len(data), file_name="name"))) == 20_000
    assert sum(read) < 1.1 * len(data)


def test_headers_longer_than_a_read_are_read_whole() -> None:
    headers = {**HEADERS, Header.SCHEMA: "x" * 900_000}
    data = format_block(BlockKind.AVRO, headers, bytes(10)) * 2
    assert [block.headers for block in heads(data)] == [headers, headers]
    with pytest.raises(CorruptError, match="too early"):
        heads(format_block(BlockKind.AVRO, {**HEADERS, Header.SCHEMA: "x" * (1 << 20)}, b""))


@pytest.mark.parametrize("cut", [3, 12, 20, FIRST_HEADER + 4, len(BLOCK) - 1])
def test_a_head_that_is_cut_off_is_broken(cut: int) -> None:
    with pytest.raises(CorruptError):
        heads(BLOCK + BLOCK[:cut])
