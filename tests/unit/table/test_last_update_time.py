"""The line `lastUpdateTime` on a disk that real Hudi writes to as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakewright.model.file_group import PARTITION_METADATA
from lakewright.storage.durable_disk import sidecar_name
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.properties import (
    last_update_time,
    load_partition_metadata,
    touch_last_update_time,
)
from lakewright.testing.checksums import sidecar_of
from lakewright.testing.storage import CountingStorage

REAL = b"#partition metadata\n#Mon Jan 05 2026\ncommitTime=20260101000000000\npartitionDepth=1\n"


@pytest.fixture
def disk(tmp_path: Path) -> LocalStorage:
    """Two partitions of real Hudi, with checksum files; one whose metadata is in another format."""
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / PARTITION_METADATA).write_bytes(REAL)
        (folder / sidecar_name(PARTITION_METADATA)).write_bytes(sidecar_of(REAL))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / f"{PARTITION_METADATA}.parquet").write_bytes(b"PAR1")
    return LocalStorage.at(str(tmp_path), {})


def test_no_checksum_file_contradicts_a_new_line(disk: LocalStorage, tmp_path: Path) -> None:
    assert touch_last_update_time(disk, "a", "20260105000000000")
    assert not (tmp_path / "a" / sidecar_name(PARTITION_METADATA)).exists()
    assert (tmp_path / "b" / sidecar_name(PARTITION_METADATA)).exists()
    text = (tmp_path / "a" / PARTITION_METADATA).read_text("ascii")
    assert "lastUpdateTime=20260105000000000\n" in text


def test_missing_files_are_left_out(disk: LocalStorage) -> None:
    by_partition = load_partition_metadata(disk, ["a", "b", "c", "d"])
    assert sorted(by_partition) == ["a", "b"]
    assert {last_update_time(metadata) for metadata in by_partition.values()} == {""}
    assert last_update_time(None) == ""


def test_a_damaged_file_is_left_out_and_stays_as_it_is(disk: LocalStorage, tmp_path: Path) -> None:
    (tmp_path / "a" / PARTITION_METADATA).write_bytes(REAL + b"x")  # its checksum says otherwise
    assert sorted(load_partition_metadata(disk, ["a", "b"])) == ["b"]
    assert not touch_last_update_time(disk, "a", "20260105000000000")
    assert not touch_last_update_time(disk, "c", "20260105000000000")


def test_many_files_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakewright.table.properties._FILES_PER_READ", 4)
    files = {f"p{n}/{PARTITION_METADATA}": REAL for n in range(10)}
    storage = CountingStorage(MemoryStorage.fresh(files))
    by_partition = load_partition_metadata(storage, (f"p{n}" for n in range(10)))
    assert list(by_partition) == [f"p{n}" for n in range(10)]
    assert storage.calls == {"read_many": 3}
