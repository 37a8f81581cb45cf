"""Markers: which data files a write is about to make, so that its rollback finds them.

Here each file has a marker of its own (Hudi calls them direct). Hudi's timeline server gathers
markers in a few text files instead, and both kinds are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum

from lakewright.core.files import BaseFile, LogFile, parse_data_file
from lakewright.errors import ConflictError, CorruptError, InvalidError, UnsupportedError
from lakewright.storage.base import MissingFileError, Storage, join_path, split_path

FOLDER = ".hoodie/.temp"
# Rows that tasks of a write hand on to others: not among the markers, see `marker_folder`.
ROWS = ".hoodie/.lakewright/rows"
_ONE = re.compile(r"(?P<path>.+?)\.marker\.(?P<kind>CREATE|MERGE|APPEND)")
# One marker for each line; but a server that was started anew joins those it finds by commas, and
# leaves out the break before the next.
_MANY = re.compile(_ONE.pattern + r"[,\n]?")
_GATHERED = re.compile(r"MARKERS\d+")


class MarkerKind(StrEnum):
    """What becomes of the file: a new one, or a new version of a base file."""

    CREATE = "CREATE"
    MERGE = "MERGE"


def create_marker(storage: Storage, instant: str, data_path: str, kind: MarkerKind) -> None:
    """Mark a data file that `instant` is going to write; to be called before the file is made."""
    # Only the writer of this instant makes markers for it: one that is there is from a first try.
    with suppress(ConflictError):
        storage.unsynced().create(_marker(instant, data_path, kind), b"")


def is_marked(storage: Storage, instant: str, data_path: str, kind: MarkerKind) -> bool:
    """Whether the marker that `create_marker` makes is there."""
    return storage.exists(_marker(instant, data_path, kind))


def _marker(instant: str, data_path: str, kind: MarkerKind) -> str:
    return join_path(marker_folder(instant), f"{data_path}.marker.{kind}")


def marked_files(storage: Storage, instant: str) -> tuple[str, ...]:
    """The data files that `instant` has marked, relative to the table, sorted.

    A file that carries another instant in its name is a CorruptError: who rolls back this instant
    would delete what belongs to that one.
    """
    folder = marker_folder(instant)
    paths = [file.path.removeprefix(f"{folder}/") for file in storage.list_tree(folder)]
    markers = _markers(storage, instant, paths)
    for path in markers:
        _check_instant(path, instant)
    return tuple(sorted(markers))


def delete_markers(storage: Storage, instant: str) -> None:
    """Forget what `instant` has marked."""
    # Those that come back after a power cut name files that are gone, or in a commit.
    storage.unsynced().delete_folder(marker_folder(instant))


def rival_of(storage: Storage, instant: str, data_path: str, alive: frozenset[str]) -> str | None:
    """Another instant in `alive` that has marked a file of the same file group, if there is one.

    This spares work that is bound to fail; whether two writes are in conflict is decided when the
    second one completes.
    """
    partition, name = split_path(data_path)
    mine = parse_data_file(name)
    if mine is None:
        raise InvalidError("not the name of a data file", path=data_path)
    others = sorted(alive - {instant})
    listed = storage.list_many(folder for other in others for folder in _places(other, partition))
    for other in others:
        prefix = f"{marker_folder(other)}/"
        found = [file.path for folder in _places(other, partition) for file in listed[folder]]
        paths = [path.removeprefix(prefix) for path in found]
        markers: set[str] = set()
        # A glance at the work of others: what is wrong there, or half written, is not for us.
        with suppress(CorruptError):
            markers = _markers(storage, other, paths)
        if any(_is_of(path, partition, mine.file_id) for path in markers):
            return other
    return None


def marker_folder(instant: str) -> str:
    """Where the markers of an instant are; real Hudi overlooks all of them if anything else is."""
    return f"{FOLDER}/{instant}"


def rows_folder(instant: str) -> str:
    """Where the rows lie that tasks of a write hand on to others."""
    return f"{ROWS}/{instant}"


def _places(instant: str, partition: str) -> list[str]:
    """Where markers of a partition can be: gathered at the top, or each in the partition."""
    top = marker_folder(instant)
    return [top, join_path(top, partition)] if partition else [top]


def _markers(storage: Storage, instant: str, paths: Sequence[str]) -> set[str]:
    """The data files that the files in the folder of an instant stand for or list."""
    direct = {_checked(match) for path in paths if (match := _ONE.fullmatch(path))}
    files = [join_path(marker_folder(instant), path) for path in paths if _GATHERED.fullmatch(path)]
    try:
        lists = storage.read_many(files) if files else []
    except MissingFileError:
        # Their writer has just completed, or was rolled back; what is left of them is read.
        lists = list(_those_there(storage, files))
    return direct.union(*(_split(data, instant) for data in lists))


def _those_there(storage: Storage, files: Iterable[str]) -> Iterator[bytes]:
    for file in files:
        with suppress(MissingFileError):
            yield storage.read(file)


def _split(data: bytes, instant: str) -> Iterator[str]:
    # What is no UTF-8 cannot be the path of a file that is to be deleted: keep it apart.
    text = data.decode("utf-8", "surrogateescape")
    end = 0
    while match := _MANY.match(text, end):
        yield _checked(match)
        end = match.end()
    if text[end:].strip():
        raise CorruptError(
            "a list of markers breaks off; roll back with hoodie.rollback.using.markers=false",
            instant=instant,
            rest=text[end : end + 100],
        )


def _checked(match: re.Match[str]) -> str:
    path = match["path"].lstrip("/")
    if match["kind"] == "APPEND":
        raise CorruptError("a marker for an append, which table versions 8 and 9 lack", path=path)
    return path


def _check_instant(path: str, instant: str) -> None:
    file = parse_data_file(split_path(path)[1])
    if file is None or file.instant != instant:
        raise CorruptError(
            "a marker names a file that its instant does not own", path=path, instant=instant
        )


def _is_of(path: str, partition: str, file_id: str) -> bool:
    folder, name = split_path(path)
    file: BaseFile | LogFile | None = None
    with suppress(CorruptError, UnsupportedError):
        file = parse_data_file(name)
    return folder == partition and file is not None and file.file_id == file_id
