"""How many requests the calls of an object store take."""

from __future__ import annotations

import io
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.storage import object_store
from lakewright.storage.base import MissingFileError
from support.object_store import recorded_requests


def parquet_bytes(rows: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"id": [f"key {n:09}" for n in range(rows)], "n": list(range(rows))})
    pq.write_table(table, sink, row_group_size=max(1, rows // 4), compression="none")
    return sink.getvalue()


TREES = {
    "markers in many folders": [f"t/p{n}/f{n}.parquet.marker.CREATE" for n in range(40)],
    "markers of both kinds": ["t/p/f.parquet.marker.CREATE", "t/q/f.parquet.marker.MERGE"],
    "partitions that are marked as done": [f"t/p{n}/_SUCCESS" for n in range(40)],
    "partitions whose end a function was told": [f"t/p{n}/.lakewright_done" for n in range(40)],
}


@pytest.mark.parametrize("paths", TREES.values(), ids=list(TREES))
def test_empty_files_that_tables_have_in_each_folder_are_listed_by_one_request(
    paths: list[str],
) -> None:
    with recorded_requests() as requests:
        for path in paths:
            requests.storage.create(path, b"")
        requests.clear()
        assert sorted(file.path for file in requests.storage.list_tree("t")) == sorted(paths)
        assert requests.by_kind() == Counter(LIST=1)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_small_parquet_file_is_read_by_one_request(rows: int) -> None:
    with recorded_requests() as requests:
        requests.storage.create("f.parquet", parquet_bytes(rows))
        requests.clear()
        with requests.storage.open_input("f.parquet") as source:
            assert len(pq.read_table(source)) == rows
        assert requests.by_kind() == Counter(GET=1)


def test_the_footer_of_a_large_parquet_file_is_read_by_the_request_that_opens_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "_TAIL_BYTES", 1 << 17)
    with recorded_requests() as requests:
        requests.storage.create("f.parquet", parquet_bytes(100_000))
        requests.clear()
        with requests.storage.open_input("f.parquet") as source:
            file = pq.ParquetFile(source)
            assert file.metadata.num_rows == 100_000
            assert requests.by_kind() == Counter(GET=1)
            assert file.read_row_group(2).column("n").to_pylist() == list(range(50_000, 75_000))


SIZES = {
    "an empty file": 0,
    "a byte": 1,
    "all but a byte of the end": 99,
    "the end": 100,
    "more": 1000,
}


@pytest.mark.parametrize("size", SIZES.values(), ids=list(SIZES))
@pytest.mark.parametrize("kind", ["memory", "azure"])
def test_a_file_reads_the_same_at_any_offset(
    size: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "_TAIL_BYTES", 100)
    content = bytes(n % 251 for n in range(size))
    with recorded_requests(kind) as requests:
        requests.storage.create("f", content)
        with requests.storage.open_input("f") as source:
            assert source.size() == size
            for offset in sorted({0, size // 2, max(0, size - 100), max(0, size - 50), size}):
                for length in (0, 1, 60, 5000):
                    source.seek(offset)
                    assert source.read(length) == content[offset : offset + length]


@pytest.mark.parametrize("kind", ["memory", "azure"])
def test_a_missing_file_is_missing_when_it_is_opened(kind: str) -> None:
    with recorded_requests(kind) as requests, pytest.raises(MissingFileError):
        requests.storage.open_input("f")
