"""`hoodie.properties` on storage: loading it, and changing it so that a reader always finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.format.properties import (
    TABLE_CHECKSUM,
    check_table_properties,
    choose_properties,
    format_properties,
    parse_properties,
    with_table_checksum,
)
from lakewright.storage.base import MissingFileError, Storage

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
    main = read_if_there(storage, PROPERTIES)
    if main is not None and _looks_whole(main):
        return choose_properties(main, None)
    backup = read_if_there(storage, BACKUP)
    if main is None and backup is None:
        # The change may have ended between the two looks.
        main = read_if_there(storage, PROPERTIES)
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
    main = read_if_there(storage, PROPERTIES)
    if main is None or not _looks_whole(main):
        storage.replace(PROPERTIES, format_properties(properties))
    storage.delete(BACKUP)


def _looks_whole(data: bytes) -> bool:
    """Whether nothing is missing, the checksum included: it is the last line of what we write."""
    try:
        values = parse_properties(data)
        check_table_properties(values)
    except CorruptError:
        return False
    return TABLE_CHECKSUM in values


def read_if_there(storage: Storage, path: str) -> bytes | None:
    """The whole file, or None if there is no such file."""
    try:
        return storage.read(path)
    except MissingFileError:
        return None
