"""The metadata table of real Hudi: a copy of the table's listing that this library does not keep.

Readers trust it as long as a property names its partitions, so a commit that is not recorded there
is not seen, and the next compaction loses its rows. It is dropped before anything is written.

The two properties tell how far that has come, so that a table without metadata table costs no call:
- they name partitions: readers trust the folder;
- they are there and empty: nobody trusts the folder, and it may still be there (real Hudi also
  leaves them like this when it drops the table itself);
- they are absent: there is no folder of ours to remove.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.core.table_config import TableConfig
from lakewright.storage.base import Storage
from lakewright.table.properties import update_properties

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
