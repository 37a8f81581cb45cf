"""hudi-rs lists the files of a table by a metadata table whose bytes are ours."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hudi import HudiTableBuilder

from lakewright.format.hfile.reader import parse_hfile
from lakewright.format.log_block import BlockKind
from lakewright.format.metadata_table.files import (
    format_base_file,
    format_log_file,
    read_block,
    read_records,
)
from lakewright.format.metadata_table.record_schema import RecordKind
from lakewright.format.metadata_table.records import encode_records
from lakewright.model.metadata_keys import ALL_PARTITIONS
from support.metadata_records import listing
from support.metadata_tables import MetadataTables, log_blocks

FILES = ".hoodie/metadata/files"
HISTORIES = ("a9mor/09-clean", "a9mor/16-upsert5", "c9n/01-insert", "g9/14-w13", "g9l/07-w06")


def slices(table: Path) -> list[tuple[str, str, tuple[str, ...]]]:
    """Partition, base file and log files of the file slices that hudi-rs finds."""
    reader = HudiTableBuilder.from_base_uri(str(table))
    found = reader.with_hudi_option("hoodie.metadata.enable", "true").build().get_file_slices()
    return sorted((s.partition_path, s.base_file_name, tuple(s.log_file_names)) for s in found)


def copied(table: Path, folder: Path) -> Path:
    return Path(shutil.copytree(table, folder / "table"))


def logs_of(table: Path) -> list[Path]:
    """The log files of the listing, from the oldest to the newest."""
    logs = [path for path in (table / FILES).iterdir() if ".log." in path.name]
    return sorted(logs, key=lambda path: path.name.split("_")[1])


def rewrite_base_files(table: Path) -> None:
    for path in (table / FILES).glob("*.hfile"):
        records = read_records(RecordKind.FILES, parse_hfile(path.read_bytes()))
        path.write_bytes(format_base_file(encode_records(RecordKind.FILES, records), 0))


def rewrite_log_file(path: Path, *, without_files: bool = False) -> None:
    for block in log_blocks(path):
        records = read_block(RecordKind.FILES, block)
        if block.kind is BlockKind.HFILE and isinstance(records, pa.Table):
            if without_files:
                records = records.filter(pc.equal(records["key"], ALL_PARTITIONS))
            entries = encode_records(RecordKind.FILES, records)
            path.write_bytes(format_log_file("files", block.instant, 0, entries))


@pytest.mark.parametrize("step", HISTORIES)
def test_a_listing_that_was_written_again_is_the_same(
    step: str, metadata_tables: MetadataTables, tmp_path: Path
) -> None:
    table = copied(metadata_tables[step].table, tmp_path)
    before = slices(table)
    assert before
    rewrite_base_files(table)
    for path in logs_of(table):
        rewrite_log_file(path)
    assert slices(table) == before


@pytest.mark.parametrize("step", HISTORIES)
def test_blocks_of_both_writers_are_read_together(
    step: str, metadata_tables: MetadataTables, tmp_path: Path
) -> None:
    table = copied(metadata_tables[step].table, tmp_path)
    before = slices(table)
    rewrite_log_file(logs_of(table)[-1])
    assert slices(table) == before


def test_hudi_rs_does_read_the_listing(metadata_tables: MetadataTables, tmp_path: Path) -> None:
    table = copied(metadata_tables["c9n/01-insert"].table, tmp_path)
    before = slices(table)
    rewrite_log_file(logs_of(table)[-1], without_files=True)
    assert slices(table) != before


def test_all_blocks_of_a_base_file_are_read(
    metadata_tables: MetadataTables, tmp_path: Path
) -> None:
    step = metadata_tables["a9mor/01-insert"]
    table = copied(step.table, tmp_path)
    (name,) = (name for name in step.on_disk()["p1"])
    file_names = {
        f"x{number:04d}": name.replace(name[:8], f"{number:08x}") for number in range(2000)
    }
    partitions = dict.fromkeys(file_names, 0)
    records = listing(
        **{ALL_PARTITIONS: partitions, **{path: {own: 9} for path, own in file_names.items()}}
    )
    data = format_base_file(encode_records(RecordKind.FILES, records), 0)
    (base,) = (table / FILES).glob("*.hfile")
    base.write_bytes(data)
    found = {(path, own) for path, own, _ in slices(table)}
    assert found.issuperset(file_names.items())
