"""Property files of a table: `hoodie.properties`, partition metadata, and the metadata table.

The sections: loading `hoodie.properties`, and changing it so that a reader always finds it; the
line `lastUpdateTime` in the metadata file of a partition; dropping the metadata table of real Hudi,
of which properties record the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.format.partition_metadata import (
    PartitionMetadata,
    format_partition_metadata,
    parse_partition_metadata,
)
from lakewright.format.table_properties import (
    TABLE_CHECKSUM,
    check_table_properties,
    choose_properties,
    format_properties,
    parse_properties,
    with_table_checksum,
)
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.model.instant import full_time, is_time
from lakewright.model.table_config import META_FOLDER, TableConfig
from lakewright.storage.base import MissingFileError, Storage, join_path, map_in_threads

PROPERTIES = f"{META_FOLDER}/hoodie.properties"
BACKUP = PROPERTIES + ".backup"


def table_exists(storage: Storage) -> bool:
    """Whether there is a table, or what a crashed process has left of its properties."""
    return any(storage.exists(path) for path in (PROPERTIES, BACKUP))


def load_properties(storage: Storage) -> dict[str, str]:
    """Load the table's properties.

    While another writer changes them the main file may be missing or incomplete for a moment; then
    the backup contains them.
    """
    main = read_optional(storage, PROPERTIES)
    if main is not None and _is_complete(main):
        return choose_properties(main, None)
    backup = read_optional(storage, BACKUP)
    if main is None and backup is None:
        # The change may have finished between the two reads.
        main = read_optional(storage, PROPERTIES)
    if main is None and backup is None:
        raise InvalidError("there is no table at this path", path=storage.root)
    return choose_properties(main, backup)


def update_properties(
    storage: Storage,
    change: Callable[[dict[str, str]], Mapping[str, str]],
    *,
    comments: Sequence[str] = (),
) -> dict[str, str]:
    """Change the properties and return the new ones; the caller holds the table's lock.

    A backup of the old ones exists from before the change until after it, as in real Hudi, so a
    process that crashes in between leaves a table that every reader can open; the next change
    starts with repairing it.
    """
    old = load_properties(storage)
    recover_properties(storage, old)
    new = with_table_checksum(change(dict(old)))
    check_table_properties(new)
    if new == old:
        return new
    try:
        storage.create(BACKUP, format_properties(old, comments))
    except ConflictError as error:
        raise ConflictError(
            "another process is changing the table's properties", file=BACKUP
        ) from error
    storage.replace(PROPERTIES, format_properties(new, comments))
    storage.delete(BACKUP)
    return new


def recover_properties(storage: Storage, properties: Mapping[str, str]) -> None:
    """Finish the change of a crashed process: the whole main file exists, and no backup."""
    if not storage.exists(BACKUP):
        return
    main = read_optional(storage, PROPERTIES)
    if main is None or not _is_complete(main):
        storage.replace(PROPERTIES, format_properties(properties))
    storage.delete(BACKUP)


def _is_complete(data: bytes) -> bool:
    """Whether nothing is missing, including the checksum: it is the last line that we write."""
    try:
        values = parse_properties(data)
        check_table_properties(values)
    except CorruptError:
        return False
    return TABLE_CHECKSUM in values


def read_optional(storage: Storage, path: str) -> bytes | None:
    """Return the content of a file, or None if it does not exist."""
    try:
        return storage.read(path)
    except MissingFileError:
        return None


# The line `lastUpdateTime` in the metadata file of a partition: when rows were last written there.
#
# Other readers ignore it, and real Hudi's writers neither renew nor drop it. So it proves no more
# than that rows were written at that time; later writes on the timeline count as well.


# This many files are read at once: a table may have millions, and their bytes need not be in memory
# together.
_FILES_PER_READ = 10_000


def load_partition_metadata(
    storage: Storage, partitions: Iterable[str]
) -> dict[str, PartitionMetadata]:
    """Load the metadata of partitions, each once; missing and broken files are left out."""
    remaining, metadata = iter(partitions), {}
    while batch := list(islice(remaining, _FILES_PER_READ)):
        for partition, data in zip(batch, _read_all(storage, batch), strict=True):
            parsed = _parse_or_none(data) if data is not None else None
            if parsed is not None:
                metadata[partition] = parsed
    return metadata


def _read_all(storage: Storage, partitions: Iterable[str]) -> Sequence[bytes | None]:
    paths = [join_path(partition, PARTITION_METADATA) for partition in partitions]
    try:
        return storage.read_many(paths)
    except (MissingFileError, CorruptError):
        # A partition was deleted since it was listed, or its file has another format.
        return map_in_threads(lambda path: _read_or_none(storage, path), paths)


def last_update_time(metadata: PartitionMetadata | None) -> str:
    """Return when rows were last written, by this line alone, in 17 digits; empty if unknown."""
    recorded = metadata.last_update_time if metadata is not None else None
    return full_time(recorded) if recorded and is_time(recorded) else ""


def touch_last_update_time(storage: Storage, partition: str, time: str) -> bool:
    """Record that rows were written at a time; return whether this replaced an older time.

    The file is never missing, not even for a moment, as readers find partitions by it. If two
    writers renew it at once, the earlier time may stay: readers do not rely on the line alone.
    """
    path = join_path(partition, PARTITION_METADATA)
    data = _read_or_none(storage, path)
    metadata = _parse_or_none(data) if data is not None else None
    if metadata is None or last_update_time(metadata) >= full_time(time):
        return False
    storage.replace(path, format_partition_metadata(replace(metadata, last_update_time=time)))
    return True


def _read_or_none(storage: Storage, path: str) -> bytes | None:
    try:
        return read_optional(storage, path)
    except CorruptError:
        return None


@lru_cache(maxsize=1024)
def _parse_or_none(data: bytes) -> PartitionMetadata | None:
    """Parse a file; those of all partitions that one write has created are the same."""
    try:
        return parse_partition_metadata(data)
    except CorruptError:
        return None


# The metadata table of real Hudi: a copy of the table's listing that this library does not
# maintain.
#
# Readers trust it as long as a property names its partitions, so a commit that is not recorded
# there is not visible, and the next compaction loses its rows. It is dropped before anything is
# written.
#
# The two properties record how far dropping it has come, so that a table without metadata table
# costs no request:
# - they name partitions: readers trust the folder;
# - they exist and are empty: no reader trusts the folder, and it may still exist (real Hudi also
#   leaves them like this when it drops the metadata table itself);
# - they are absent: there is no folder that this library would have to delete.


METADATA_FOLDER = f"{META_FOLDER}/metadata"

_PARTITIONS_PROPERTY = "hoodie.table.metadata.partitions"
_METADATA_PROPERTIES = (_PARTITIONS_PROPERTY, f"{_PARTITIONS_PROPERTY}.inflight")


def metadata_partitions(config: TableConfig) -> tuple[str, ...]:
    """Return the partitions of the metadata table, complete or being built, sorted."""
    names = (
        name.strip()
        for key in _METADATA_PROPERTIES
        for name in config.properties.get(key, "").split(",")
    )
    return tuple(sorted({name for name in names if name}))


def has_metadata_table(config: TableConfig) -> bool:
    """Whether there is a metadata table, or a remainder of one that was being dropped."""
    return any(key in config.properties for key in _METADATA_PROPERTIES)


def drop_metadata_table(storage: Storage, config: TableConfig) -> TableConfig:
    """Drop the metadata table and return the new config; the caller holds the table's lock.

    May be repeated after a crash at any point: a reader never trusts a folder with a part missing.
    """
    if not has_metadata_table(config):
        return config
    if metadata_partitions(config):
        update_properties(storage, _with_emptied)
    storage.delete_folder(METADATA_FOLDER)
    return TableConfig.from_properties(update_properties(storage, _without_metadata))


def _with_emptied(properties: dict[str, str]) -> Mapping[str, str]:
    return {**properties, **dict.fromkeys(_METADATA_PROPERTIES, "")}


def _without_metadata(properties: dict[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in properties.items() if key not in _METADATA_PROPERTIES}
