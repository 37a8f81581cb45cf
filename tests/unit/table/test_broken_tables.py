"""Tables that are broken are answered by an error that says what is wrong, and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lakewright.errors import CorruptError, InvalidError, LakewrightError, UnsupportedError
from lakewright.scan.planner import plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from support.golden import GoldenTables


def read(path: Path) -> int:
    storage = storage_for(path)
    return len(read_plan(storage, plan_snapshot(load_snapshot(storage))))


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file and drop its checksum file, as a careless tool would."""
    path.write_bytes(change(path.read_bytes()))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def newest(path: Path, pattern: str) -> Path:
    return max(file for file in path.glob(pattern) if not file.name.endswith(".crc"))


def properties(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda table: rewrite(table / ".hoodie/hoodie.properties", change)


def set_property(key: str, value: str) -> Callable[[Path], None]:
    def change(data: bytes) -> bytes:
        lines = [line for line in data.splitlines() if not line.startswith(f"{key}=".encode())]
        return b"\n".join([*lines, f"{key}={value}".encode()])

    return properties(change)


def timeline(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda table: rewrite(newest(table, f".hoodie/timeline/{pattern}"), change)


def log(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda table: rewrite(newest(table, "2026-01-01/.*.log.1_*"), change)


def flip(position: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        at = position % len(data)
        return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]

    return change


def twice_with_damage(data: bytes) -> bytes:
    """Two blocks, the first of them cut short."""
    return data[: len(data) // 2] + data


def foreign_file(table: Path) -> None:
    (table / "2026-01-01" / "part-0000.parquet").write_bytes(b"PAR1")


def no_folder(table: Path) -> None:
    shutil.rmtree(table)


def no_properties(table: Path) -> None:
    (table / ".hoodie/hoodie.properties").unlink()


BAD: dict[str, tuple[Callable[[Path], None], type[LakewrightError], str]] = {
    "nothing is there": (no_folder, InvalidError, "no table at this path.*path="),
    "no table is there": (no_properties, InvalidError, "no table at this path"),
    "the properties are empty": (properties(lambda d: b""), CorruptError, "hoodie.properties|prop"),
    "the properties are half-written": (
        properties(lambda d: d[:150]),
        CorruptError,
        "half|lack|miss",
    ),
    "the checksum is wrong": (set_property("hoodie.table.checksum", "1"), CorruptError, "checksum"),
    "the version is to come": (set_property("hoodie.table.version", "12"), UnsupportedError, "12"),
    "the version is old": (set_property("hoodie.table.version", "6"), UnsupportedError, "upgrade"),
    "the version is no number": (
        set_property("hoodie.table.version", "x"),
        CorruptError,
        "version",
    ),
    "the type does not exist": (set_property("hoodie.table.type", "ROW"), CorruptError, "ROW"),
    "the base files are not parquet": (
        set_property("hoodie.table.base.file.format", "ORC"),
        UnsupportedError,
        "ORC",
    ),
    "rows are merged by a class": (
        set_property("hoodie.record.merge.mode", "CUSTOM"),
        UnsupportedError,
        "class of its own",
    ),
    "a commit is truncated": (timeline("*_*.deltacommit", lambda d: d[:-40]), CorruptError, "."),
    "a commit is empty": (timeline("*_*.deltacommit", lambda d: b""), CorruptError, "."),
    "a commit is something else": (
        timeline("*_*.deltacommit", lambda d: b"{}"),
        LakewrightError,
        ".",
    ),
    "a log file is empty": (log(lambda d: b""), CorruptError, "empty.*file="),
    "a log file is cut short": (log(lambda d: d[:-3]), CorruptError, "file_name=.*offset="),
    "a log file is cut in its header": (log(lambda d: d[:10]), CorruptError, "offset="),
    "a block in the middle is broken": (log(twice_with_damage), CorruptError, "offset="),
    "a bit of the magic is flipped": (log(flip(1)), CorruptError, "offset="),
    "a bit of the length is flipped": (log(flip(9)), CorruptError, "offset="),
    "a bit of the kind is flipped": (log(flip(20)), CorruptError, "offset="),
    "a bit of the trailing length is flipped": (log(flip(-2)), CorruptError, "offset="),
    "a foreign file lies in a partition": (foreign_file, CorruptError, "part-0000.parquet"),
}


@pytest.fixture
def table(golden: GoldenTables, tmp_path: Path) -> Path:
    return shutil.copytree(golden["mor_avro"], tmp_path / "mor_avro")


@pytest.mark.parametrize(("spoil", "kind", "message"), BAD.values(), ids=list(BAD))
def test_a_bad_table_is_reported(
    spoil: Callable[[Path], None], kind: type[LakewrightError], message: str, table: Path
) -> None:
    assert read(table) == 26
    spoil(table)
    with pytest.raises(kind, match=message):
        read(table)


def test_a_changed_file_is_reported_by_its_checksum_file(table: Path) -> None:
    file = newest(table, "2026-01-01/.*.log.1_*")
    file.write_bytes(flip(len(file.read_bytes()) // 2)(file.read_bytes()))
    with pytest.raises(CorruptError, match="checksum file"):
        read(table)


def test_the_backup_counts_while_the_properties_are_rewritten(table: Path) -> None:
    main = table / ".hoodie/hoodie.properties"
    main.rename(main.with_name("hoodie.properties.backup"))
    main.with_name(".hoodie.properties.crc").unlink()
    assert read(table) == 26
    main.write_bytes(b"")
    assert read(table) == 26


def test_nothing_written_yet_has_no_schema(table: Path) -> None:
    shutil.rmtree(table / ".hoodie/timeline")
    with pytest.raises(InvalidError, match="no schema yet"):
        read(table)
