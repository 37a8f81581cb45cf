"""How far a pending write has come: its markers name files, and those that are there are whole."""

from __future__ import annotations

from dataclasses import dataclass

from lakewright.storage.base import Storage, split_path
from lakewright.table.markers import marked_files


@dataclass(frozen=True, slots=True)
class WrittenSoFar:
    """The files that a pending write has begun, and those of them that are there by now."""

    begun: int = 0
    finished: int = 0
    bytes: int = 0


def written_so_far(storage: Storage, instant: str) -> WrittenSoFar:
    """Look at the markers of an instant, and at the partitions that they name."""
    marked = set(marked_files(storage, instant))
    listed = storage.list_many(sorted({split_path(path)[0] for path in marked}))
    sizes = [file.size for files in listed.values() for file in files if file.path in marked]
    return WrittenSoFar(len(marked), len(sizes), sum(sizes))
