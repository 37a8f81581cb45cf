"""Markers: which data files a write is about to make, so that its rollback finds them.

Here each file has a marker of its own (Hudi calls them direct). Hudi's timeline server gathers
markers in a few text files instead, and both kinds are read.

The driver of a write cannot know whether a task attempt that it has lost sight of is dead: Spark
kills speculative attempts, and the tasks of an aborted job, some time after the driver goes on. So
the end of a write deletes only the markers of files whose attempts have reported. The others stay
and age from then on, until `strays.sweep_strays` finds them old enough.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from lakewright.errors import ConflictError, CorruptError, InvalidError, UnsupportedError
from lakewright.model.file_group import BaseFile, LogFile, parse_data_file
from lakewright.model.instant import InstantTime
from lakewright.storage.base import MissingFileError, Storage, join_path, split_path

FOLDER = ".hoodie/.temp"
# Rows that tasks of a write hand on to others: not among the markers, see `marker_folder`.
SPILL = ".hoodie/.lakewright/rows"
_ONE = re.compile(r"(?P<path>.+?)\.marker\.(?P<kind>CREATE|MERGE|APPEND)")
# One marker for each line; but a server that was started anew joins those it finds by commas, and
# leaves out the break before the next.
_MANY = re.compile(_ONE.pattern + r"[,\n]?")
_GATHERED = re.compile(r"MARKERS\d+")
# Write tokens are three whole numbers; other readers take them for 32 bits.
_MOST = 0x7FFF_FFFF


class MarkerKind(StrEnum):
    """What becomes of the file: a new one, or a new version of a base file."""

    CREATE = "CREATE"
    MERGE = "MERGE"


def create_marker(storage: Storage, instant: InstantTime, data_path: str, kind: MarkerKind) -> None:
    """Mark a data file that `instant` is going to write; to be called before the file is made."""
    # Only the writer of this instant makes markers for it: one that is there is from a first try.
    with suppress(ConflictError):
        storage.unsynced().create(_marker(instant, data_path, kind), b"")


def renew_marker(storage: Storage, instant: InstantTime, data_path: str, kind: MarkerKind) -> None:
    """Mark a data file once more: the marker may be old, or gone."""
    storage.unsynced().replace(_marker(instant, data_path, kind), b"")


def marker_exists(storage: Storage, instant: InstantTime, data_path: str, kind: MarkerKind) -> bool:
    """Whether the marker that `create_marker` makes is there."""
    return storage.exists(_marker(instant, data_path, kind))


def _marker(instant: InstantTime, data_path: str, kind: MarkerKind) -> str:
    return join_path(marker_folder(instant), f"{data_path}.marker.{kind}")


def marked_files(storage: Storage, instant: InstantTime) -> tuple[str, ...]:
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


def delete_markers(storage: Storage, instant: InstantTime) -> None:
    """Delete all markers of an instant: none of its task attempts can be running any more."""
    # Those that come back after a power cut name files that are gone, or in a commit.
    storage.unsynced().delete_folder(marker_folder(instant))


def delete_markers_for(storage: Storage, instant: InstantTime, data_paths: Iterable[str]) -> None:
    """Delete the markers of some files, whose task attempts have reported."""
    storage.unsynced().delete_many(
        _marker(instant, path, kind) for path in sorted(data_paths) for kind in MarkerKind
    )


def finish_markers(storage: Storage, instant: InstantTime, reported: Collection[str] = ()) -> None:
    """End the markers of a write that has ended; `reported` are files of attempts that have, too.

    Files of the other task attempts are deleted, and their markers age from now on. Markers that
    appear while this runs stay. Registrations of executions go: an attempt without one stops.
    """
    folder = marker_folder(instant)
    files = list(storage.list_tree(folder))
    paths = {file.path: file.path.removeprefix(f"{folder}/") for file in files}
    matches = {path: _ONE.fullmatch(name) for path, name in paths.items()}
    data_paths = {path: match["path"] for path, match in matches.items() if match}
    over = {
        p for p, data in data_paths.items() if data in reported or is_attempt_registration(data)
    }
    unreported = [file for file in files if file.path not in over]
    if unreported:
        # Where lists of markers cannot be read, a rollback has found the files by listing.
        with suppress(CorruptError):
            names = [paths[file.path] for file in unreported]
            storage.delete_many(sorted(_markers(storage, instant, names)))
        for file in unreported:
            # The same bytes once more: what ages is the time of modification.
            bytes_again = storage.read(file.path) if file.size else b""
            storage.unsynced().replace(file.path, bytes_again)
    if over:
        storage.unsynced().delete_many(sorted(over))
    if not unreported:
        storage.prune_folders(folder)


def attempt_registration(instant: InstantTime, partition: str, new_id: str) -> tuple[int, str]:
    """The number of a new execution of a plan, and the file whose marker registers it.

    That file is never made. Its number follows from its id, which tells it from data files.
    """
    number = _number_of(new_id)
    name = BaseFile(f"{new_id}-0", f"0-{number}-0", instant).name
    return number, join_path(partition, name)


def is_attempt_registration(data_path: str) -> bool:
    """Whether a marker of this path registers an execution, and stands for no file."""
    file: BaseFile | LogFile | None = None
    with suppress(CorruptError, UnsupportedError):
        file = parse_data_file(split_path(data_path)[1])
    if not isinstance(file, BaseFile):
        return False
    try:
        return file.token == f"0-{_number_of(file.file_id.removesuffix('-0'))}-0"
    except ValueError:
        return False


def _number_of(new_id: str) -> int:
    return int(new_id.replace("-", "")[-8:], 16) & _MOST


def conflicting_instant(
    storage: Storage, instant: InstantTime, data_path: str, alive: frozenset[str]
) -> str | None:
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


def marker_folder(instant: InstantTime) -> str:
    """Where the markers of an instant are; real Hudi overlooks all of them if anything else is."""
    return f"{FOLDER}/{instant}"


def spill_folder(instant: InstantTime) -> str:
    """Where the rows lie that tasks of a write hand on to others."""
    return f"{SPILL}/{instant}"


def _places(instant: InstantTime, partition: str) -> list[str]:
    """Where markers of a partition can be: gathered at the top, or each in the partition."""
    top = marker_folder(instant)
    return [top, join_path(top, partition)] if partition else [top]


def _markers(storage: Storage, instant: InstantTime, paths: Sequence[str]) -> set[str]:
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


def _split(data: bytes, instant: InstantTime) -> Iterator[str]:
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


def _check_instant(path: str, instant: InstantTime) -> None:
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


# ------------------------------------------------------------------------------------------------
# How far a pending write has come: its markers name files, and those that are there are whole.


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """The files that a pending write has begun, and those of them that are there by now."""

    begun: int = 0
    finished: int = 0
    bytes: int = 0


def write_progress(storage: Storage, instant: InstantTime) -> WriteProgress:
    """Look at the markers of an instant, and at the partitions that they name."""
    marked = set(marked_files(storage, instant))
    listed = storage.list_many(sorted({split_path(path)[0] for path in marked}))
    sizes = [file.size for files in listed.values() for file in files if file.path in marked]
    return WriteProgress(len(marked), len(sizes), sum(sizes))
