"""The partitions of a table and their data files, as storage lists them.

A folder is a partition if it holds the partition metadata file, as for every other reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from itertools import chain

from lakewright.core.files import PARTITION_METADATA, BaseFile, LogFile, parse_data_file
from lakewright.storage.base import FileStatus, Storage, at_once

DataFile = BaseFile | LogFile

_META_FOLDER = ".hoodie"
# Enough to keep all threads busy to the end, and few enough that handing them out costs nothing.
_MOST_PIECES = 1000


def list_partitions(storage: Storage, besides: Collection[str] = ()) -> dict[str, list[DataFile]]:
    """The data files of all partitions, by path, or of all but some that need not be listed."""
    known = frozenset(besides)
    found = data_files(storage.list_files("")) if "" not in known else {}
    folders = _other_folders(storage, known)
    step = len(folders) // _MOST_PIECES + 1
    pieces = [folders[start : start + step] for start in range(0, len(folders), step)]
    # Each listing shrinks to its data files at once: a large table has many millions of names.
    for part in at_once(partial(_trees, storage), pieces, storage.listings_at_once):
        found |= part
    return {path: found[path] for path in sorted(found) if path not in known}


def _other_folders(storage: Storage, known: frozenset[str]) -> list[str]:
    """Folders that hold whatever is in none of the known partitions; some may hold known ones."""
    above = {path[:end] for path in known for end, sign in enumerate(path) if sign == "/"}
    found: list[str] = []
    waiting = [""]
    while waiting:
        levels = at_once(storage.list_folders, waiting, storage.listings_at_once)
        deeper: list[str] = []
        for parent, level in zip(waiting, levels, strict=True):
            folders = [f for f in level if f != _META_FOLDER]
            others = [f for f in folders if f not in known and f not in above]
            # One listing of all is cheaper than one of each of many.
            if parent and 2 * len(others) > len(folders):
                found.append(parent)
            else:
                found += others
                deeper += [f for f in folders if f in above]
        waiting = deeper
    return found


def _trees(storage: Storage, folders: list[str]) -> dict[str, list[DataFile]]:
    return data_files(chain.from_iterable(map(storage.list_tree, folders)))


def data_files(statuses: Iterable[FileStatus]) -> dict[str, list[DataFile]]:
    """The data files of listed folders, of those that are partitions; sorted by folder and name."""
    by_folder: dict[str, list[tuple[str, int]]] = {}
    for status in statuses:
        folder, _, name = status.path.rpartition("/")
        by_folder.setdefault(folder, []).append((name, status.size))
    return {
        folder: [file for name, size in sorted(names) if (file := parse_data_file(name, size))]
        for folder, names in sorted(by_folder.items())
        if any(name.startswith(PARTITION_METADATA) for name, _ in names)
    }
