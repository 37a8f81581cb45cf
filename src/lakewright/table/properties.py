"""`hoodie.properties` on storage: loading it, and changing it so that a reader always finds it."""

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
from lakewright.model.table_config import TableConfig
from lakewright.storage.base import MissingFileError, Storage, join_path, map_in_threads

PROPERTIES = ".hoodie/hoodie.properties"
BACKUP = PROPERTIES + ".backup"


def table_exists(storage: Storage) -> bool:
    """Whether there is a table, or what somebody who died has left of its properties."""
    return any(storage.exists(path) for path in (PROPERTIES, BACKUP))


def load_properties(storage: Storage) -> dict[str, str]:
    """The table's properties.

    While another writer changes them the main file may be missing or unfinished for a moment; then
    the backup holds them.
    """
    main = read_optional(storage, PROPERTIES)
    if main is not None and _is_complete(main):
        return choose_properties(main, None)
    backup = read_optional(storage, BACKUP)
    if main is None and backup is None:
        # The change may have ended between the two looks.
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
    """Change the properties under the table lock, which the caller holds; gives the new ones.

    A backup of the old ones is there from before the change until after it, as real Hudi does it,
    so a process that dies in between leaves a table that every reader can open; the next change
    begins by mending it.
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
            "somebody else is changing the table's properties", file=BACKUP
        ) from error
    storage.replace(PROPERTIES, format_properties(new, comments))
    storage.delete(BACKUP)
    return new


def recover_properties(storage: Storage, properties: Mapping[str, str]) -> None:
    """End a change that somebody died in: the whole file in its place, no backup."""
    if not storage.exists(BACKUP):
        return
    main = read_optional(storage, PROPERTIES)
    if main is None or not _is_complete(main):
        storage.replace(PROPERTIES, format_properties(properties))
    storage.delete(BACKUP)


def _is_complete(data: bytes) -> bool:
    """Whether nothing is missing, the checksum included: it is the last line of what we write."""
    try:
        values = parse_properties(data)
        check_table_properties(values)
    except CorruptError:
        return False
    return TABLE_CHECKSUM in values


def read_optional(storage: Storage, path: str) -> bytes | None:
    """The whole file, or None if there is no such file."""
    try:
        return storage.read(path)
    except MissingFileError:
        return None


# ------------------------------------------------------------------------------------------------
# The line `lastUpdateTime` in the metadata file of a partition: when rows were last written there.
#
# Other readers pass over it, and real Hudi's writers neither renew nor drop it. So it tells no
# more
# than that rows were written at that time; what the timeline knows of later writes counts as well.


# So many files are read at once: a table may have millions, and their bytes need not be held.
_AT_ONCE = 10_000


def load_partition_metadata(
    storage: Storage, partitions: Iterable[str]
) -> dict[str, PartitionMetadata]:
    """The metadata of partitions, each read once; what is gone or broken is left out."""
    waiting, found = iter(partitions), {}
    while part := list(islice(waiting, _AT_ONCE)):
        for partition, data in zip(part, _read_all(storage, part), strict=True):
            parsed = _parsed(data) if data is not None else None
            if parsed is not None:
                found[partition] = parsed
    return found


def _read_all(storage: Storage, partitions: Iterable[str]) -> Sequence[bytes | None]:
    paths = [join_path(partition, PARTITION_METADATA) for partition in partitions]
    try:
        return storage.read_many(paths)
    except (MissingFileError, CorruptError):
        # A partition was removed since it was listed, or its file is of another format.
        return map_in_threads(lambda path: _read(storage, path), paths)


def last_update_time(metadata: PartitionMetadata | None) -> str:
    """When rows were last written, by the line alone, in 17 digits; empty if it does not tell."""
    told = metadata.last_update_time if metadata is not None else None
    return full_time(told) if told and is_time(told) else ""


def touch_last_update_time(storage: Storage, partition: str, time: str) -> bool:
    """Note that rows were written at a time; gives whether the line was older, and is there now.

    The file is never missing for a moment, as readers find partitions by it. Of two who renew it
    at once the earlier time may stay: the line is not the only thing that is believed.
    """
    path = join_path(partition, PARTITION_METADATA)
    data = _read(storage, path)
    known = _parsed(data) if data is not None else None
    if known is None or last_update_time(known) >= full_time(time):
        return False
    storage.replace(path, format_partition_metadata(replace(known, last_update_time=time)))
    return True


def _read(storage: Storage, path: str) -> bytes | None:
    try:
        return read_optional(storage, path)
    except CorruptError:
        return None


@lru_cache(maxsize=1024)
def _parsed(data: bytes) -> PartitionMetadata | None:
    """The content of a file; those of all partitions that one write has made are the same."""
    try:
        return parse_partition_metadata(data)
    except CorruptError:
        return None


# ------------------------------------------------------------------------------------------------
# The metadata table of real Hudi: a copy of the table's listing that this library does not keep.
#
# Readers trust it as long as a property names its partitions, so a commit that is not recorded
# there
# is not seen, and the next compaction loses its rows. It is dropped before anything is written.
#
# The two properties tell how far that has come, so that a table without metadata table costs no
# call:
# - they name partitions: readers trust the folder;
# - they are there and empty: nobody trusts the folder, and it may still be there (real Hudi also
#   leaves them like this when it drops the table itself);
# - they are absent: there is no folder of ours to remove.


METADATA_FOLDER = ".hoodie/metadata"

_TRUSTED = "hoodie.table.metadata.partitions"
_KEYS = (_TRUSTED, f"{_TRUSTED}.inflight")


def metadata_partitions(config: TableConfig) -> tuple[str, ...]:
    """The partitions of the metadata table, finished or being built, sorted."""
    names = (name.strip() for key in _KEYS for name in config.properties.get(key, "").split(","))
    return tuple(sorted({name for name in names if name}))


def has_metadata_table(config: TableConfig) -> bool:
    """Whether there is a metadata table, or something left of one that was being dropped."""
    return any(key in config.properties for key in _KEYS)


def drop_metadata_table(storage: Storage, config: TableConfig) -> TableConfig:
    """Drop the metadata table under the table lock, which the caller holds; gives the new config.

    May be repeated after a crash at any point: a reader never trusts a folder with a part missing.
    """
    if not has_metadata_table(config):
        return config
    if metadata_partitions(config):
        update_properties(storage, _emptied)
    storage.delete_folder(METADATA_FOLDER)
    return TableConfig.from_properties(update_properties(storage, _removed))


def _emptied(properties: dict[str, str]) -> Mapping[str, str]:
    return {**properties, **dict.fromkeys(_KEYS, "")}


def _removed(properties: dict[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in properties.items() if key not in _KEYS}
