"""The file that makes a folder a partition."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lakewright.errors import CorruptError
from lakewright.format.partition_metadata import (
    PartitionMetadata,
    format_partition_metadata,
    parse_partition_metadata,
)
from lakewright.model.file_group import PARTITION_METADATA

GOLDEN = Path(__file__).parents[2] / "golden"
REAL = (
    b"#partition metadata\n"
    b"#Sun Nov 15 21:21:07 UTC 2026\n"
    b"commitTime=20261115212103087\n"
    b"partitionDepth=1\n"
)
VALUE = PartitionMetadata(commit_time="20261115212103087", depth=1)

READINGS = {
    "as real Hudi writes it": (REAL, VALUE),
    "with the time of the last update": (
        REAL + b"lastUpdateTime=20261116000000000\n",
        PartitionMetadata(
            commit_time="20261115212103087", depth=1, last_update_time="20261116000000000"
        ),
    ),
    "with a foreign line": (
        REAL + b"note=x\n",
        PartitionMetadata(commit_time="20261115212103087", depth=1, extra={"note": "x"}),
    ),
}


@pytest.mark.parametrize(("data", "expected"), READINGS.values(), ids=list(READINGS))
def test_reading(data: bytes, expected: PartitionMetadata) -> None:
    assert parse_partition_metadata(data) == expected
    assert parse_partition_metadata(format_partition_metadata(expected)) == expected


def test_the_bytes_are_those_of_real_hudi() -> None:
    comments = ("partition metadata", "Sun Nov 15 21:21:07 UTC 2026")
    assert format_partition_metadata(VALUE, comments) == REAL


def test_the_update_time_is_written_only_where_there_is_one() -> None:
    assert b"lastUpdateTime" not in format_partition_metadata(VALUE)


BROKEN = {
    "an empty file": (b"", r"missing=\['commitTime', 'partitionDepth'\]"),
    "a file cut off in its last line": (REAL[:-2], "missing"),
    "a depth that is no number": (REAL.replace(b"=1\n", b"=one\n"), "wrong depth"),
    "a negative depth": (REAL.replace(b"=1\n", b"=-1\n"), "wrong depth"),
    "digits of another script": (REAL.replace(b"=1\n", b"=\\u0661\n"), "wrong depth"),
}


@pytest.mark.parametrize(("data", "message"), BROKEN.values(), ids=list(BROKEN))
def test_broken_files_are_corrupt(data: bytes, message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        parse_partition_metadata(data)


@pytest.mark.parametrize(
    ("table", "depth"), [("cow_basic", 1), ("cow_hive_complex", 2), ("cow_nonpartitioned", 0)]
)
def test_real_partitions_have_the_depth_of_their_folder(table: str, depth: int) -> None:
    with zipfile.ZipFile(GOLDEN / f"{table}.zip") as files:
        names = [
            n
            for n in files.namelist()
            if n.endswith(f"/{PARTITION_METADATA}") and ".hoodie/" not in n
        ]
        assert names
        for name in names:
            assert parse_partition_metadata(files.read(name)).depth == depth
            assert name.count("/") == depth + 1
