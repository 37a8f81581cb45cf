"""Which blocks count; `3` is a block of instant 3, `5[3,4]` one of a log compaction, `6!4` a
command that rolls back instant 4."""

from __future__ import annotations

import re

import pytest

from lakewright.format.log_block import BlockKind, Header, LogBlock
from lakewright.scan.slice_reader import effective_blocks


def block(text: str) -> LogBlock:
    match = re.fullmatch(r"(\d+)(?:\[([\d,]+)\])?(?:!(\d+))?", text)
    assert match is not None
    headers = {Header.INSTANT_TIME: match[1]}
    if match[2]:
        headers[Header.COMPACTED_BLOCK_TIMES] = match[2]
    if match[3]:
        headers[Header.TARGET_INSTANT_TIME] = match[3]
        headers[Header.COMMAND_BLOCK_TYPE] = "0"
    kind = BlockKind.COMMAND if match[3] else BlockKind.PARQUET
    return LogBlock(kind, headers, memoryview(b""))


ORDERS = {
    "blocks count in the order of their files": ("1 2 3", "1 2 3"),
    "a rollback takes its target back": ("1 2 3!2 4", "1 4"),
    "a log compaction takes the place of the newest it was made of": ("1 2 3 4[1,2]", "4 3"),
    "and is last if nothing came in between": ("1 2 4[1,2]", "4"),
    "a log compaction of a log compaction": ("1 2 3[1,2] 4 5[3,4] 6", "5 6"),
    "a log compaction whose parts were cleaned stays where it is": ("3 4[1,2] 5", "3 4 5"),
    "several blocks of a log compaction stay together": ("1 2 3 4[1,2] 4[1,2]", "4 4 3"),
}


@pytest.mark.parametrize(("blocks", "expected"), ORDERS.values(), ids=list(ORDERS))
def test_order(blocks: str, expected: str) -> None:
    counting = effective_blocks([block(text) for text in blocks.split()])
    assert " ".join(item.instant for item in counting) == expected


BY_COMMIT = {
    "the parts count where rows are asked for by commit": ("1 2 3[1,2] 4", {"2", "4"}, "1 2 4"),
    "parts from before the range may be missing": ("2 3[1,2] 4", {"2", "3"}, "2 4"),
    "the log compaction counts if a part of the range is missing": ("3[1,2] 4", {"2", "3"}, "3 4"),
    "parts of parts": ("1 2 3[1,2] 4 5[3,4]", {"1", "2", "3", "4", "5"}, "1 2 4"),
}


@pytest.mark.parametrize(("blocks", "commits", "expected"), BY_COMMIT.values(), ids=list(BY_COMMIT))
def test_order_by_commit(blocks: str, commits: set[str], expected: str) -> None:
    counting = effective_blocks([block(text) for text in blocks.split()], commits)
    assert " ".join(item.instant for item in counting) == expected
