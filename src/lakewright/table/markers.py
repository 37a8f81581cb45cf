"""Markers: the data files that a write is about to create, so that its rollback finds them.

Lakewright creates one marker for each file (Hudi calls these direct markers). Hudi's timeline
server collects markers in a few text files instead; both kinds are read.

The driver of a write cannot know whether a task attempt that has not reported is still running:
Spark kills speculative attempts, and the tasks of an aborted job, some time after the driver
continues. So when a write finishes it deletes only the markers of files whose attempts have
reported. The other markers stay, and their age counts from then on, until
`orphan_files.delete_orphan_files` finds them old enough.
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
from lakewright.model.table_config import META_FOLDER
from lakewright.storage.base import FileStatus, MissingFileError, Storage, join_path, split_path

FOLDER = f"{META_FOLDER}/.temp"
# Rows that tasks of a write spill for other tasks: not among the markers, see `marker_folder`.
SPILL = f"{META_FOLDER}/.lakewright/rows"
_MARKER = re.compile(r"(?P<path>.+?)\.marker\.(?P<kind>CREATE|MERGE|APPEND)")
# One marker on each line; but a timeline server that was restarted joins the markers that it finds
# by commas, and leaves out the line break before the next one.
_LISTED_MARKER = re.compile(_MARKER.pattern + r"[,\n]?")
_MARKER_LIST = re.compile(r"MARKERS\d+")
# Write tokens are three integers; other readers parse them as 32 bits.
_MAX_INT32 = 0x7FFF_FFFF


class MarkerKind(StrEnum):
    """What the marked file will be: a new file, or a new version of a base file."""

    CREATE = "CREATE"
    MERGE = "MERGE"


def create_marker(storage: Storage, instant: InstantTime, data_path: str, kind: MarkerKind) -> None:
    """Mark a data file that `instant` is about to write; call it before creating the file."""
    # Only the writer of this instant creates markers for it: one that exists is from an earlier
    # try.
    with suppress(ConflictError):
        storage.unsynced().create(_marker_path(instant, data_path, kind), b"")


def renew_marker(storage: Storage, instant: InstantTime, data_path: str, kind: MarkerKind) -> None:
    """Mark a data file again: its marker may be old, or deleted."""
    storage.unsynced().replace(_marker_path(instant, data_path, kind), b"")


def marker_exists(storage: Storage, instant: InstantTime, data_path: str, kind: MarkerKind) -> bool:
    """Whether the marker that `create_marker` creates exists."""
    return storage.exists(_marker_path(instant, data_path, kind))


def _marker_path(instant: InstantTime, data_path: str, kind: MarkerKind) -> str:
    return join_path(marker_folder(instant), f"{data_path}.marker.{kind}")


def marked_files(
    storage: Storage, instant: InstantTime, markers: Iterable[FileStatus] | None = None
) -> tuple[str, ...]:
    """Return the data files that `instant` has marked, relative to the table, sorted.

    `markers` are those that the caller has listed, by default all that exist now.

    Raises CorruptError for a file with another instant in its name: a rollback of this instant
    would delete a file of that one.
    """
    folder = marker_folder(instant)
    files = list_markers(storage, instant) if markers is None else markers
    names = [file.path.removeprefix(f"{folder}/") for file in files]
    data_paths = _marked_paths(storage, instant, names)
    for path in data_paths:
        _check_instant(path, instant)
    return tuple(sorted(data_paths))


def delete_markers(storage: Storage, instant: InstantTime) -> None:
    """Delete all markers of an instant; none of its task attempts may be running any more."""
    # Markers that reappear after a power cut name files that are deleted, or in a commit.
    storage.unsynced().delete_folder(marker_folder(instant))


def delete_markers_for(storage: Storage, instant: InstantTime, data_paths: Iterable[str]) -> None:
    """Delete the markers of files whose task attempts have reported."""
    storage.unsynced().delete_many(
        _marker_path(instant, path, kind) for path in sorted(data_paths) for kind in MarkerKind
    )


def list_markers(storage: Storage, instant: InstantTime) -> tuple[FileStatus, ...]:
    """Return the files with markers of an instant, and the registrations of its attempts."""
    return tuple(storage.list_tree(marker_folder(instant)))


def finish_markers(
    storage: Storage,
    instant: InstantTime,
    reported: Collection[str] = (),
    markers: Sequence[FileStatus] | None = None,
) -> None:
    """Delete the markers of a finished write, except those of attempts that may be running.

    `reported` are files of task attempts that have reported. Files of the other attempts are
    deleted, and their markers stay, with an age that counts from now on. Markers that appear while
    this runs stay, too. Registrations of execution attempts are deleted: an attempt without one
    stops.

    `markers` are those to handle, by default all that exist now. A process that may have been
    paused since it held the table's lock passes what it listed then: markers that have appeared
    since may be those of another execution of the same plan.
    """
    folder = marker_folder(instant)
    files = list_markers(storage, instant) if markers is None else markers
    paths = {file.path: file.path.removeprefix(f"{folder}/") for file in files}
    matches = {path: _MARKER.fullmatch(name) for path, name in paths.items()}
    data_paths = {path: match["path"] for path, match in matches.items() if match}
    finished = {
        p for p, data in data_paths.items() if data in reported or is_attempt_registration(data)
    }
    unreported = [file for file in files if file.path not in finished]
    if unreported:
        # Where marker lists cannot be read, a rollback has found the files by listing the table.
        with suppress(CorruptError):
            names = [paths[file.path] for file in unreported]
            storage.delete_many(sorted(_marked_paths(storage, instant, names)))
        for file in unreported:
            # Write the same bytes again: the age counts from the modification time.
            with suppress(MissingFileError):
                content = storage.read(file.path) if file.size else b""
                storage.unsynced().replace(file.path, content)
    if finished:
        storage.unsynced().delete_many(sorted(finished))
    if not unreported:
        storage.prune_folders(folder)


def registrations(storage: Storage, instant: InstantTime) -> tuple[str, ...]:
    """Return the files whose markers register execution attempts of an instant."""
    prefix = f"{marker_folder(instant)}/"
    return tuple(
        match["path"]
        for file in list_markers(storage, instant)
        if (match := _MARKER.fullmatch(file.path.removeprefix(prefix)))
        and is_attempt_registration(match["path"])
    )


def attempt_registration(instant: InstantTime, partition: str, new_id: str) -> tuple[int, str]:
    """Return the number of a new execution attempt, and the file whose marker registers it.

    That file is never created. Its number is derived from its file id, which distinguishes it from
    data files.
    """
    number = _number_of(new_id)
    name = BaseFile(f"{new_id}-0", f"0-{number}-0", instant).name
    return number, join_path(partition, name)


def is_attempt_registration(data_path: str) -> bool:
    """Whether the marker of this path registers an execution attempt, and marks no file."""
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
    return int(new_id.replace("-", "")[-8:], 16) & _MAX_INT32


def conflicting_instant(
    storage: Storage, instant: InstantTime, data_path: str, alive: frozenset[str]
) -> str | None:
    """Return another instant of `alive` that has marked a file of the same file group, if any.

    This saves work that is bound to fail; whether two writes conflict is decided when the second
    one commits.
    """
    partition, name = split_path(data_path)
    data_file = parse_data_file(name)
    if data_file is None:
        raise InvalidError("not the name of a data file", path=data_path)
    live_instants = sorted(alive - {instant})
    listed = storage.list_many(
        folder for other in live_instants for folder in _folders_with_markers(other, partition)
    )
    for other in live_instants:
        prefix = f"{marker_folder(other)}/"
        files = [
            file.path
            for folder in _folders_with_markers(other, partition)
            for file in listed[folder]
        ]
        paths = [path.removeprefix(prefix) for path in files]
        marked: set[str] = set()
        # The markers of another write may be damaged, or half written; that is not an error here.
        with suppress(CorruptError):
            marked = _marked_paths(storage, other, paths)
        if any(_is_of_group(path, partition, data_file.file_id) for path in marked):
            return other
    return None


def marker_folder(instant: InstantTime) -> str:
    """Return the folder of an instant's markers; real Hudi finds none if it holds anything else."""
    return f"{FOLDER}/{instant}"


