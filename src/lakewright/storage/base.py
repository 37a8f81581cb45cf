"""The storage protocol, with its guarantees, and helpers that all storages share."""

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

# An empty, "." or ".." segment anywhere, or a character that some store refuses in a name.
_INVALID_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f\ud800-\udfff]")

MAX_THREADS = 32


class MissingFileError(CorruptError):
    """A file does not exist; callers that expect this catch it by its class."""


@dataclass(frozen=True, slots=True)
class FileStatus:
    """One file of a listing; `path` is relative to the storage's root."""

    path: str
    size: int
    modified_ms: int

    @property
    def name(self) -> str:
        """The last segment of the path."""
        return self.path[self.path.rfind("/") + 1 :]


@dataclass(frozen=True, slots=True)
class IgnoredEntry:
    """An entry of a table's folder that listings leave out; `name` is its path, escaped."""

    name: str
    reason: str


class Storage(Protocol):
    """The files below one root; everything that reads or writes a table uses this protocol.

    Paths are POSIX strings relative to `root`: no leading or trailing slash, no empty, `.` or
    `..` segment, no control character; any other path raises InvalidError. A folder is such a path
    too, or "" for the root. A folder exists while it contains a file; whether an empty one is still
    listed depends on the storage.

    - `create` is atomic: the whole file appears under its name, or nothing does;
    - `create` of an existing name raises ConflictError and changes nothing; if several processes
      create the same name, exactly one succeeds;
    - `replace` is atomic: a reader gets the old bytes or the new ones, never a mixture;
    - a listing shows the effect of every `create` and `replace` that has returned, and no temporary
      file; it leaves out names that are no valid path, and follows no symbolic link to a folder;
    - a change that has returned survives a power failure, and so do all changes before it: created
      and replaced files persist, deleted files do not reappear. `unsynced` waives this guarantee;
    - reading a missing file raises MissingFileError; listing a missing folder returns nothing;
    - deleting a missing file is not an error: services run again after a crash;
    - UnavailableError from `create` leaves open whether the file was written: if a caller retries
      and gets a ConflictError, the existing file may be its own.

    A storage is plain data and can be pickled: each process makes its own connections.
    """

    __slots__ = ()

    @property
    def root(self) -> str:
        """The base path as a URI that Spark understands, without a trailing slash."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Whether modification times come from a clock other than that of this machine."""
        return False

    @property
    def is_remote(self) -> bool:
        """Whether each call waits for a network, so that threads make many calls take less time."""
        return False

    @property
    def parallel_listings(self) -> int:
        """How many trees to list concurrently; few on a disk, where threads cost more than I/O."""
        return 2

    @property
    def loses_unsynced(self) -> bool:
        """Whether a power failure can lose files that were written with `unsynced`."""
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
        """Return `list_files` of each folder; remote storages list them concurrently."""
        return {folder: self.list_files(folder) for folder in folders}

    def list_temporary(self) -> list[FileStatus]:
        """Return temporary files, of running or crashed processes; no other listing shows them."""
        return []

    def list_ignored(self) -> list[IgnoredEntry]:
        """Return the entries that listings leave out, for a person to inspect."""
        return []

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the file exists."""
        return self.status(path) is not None

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        ...

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        ...

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        """Return `read` of each path, in order; remote storages read them concurrently."""
        return [self.read(path) for path in paths]

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access, as `pyarrow.parquet` needs it; the caller closes it."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if it exists."""
        ...

    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Write a new file that need not fit in memory.

        The whole file appears when the `with` block ends, and nothing appears if the block raises;
        the block must not close it. An existing name raises ConflictError, but if two writers race
        to create the same large object, both may succeed: use it for names that are unique by
        construction.
        """
        ...

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not; b"" renews a heartbeat file."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        ...

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete several files, in no particular order; a crash may leave some of them."""
        for path in paths:
            self.delete(path)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything in it, never the root; a crash may leave a part."""
        ...

    def prune_folders(self, folder: str) -> None:
        """Delete a folder and the folders below it that contain no file; never the root.

        Does nothing on storages whose folders exist only through their files.
        """
        return

    def unsynced(self) -> Storage:
        """Return a storage of the same files whose changes a power failure may undo, in any order.

        Use it for files that are useless after a restart (heartbeats, locks), for files whose loss
        is harmless (markers), and to write many files before syncing them together with `sync`.
        """
        return self

    def with_timeout(self, seconds: float) -> Storage:
        """Return a storage of the same files whose requests fail after about this time.

        UnavailableError then leaves open what became of the request, as ever. A storage whose
        client knows no timeouts returns itself.
        """
        return self

    def sync(self, paths: Iterable[str]) -> None:
        """Make files durable that were written with `unsynced`; missing files are ignored."""
        return


class RemoteStorage(Storage):
    """A storage behind a network, with a clock of its own: threads hide the latency of requests."""

    __slots__ = ()

    @property
    def has_own_clock(self) -> bool:
        """Always: modification times come from the service."""
        return True

    @property
    def is_remote(self) -> bool:
        """Always."""
        return True

    @property
    def parallel_listings(self) -> int:
        """How many trees to list concurrently."""
        return MAX_THREADS

    def list_many(self, folders: Iterable[str]) -> dict[str, list[FileStatus]]:
        """Return `list_files` of each folder, listed concurrently."""
        paths = list(folders)
        return dict(zip(paths, map_in_threads(self.list_files, paths), strict=True))

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        """Return `read` of each path, in order, read concurrently."""
        return map_in_threads(self.read, list(paths))

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete several files concurrently."""
        map_in_threads(self.delete, [check_path(path) for path in paths])


