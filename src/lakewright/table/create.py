"""Creating a table: one file that appears at once, where nothing else is in its way.

A table is there when its `hoodie.properties` is. Next to it lies a file `timeline/.keep`, which
holds nothing: real Hudi does not open a table whose timeline folder is missing, and a folder exists
only by its files.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from lakewright.clock import Clock
from lakewright.core.table_config import TableConfig
from lakewright.errors import ConflictError, InvalidError
from lakewright.format.properties import format_properties, with_table_checksum
from lakewright.storage.base import Storage
from lakewright.table.properties import BACKUP, PROPERTIES
from lakewright.table.spec import TableSpec, table_properties

KEEP = ".hoodie/timeline/.keep"

_DATA_SUFFIXES = (".parquet", ".orc", ".hfile", ".lance", "_hudiext")
_REMAINS = (".hoodie/timeline/", ".hoodie/metadata/")


def create_table(storage: Storage, clock: Clock, spec: TableSpec) -> TableConfig:
    """Create a table; options that do not belong to a table are passed over.

    Other files may be in the place already, but none that a reader would take for the table's own.

    Raises:
        InvalidError: the spec is wrong, or there is a table or data already.
        UnsupportedError: it asks for a feature that this library does not have.
    """
    properties = with_table_checksum(table_properties(spec))
    config = TableConfig.from_properties(properties)
    _check_place(storage)
    now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    data = format_properties(properties, [f"Properties saved on {now.isoformat()}"])
    # It may be left by somebody who died right here, or be that of a rival.
    with suppress(ConflictError):
        storage.create(KEEP, b"")
    try:
        storage.create(PROPERTIES, data)
    except ConflictError as error:
        raise _there_already(storage) from error
    return config


def _check_place(storage: Storage) -> None:
    """Refuse a place where there is a table, or what readers would take for a part of the new one.

    A foreign data file in the folder of a partition makes every reader fail; instants of a table
    that is gone would be believed.
    """
    for path in (PROPERTIES, BACKUP):
        if storage.exists(path):
            raise _there_already(storage)
    for file in storage.list_tree(""):
        if file.path.startswith(_REMAINS) and file.path != KEEP:
            raise InvalidError("there are remains of a table", path=storage.root, file=file.path)
        if _looks_like_data(file.name) and not file.path.startswith(".hoodie/"):
            raise InvalidError("there are data files already", path=storage.root, file=file.path)


def _looks_like_data(name: str) -> bool:
    is_log = name.startswith(".") and ".log." in name and not name.endswith((".crc", ".tmp"))
    return is_log or name.endswith(_DATA_SUFFIXES)


def _there_already(storage: Storage) -> InvalidError:
    return InvalidError("there is a table already", path=storage.root)