def spill_folder(instant: InstantTime) -> str:
    """Return the folder of the rows that tasks of a write spill for other tasks."""
    return f"{SPILL}/{instant}"


def _folders_with_markers(instant: InstantTime, partition: str) -> list[str]:
    """Return the folders that can hold markers of a partition: the top for lists, and its own."""
    top = marker_folder(instant)
    return [top, join_path(top, partition)] if partition else [top]


def _marked_paths(storage: Storage, instant: InstantTime, names: Sequence[str]) -> set[str]:
    """Return the data files that direct markers and marker lists of an instant name."""
    direct = {_path_of(match) for path in names if (match := _MARKER.fullmatch(path))}
    list_files = [
        join_path(marker_folder(instant), path) for path in names if _MARKER_LIST.fullmatch(path)
    ]
    try:
        lists = storage.read_many(list_files) if list_files else []
    except MissingFileError:
        # The write has just committed, or was rolled back; read the lists that are left.
        lists = list(_read_existing(storage, list_files))
    return direct.union(*(_parse_marker_list(data, instant) for data in lists))


def _read_existing(storage: Storage, files: Iterable[str]) -> Iterator[bytes]:
    for file in files:
        with suppress(MissingFileError):
            yield storage.read(file)


def _parse_marker_list(data: bytes, instant: InstantTime) -> Iterator[str]:
    # Bytes that are not UTF-8 cannot be the path of a file to delete; surrogates keep them distinct
    # from real paths.
    text = data.decode("utf-8", "surrogateescape")
    end = 0
    while match := _LISTED_MARKER.match(text, end):
        yield _path_of(match)
        end = match.end()
    if text[end:].strip():
        raise CorruptError(
            "a list of markers breaks off; roll back with hoodie.rollback.using.markers=false",
            instant=instant,
            rest=text[end : end + 100],
        )


def _path_of(match: re.Match[str]) -> str:
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


def _is_of_group(path: str, partition: str, file_id: str) -> bool:
    folder, name = split_path(path)
    file: BaseFile | LogFile | None = None
    with suppress(CorruptError, UnsupportedError):
        file = parse_data_file(name)
    return folder == partition and file is not None and file.file_id == file_id


# The progress of a pending write: its markers name its files, and a file that exists is complete.


@dataclass(frozen=True, slots=True)
class WriteProgress:
    """How many files a pending write has marked, and how many of them exist, with their size."""

    begun: int = 0
    finished: int = 0
    bytes: int = 0


def write_progress(storage: Storage, instant: InstantTime) -> WriteProgress:
    """Return the progress of an instant, from its markers and a listing of their partitions."""
    marked = set(marked_files(storage, instant))
    listed = storage.list_many(sorted({split_path(path)[0] for path in marked}))
    sizes = [file.size for files in listed.values() for file in files if file.path in marked]
    return WriteProgress(len(marked), len(sizes), sum(sizes))