@runtime_checkable
class VersionedStorage(Storage, Protocol):
    """A storage that can replace a file on the condition that no other process has changed it.

    A version is an opaque text that changes with the content; equal content may have an equal
    version. The check ignores concurrent calls of plain `create` and `replace`.
    """

    __slots__ = ()

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        ...

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file if it has `version`, or does not exist if None; return the new version.

        Raises ConflictError, and changes nothing, if the file has another version.
        """
        ...


def is_path(path: str) -> bool:
    """Whether `path` is a valid path of a file in a storage."""
    return _INVALID_PATH.search(path) is None


def check_path(path: str) -> str:
    """Return `path` if it is a valid path of a file, else raise InvalidError."""
    if not is_path(path):
        raise InvalidError("not a path relative to the table", path=path)
    return path


def check_folder(folder: str) -> str:
    """Return `folder` if it is the root ("") or a path below it, else raise InvalidError."""
    return check_path(folder) if folder else folder


def check_range(path: str, offset: int, length: int) -> None:
    """Raise InvalidError if `offset` or `length` is negative."""
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
    """Return a new name for a temporary file, which all readers of the format ignore."""
    # It must not end like a base file nor contain ".log": readers would parse it.
    return f".lw-{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Whether `name` is that of a temporary file."""
    return name.startswith(".lw-") and name.endswith(".tmp")


def content_version(data: bytes) -> str:
    """Return a version derived from the content, for storages without versions of their own."""
    return hashlib.sha256(data).hexdigest()


def map_in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], max_threads: int = MAX_THREADS
) -> list[Result]:
    """Return `work` of each item, in order, computed in threads; raise the first error.

    Starts no thread for a single item, nor if `max_threads` is 1.
    """
    if len(items) < 2 or max_threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(max_threads, len(items))) as threads:
        return list(threads.map(work, items))


def is_hadoop_setting(name: str) -> bool:
    """Whether an option is a storage setting of Hadoop, with or without Spark's prefix."""
    return name.removeprefix("spark.hadoop.").startswith(("fs.", "dfs.", "hadoop."))


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of a boolean option; anything but true and false is an InvalidError."""
    text = options.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise InvalidError("an option is neither true nor false", option=name, value=text)
    return text.lower() == "true"
