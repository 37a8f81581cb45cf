"""What a storage promises, and the few values and helpers that every storage shares."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from lakewright.errors import CorruptError, InvalidError

Item = TypeVar("Item")
Result = TypeVar("Result")

# An empty, "." or ".." segment anywhere, or a character that no store takes in a name.
_BAD_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f\ud800-\udfff]")

MOST_THREADS = 32


class MissingFileError(CorruptError):
    """A file that should be there is not; a caller that expects this catches it by name."""


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file as a listing shows it; `path` is relative to the storage's root."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        """The last segment of the path."""
        return self.path[self.path.rfind("/") + 1 :]


@dataclass(frozen=True, slots=True)
class IgnoredEntry:
    """Something in a table's folder that listings pass over; `name` is its path, escaped."""

    name: str
    reason: str


class Storage(Protocol):
    """The only door to bytes.

    Paths are POSIX strings relative to `root`: no leading or trailing slash, no empty, `.` or
    `..` segment, no control character; anything else is an InvalidError. A folder is such a path
    too, or "" for the root. A folder exists while a file is in it; whether an empty one is still
    listed is up to the storage.

    - `create` is atomic: the whole file appears under its name, or nothing does;
    - `create` on a name that exists raises ConflictError and changes nothing; of several
      creators of one name exactly one wins;
    - `replace` is atomic: a reader gets the old bytes or the new ones, never a mixture;
    - a listing shows every `create` and `replace` that has returned, and no temporary file; it
      passes over names that are no path, and follows no symbolic link to a folder;
    - what has returned survives a power cut, in the order in which it was asked for: files that are
      created or replaced stay, deleted ones do not come back. `unsynced` gives that up;
    - reading a missing file raises MissingFileError, listing a missing folder gives nothing;
    - deleting what is missing is not an error: services run again after a crash;
    - UnavailableError from `create` leaves open whether the file was written: who calls again
      and gets a ConflictError may be looking at their own bytes.

    A storage is plain data and can be pickled: connections are made where they are used.
    """

    __slots__ = ()

    @property
    def root(self) -> str:
        """The base path as a URI that Spark understands, without a trailing slash."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Whether times of modification are those of a clock of its own, not of this machine."""
        return False

    @property
    def parallel_listings(self) -> int:
        """How many trees are listed at once: little is waited for on a disk, where threads cost."""
        return 2

    @property
    def loses_unsynced(self) -> bool:
        """Whether a power cut can take away what was written with `unsynced`."""
        return False

    def url(self, path: str) -> str:
        """Return the URI of one file or folder, for Spark."""
        return f"{self.root}/{check_path(path)}"

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        ...

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        ...

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below, in no particular order."""
        ...

    def list_many(self, folders: Iterable[str]) -> dict[str, list[FileStatus]]:
        """Return `list_files` of each folder; at once where a call is a round trip."""
        return {folder: self.list_files(folder) for folder in folders}

    def list_temporary(self) -> list[FileStatus]:
        """Return unfinished files, which no other listing shows: being written, or of the dead."""
        return []

    def list_ignored(self) -> list[IgnoredEntry]:
        """Return what no listing shows although it is there, for a person to look at."""
        return []

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if there is no such file."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether there is a file of that name."""
        return self.status(path) is not None

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        ...

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        ...

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        """Return `read` of each path, in order; at once where a call is a round trip."""
        return [self.read(path) for path in paths]

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access, as `pyarrow.parquet` wants it; the caller closes it."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if the name is taken."""
        ...

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file that need not fit in memory.

        The file appears whole when the block ends, and not at all when it raises; the block
        leaves it open. A name that
        exists is a ConflictError, but of two writers that race for one name of a large object
        both may succeed: use it for names that are unique by construction.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not; with b"" this is how a heartbeat is touched."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file if it is there."""
        ...

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove several files, in no particular order; a crash may leave some of them."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Remove a folder and all below it; never the root. A crash may leave a part."""
        ...

    def prune_folders(self, folder: str) -> None:
        """Remove a folder and those below it as far as no file is in them; never the root.

        Nothing to do where folders exist only by the files in them.
        """
        return

    def unsynced(self) -> Storage:
        """The same files, for changes that a power cut may undo, each for itself.

        For files that mean nothing afterwards (heartbeats, locks), for those whose loss does no
        harm (markers), and for many that are written first and then synced together: `sync`.
        """
        return self

    def sync(self, paths: Iterable[str]) -> None:
        """Let files that were written with `unsynced` survive a power cut, as if it were not so.

        A file that is missing is passed over.
        """
        return


@runtime_checkable
class VersionedStorage(Storage, Protocol):
    """A storage that can replace a file only if nobody else did so meanwhile.

    A version is an opaque text that changes when the content does; the same content may have
    the same version again. Plain `create` and `replace` do not take part in the race.
    """

    __slots__ = ()

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        ...

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file that still has `version` (None: that does not exist); give the new one.

        Raises ConflictError, and changes nothing, if the file has another version.
        """
        ...


def is_path(path: str) -> bool:
    """Tell whether `path` names a file as a storage wants it."""
    return _BAD_PATH.search(path) is None


def check_path(path: str) -> str:
    """Return `path` if it names a file as a storage wants it, else raise InvalidError."""
    if not is_path(path):
        raise InvalidError("not a path relative to the table", path=path)
    return path


def check_folder(folder: str) -> str:
    """Return `folder` if it is the root ("") or a path below it, else raise InvalidError."""
    return check_path(folder) if folder else folder


def check_range(path: str, offset: int, length: int) -> None:
    """Raise InvalidError unless both numbers can be a part of a file."""
    if offset < 0 or length < 0:
        raise InvalidError("not a range of a file", path=path, offset=offset, length=length)


def join_path(folder: str, name: str) -> str:
    """Return the path of `name` in `folder`, which may be the root.

    >>> join_path("", "a"), join_path("day=1", "a")
    ('a', 'day=1/a')
    """
    return f"{folder}/{name}" if folder else name


def split_path(path: str) -> tuple[str, str]:
    """Return the folder and the name; the inverse of `join_path`.

    >>> split_path("a"), split_path("x/day=1/a")
    (('', 'a'), ('x/day=1', 'a'))
    """
    folder, _, name = path.rpartition("/")
    return folder, name


def temporary_name() -> str:
    """Return a new name for an unfinished file, which readers of the format take for no file."""
    # It must neither end like a base file nor contain ".log": readers would parse it.
    return f".lw-{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Tell whether `name` is that of an unfinished file."""
    return name.startswith(".lw-") and name.endswith(".tmp")


def content_version(data: bytes) -> str:
    """Return a version for storages that have none of their own."""
    return hashlib.sha256(data).hexdigest()


def map_in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], most: int = MOST_THREADS
) -> list[Result]:
    """Do `work` on all items in threads and give the results in order; the first error raises."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(most, len(items))) as threads:
        return list(threads.map(work, items))


def is_hadoop_setting(name: str) -> bool:
    """Tell whether an option is one of Hadoop's about storage, with or without Spark's prefix."""
    return name.removeprefix("spark.hadoop.").startswith(("fs.", "dfs.", "hadoop."))


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Read a yes/no option; anything but true and false is an InvalidError."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidError("an option is neither true nor false", option=name, value=text)
    return text.lower() == "true"
