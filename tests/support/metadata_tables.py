"""Metadata tables made by real Hudi (see golden/metadata_tables/README.md), and what is in them."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from lakewright.format.hfile.reader import parse_hfile
from lakewright.format.index_definitions import parse_index_definitions
from lakewright.format.log_block import LogBlock, parse_blocks
from lakewright.format.metadata_table.files import DeletedKeys, read_block, read_records
from lakewright.format.metadata_table.merging import merge_records
from lakewright.format.metadata_table.record_schema import RecordKind, record_kind
from lakewright.model.file_group import FileSlice, TimelineView, build_groups, parse_data_file
from lakewright.model.index_definitions import IndexDefinitions
from lakewright.model.instant import parse_instant
from lakewright.model.timeline import Timeline

_FOLDER = Path(__file__).parents[1] / "golden" / "metadata_tables"

# Every step of every history, as it is in the archives.
STEPS = {
    "a9mor": (
        "01-insert", "02-upsert", "03-delete", "04-compaction", "05-insert-new-partition",
        "06-clustering", "07-insert_overwrite", "08-delete_partition", "09-clean", "10-upsert2",
        "11-savepoint", "12-upsert3", "13-rollback", "14-upsert4", "15-restore", "16-upsert5",
    ),
    "b8": ("01-insert", "02-update"),
    "b9": ("01-insert", "02-update"),
    "c9": (
        "01-insert", "03-delete", "06-upsert-si", "09-compaction", "10-clustering",
        "13-insert_overwrite2",
    ),
    "c9n": ("01-insert",),
    "c9p": ("01-insert", "02-upsert-new-partition"),
    "g9": ("07-w06", "14-w13"),
    "g9l": ("07-w06",),
}  # fmt: skip
ALL_STEPS = [f"{history}/{step}" for history, steps in STEPS.items() for step in steps]


@dataclass(frozen=True)
class GoldenStep:
    """A table with its metadata table, after one step of its history."""

    table: Path

    @property
    def metadata(self) -> Path:
        return self.table / ".hoodie/metadata"

    @property
    def folders(self) -> list[str]:
        """The partitions of the metadata table."""
        return sorted(path.name for path in self.metadata.iterdir() if path.name != ".hoodie")

    @cached_property
    def definitions(self) -> IndexDefinitions:
        path = self.table / ".hoodie/.index_defs/index.json"
        return parse_index_definitions(path.read_bytes()) if path.exists() else IndexDefinitions()

    @property
    def table_version(self) -> int:
        lines = (self.table / ".hoodie/hoodie.properties").read_text().splitlines()
        return int(next(line for line in lines if "hoodie.table.version=" in line).split("=")[1])

    def kind(self, folder: str) -> RecordKind:
        definition = self.definitions.by_name.get(folder)
        return record_kind(folder, definition.index_type if definition else None)

    def files(self, folder: str) -> Iterator[Path]:
        """The base files and log files of a partition."""
        for path in sorted((self.metadata / folder).iterdir()):
            if path.name != ".hoodie_partition_metadata":
                yield path

    def slices(self, folder: str) -> list[FileSlice]:
        """The newest file slice of each shard."""
        view = TimelineView(_timeline(self.metadata))
        parsed = (parse_data_file(p.name, p.stat().st_size) for p in self.files(folder))
        groups = build_groups(folder, [file for file in parsed if file is not None], view)
        return [group.latest_merged_slice() for group in groups]

    def sources(self, file_slice: FileSlice) -> Iterator[pa.Table | DeletedKeys]:
        """What the files of a slice hold, from the oldest to the newest."""
        kind = self.kind(file_slice.partition)
        if file_slice.base is not None:
            data = (self.metadata / file_slice.path(file_slice.base)).read_bytes()
            yield read_records(kind, parse_hfile(data))
        for log in file_slice.logs:
            for block in log_blocks(self.metadata / file_slice.path(log)):
                yield read_block(kind, block)

    def merged(self, folder: str) -> pa.Table:
        """The merged records of all shards of a partition."""
        kind = self.kind(folder)
        slices = self.slices(folder)
        return pa.concat_tables(merge_records(kind, self.sources(part)) for part in slices)

    def on_disk(self) -> dict[str, dict[str, int]]:
        """The sizes of the committed data files in each partition of the table."""
        timeline = _timeline(self.table)
        markers = self.table.rglob(".hoodie_partition_metadata")
        folders = [path.parent for path in markers if ".hoodie" not in path.parent.parts]
        return {
            folder.relative_to(self.table).as_posix().removeprefix("."): {
                path.name: path.stat().st_size
                for path in folder.iterdir()
                if (file := parse_data_file(path.name)) and timeline.is_committed(file.instant)
            }
            for folder in folders
        }


def _timeline(table: Path) -> Timeline:
    names = [path.name for path in (table / ".hoodie/timeline").iterdir()]
    return Timeline.from_instants(i for name in names if (i := parse_instant(name)))


def log_blocks(path: Path) -> list[LogBlock]:
    return parse_blocks(path.read_bytes(), file_name=path.name)


def unpack_history(history: str, folder: Path) -> None:
    """Unpack all steps of a history as `folder/history/step`."""
    with tarfile.open(_FOLDER / f"{history}.tar.xz") as archive:
        archive.extractall(folder, filter="data")


@dataclass
class MetadataTables:
    """Unpacks histories below a folder."""

    folder: Path
    _unpacked: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> GoldenStep:
        """The step `history/step`."""
        history = name.partition("/")[0]
        if history not in self._unpacked:
            unpack_history(history, self.folder)
            self._unpacked.add(history)
        return GoldenStep(self.folder / name)
