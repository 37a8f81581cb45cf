"""Tables on HDFS, without a JVM: by the optional package hdfs-native."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.storage.base import (
    MOST_THREADS,
    FileStatus,
    MissingFileError,
    Storage,
    check_folder,
    check_path,
    check_range,
    is_hadoop_setting,
    is_path,
    is_temporary,
    join_path,
    map_in_threads,
    temporary_name,
)
from lakewright.storage.object_store import RangedInput
from lakewright.utils.optional_imports import imported

if TYPE_CHECKING:
    from hdfs_native import Client, FileReader, FileWriter, WriteOptions
    from hdfs_native import FileStatus as NativeStatus

Options = tuple[tuple[str, str], ...]

_DEFAULT_FS = "fs.defaultFS"
_DEFAULT_PORT = 8020
_REPLICATION = "dfs.replication"
_UMASK = "fs.permissions.umask-mode"
_ATTEMPTS = "dfs.client.failover.max.attempts"
# About half a minute; the client's own patience of minutes is made for a pair of NameNodes.
_ATTEMPTS_AT_ONE = "5"
_PROVIDER = "dfs.client.failover.proxy.provider"
_ASK_THE_ACTIVE = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"

# How the client quotes the exception of a server: its class, then its message.
_JAVA_ERROR = re.compile(r'(?:Fatal)?RPCError\("([^"]*)", ')
_REFUSALS = (
    "AccessControlException",
    "AuthorizationException",
    "InvalidPathException",
    "InvalidToken",
    "ParentNotDirectoryException",
    "PathComponentTooLongException",
)
_FULL_FOLDER = "PathIsNotEmptyDirectoryException"
_NO_FOLDER = "(is not a directory)"
_NAME_OF_FOLDER = "must both be directories"
# What the client itself calls its errors.
_WRONG = ("GSSAPIError", "InvalidArgument", "InvalidPath", "NoSASL", "SASLError", "UrlParseError")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """A folder of a NameNode (`host:port`) or of a nameservice; `folder` is "" or "/a/b"."""

    authority: str
    folder: str

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str]) -> HdfsLocation:
        """Read a URI such as `hdfs://namenode:8020/lake/trips`; `fs.defaultFS` fills in a host."""
        authority, path = _split(uri)
        default = options.get(_DEFAULT_FS, "")
        if not authority and default.startswith("hdfs:"):
            authority, _ = _split(default)
        if not authority:
            raise InvalidError("the address names no NameNode or nameservice", uri=uri)
        folder = path.strip("/")
        return cls(authority, f"/{check_path(folder)}" if folder else "")

    @property
    def text(self) -> str:
        """The URI as Spark wants it."""
        return f"hdfs://{self.authority}{self.folder}"


def _split(uri: str) -> tuple[str, str]:
    rest = re.sub(r"^hdfs:(//)?", "", uri, flags=re.IGNORECASE)
    authority, _, path = rest.partition("/")
    return authority, path


def normal_options(options: Mapping[str, str]) -> Options:
    """Return Hadoop's settings about storage without Spark's prefix, sorted."""
    for name in options:
        if not is_hadoop_setting(name):
            raise InvalidError("unknown option for a table on HDFS", option=name)
    plain = {name.removeprefix("spark.hadoop."): value for name, value in options.items()}
    return tuple(sorted(plain.items()))


@lru_cache(maxsize=64)
def client_for(authority: str, options: Options) -> Client:
    """Return the client of this process; a wrong setting is an InvalidError."""
    native = imported("hdfs_native", "hdfs")
    config = _config(authority, options)
    try:
        try:
            client: Client = native.Client(f"hdfs://{authority}", config)
        except RuntimeError as error:
            # A host without a port that is no nameservice is a NameNode at the usual one.
            if ":" in authority or "No NameNode hosts found" not in str(error):
                raise
            client = native.Client(f"hdfs://{authority}:{_DEFAULT_PORT}", config)
    except (OSError, RuntimeError) as error:
        raise InvalidError(
            "the settings do not make a client of HDFS",
            address=authority,
            settings=[name for name, _ in options],
            reason=str(error)[:_SHOWN],
        ) from error
    return client


def _config(authority: str, options: Options) -> dict[str, str]:
    config = dict(options)
    if ":" in authority:
        config.setdefault(_ATTEMPTS, _ATTEMPTS_AT_ONE)
    # An observer answers from the past: a listing could miss a commit that has completed.
    config[f"{_PROVIDER}.{authority.partition(':')[0]}"] = _ASK_THE_ACTIVE
    return config


@lru_cache(maxsize=64)
def write_options(options: Options) -> WriteOptions:
    """Return how new files are made: what Hadoop's own client would take from the settings."""
    told = dict(options)
    replication, umask = told.get(_REPLICATION), told.get(_UMASK, "022")
    try:
        made: WriteOptions = imported("hdfs_native", "hdfs").WriteOptions(
            replication=int(replication) if replication else None,
            permission=0o666 & ~int(umask, 8),
        )
    except (ValueError, OverflowError) as error:
        raise InvalidError(
            "a setting is no number", **{_REPLICATION: replication, _UMASK: umask}
        ) from error
    return made


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn what the client raises while it reads into one of this library's errors."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingFileError("there is no such file", path=path) from error
    except (OSError, RuntimeError) as error:
        # Nothing is below a file, and HDFS calls it a matter of access to look there.
        if _NO_FOLDER in str(error):
            raise MissingFileError("there is no such file", path=path) from error
        raise _trouble(error, path) from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn what the client raises while it writes into one of this library's errors."""
    try:
        yield
    except FileExistsError as error:
        raise ConflictError("the file exists already", path=path) from error
    except (OSError, RuntimeError) as error:
        raise _trouble(error, path) from error


@contextmanager
def deleting(path: str) -> Iterator[None]:
    """The same for a deletion: where no file of that name is, there is nothing to be done."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_no_file = _NO_FOLDER in str(error) or _java_error(error) == _FULL_FOLDER
        if not is_no_file:
            raise _trouble(error, path) from error


def _trouble(error: Exception, path: str) -> LakewrightError:
    text = str(error)
    reason = text.partition("\\n")[0].partition("\n")[0][:_SHOWN]
    told = text if isinstance(error, RuntimeError) else ""
    if isinstance(error, NotImplementedError) or told.startswith("UnsupportedErasure"):
        return UnsupportedError("the client of HDFS cannot do this", path=path, reason=reason)
    if told.startswith("ChecksumError"):
        return CorruptError("HDFS gave other bytes than were written", path=path, reason=reason)
    if _java_error(error) in _REFUSALS or told.startswith(_WRONG) or _NAME_OF_FOLDER in told:
        return InvalidError("HDFS refused the request", path=path, reason=reason)
    return UnavailableError("HDFS did not answer, or not now", path=path, reason=reason)


def _java_error(error: Exception) -> str:
    """The class of the exception that a server has answered with, without its package."""
    found = _JAVA_ERROR.match(str(error))
    return re.split(r"[.$]", found[1])[-1] if found else ""


# ------------------------------------------------------------------------------------------------
# From a URI and Hadoop's settings to a client of HDFS, and from its errors to ours.


_BUFFER = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HdfsStorage(Storage):
    """Files below a folder of HDFS; made by `HdfsStorage.at`.

    Options are Hadoop's settings (`dfs.*`, `fs.*`, `hadoop.*`: nameservices, `dfs.replication`,
    `fs.permissions.umask-mode`, ...); those in the files of HADOOP_CONF_DIR count where they say
    nothing.

    New bytes are written to a temporary file beside their target (a name that every reader of the
    format ignores), which is renamed once it is complete: one step of the NameNode, which refuses
    a name that is taken. A killed process can leave such a temporary file behind but never half a
    file. HDFS cannot replace a file on a condition, so a lock here is a file.

    HDFS itself takes no colon in a name: that is an InvalidError.
    """

    location: HdfsLocation
    options: Options = field(default=(), repr=False)

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str] | None = None) -> HdfsStorage:
        """Open a storage by its URI; a wrong setting is an InvalidError here, not later."""
        told = normal_options(options or {})
        storage = cls(HdfsLocation.parse(uri, dict(told)), told)
        client_for(storage.location.authority, told)
        write_options(told)
        return storage

    @property
    def has_own_clock(self) -> bool:
        """The NameNode has its own clock."""
        return True

    @property
    def parallel_listings(self) -> int:
        """How many trees are listed at once."""
        return MOST_THREADS

    @property
    def root(self) -> str:
        """The base path as a `hdfs://` URI; like Hadoop's, it escapes no character."""
        return self.location.text

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        files, _ = self._scan(check_folder(folder))
        shown = (file for file in files if not is_temporary(file.name))
        return sorted(shown, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        _, folders = self._scan(check_folder(folder))
        return sorted(folders)

    def list_many(self, folders: Iterable[str]) -> dict[str, list[FileStatus]]:
        """Return `list_files` of each folder, all at once."""
        wanted = list(folders)
        return dict(zip(wanted, map_in_threads(self.list_files, wanted), strict=True))

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below; the folders of a level are listed at once."""
        for file in self._walk(check_folder(folder)):
            if not is_temporary(file.name):
                yield file

    def list_temporary(self) -> list[FileStatus]:
        """Return the temporary files of processes that are at work, or were killed."""
        return [file for file in self._walk("") if is_temporary(file.name)]

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if there is no such file."""
        full = self._full(path)
        try:
            with reading(path):
                found = self._client.get_file_info(full)
        except MissingFileError:
            return None
        return None if found.isdir else _status(path, found)

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        return self._read_open(path, self._open(path), 0, None)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        check_range(path, offset, length)
        return self._read_open(path, self._open(path), offset, length)

    def read_many(self, paths: Iterable[str]) -> list[bytes]:
        """Return `read` of each path, in order, all at once."""
        return map_in_threads(self.read, list(paths))

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; where its blocks are is asked once."""
        reader = self._open(path)
        return pa.PythonFile(
            RangedInput(len(reader), partial(self._read_open, path, reader)), mode="r"
        )

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if the name is taken."""
        self._write(path, data, overwrite=False)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces; it appears whole when the block ends."""
        with self._temporary(path) as (name, output):
            pieces = io.BufferedWriter(output, _BUFFER)
            yield cast(BinaryIO, pieces)
            pieces.flush()
            self._publish(name, output, path, overwrite=False)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        self._write(path, data, overwrite=True)

    def delete(self, path: str) -> None:
        """Remove a file if it is there."""
        full = self._full(path)
        with deleting(path):
            self._client.delete(full)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove several files, all at once."""
        map_in_threads(self.delete, [check_path(path) for path in paths])

    def delete_folder(self, folder: str) -> None:
        """Remove a folder and all below it, in one step; never the root."""
        full = self._full(folder)
        with suppress(MissingFileError), reading(folder):
            if self._client.get_file_info(full).isdir:
                self._client.delete(full, recursive=True)

    def prune_folders(self, folder: str) -> None:
        """Remove a folder and those below it as far as no file is in them; never the root."""
        files, folders = self._scan(check_path(folder))
        for each in folders:
            self.prune_folders(each)
        if files or any(self._scan(folder)):
            return
        # Another process may have put a file there since: only an empty folder is deleted.
        with deleting(folder):
            self._client.delete(self._full(folder), recursive=False)

    @property
    def _client(self) -> Client:
        return client_for(self.location.authority, self.options)

    def _full(self, path: str) -> str:
        return f"{self.location.folder}/{check_path(path)}"

    def _scan(self, folder: str) -> tuple[list[FileStatus], list[str]]:
        """The files of a folder, temporary ones too, and the folders in it."""
        full = self._full(folder) if folder else self.location.folder or "/"
        files, folders = [], []
        with suppress(MissingFileError), reading(folder):
            for entry in self._client.list_status(full):
                # A file is listed as if it were in itself.
                if entry.path == full:
                    continue
                path = join_path(folder, entry.path[entry.path.rfind("/") + 1 :])
                if not is_path(path):
                    continue
                if entry.isdir:
                    folders.append(path)
                else:
                    files.append(_status(path, entry))
        return files, folders

    def _walk(self, folder: str) -> Iterator[FileStatus]:
        waiting = [folder]
        while waiting:
            scanned = map_in_threads(self._scan, waiting)
            for files, _ in scanned:
                yield from files
            waiting = [below for _, folders in scanned for below in folders]

    def _open(self, path: str) -> FileReader:
        full = self._full(path)
        with reading(path):
            return self._client.read(full)

    def _read_open(self, path: str, reader: FileReader, offset: int, length: int | None) -> bytes:
        try:
            with reading(path):
                return _part(reader, offset, length)
        except UnavailableError:
            # Blocks move, and those of a file that is replaced or deleted go away.
            fresh = self._open(path)
            with reading(path):
                return _part(fresh, offset, length)

    def _write(self, path: str, data: bytes, *, overwrite: bool) -> None:
        with self._temporary(path) as (name, output):
            output.write(data)
            self._publish(name, output, path, overwrite=overwrite)

    @contextmanager
    def _temporary(self, path: str) -> Iterator[tuple[str, _Output]]:
        full = self._full(path)
        name = f"{full[: full.rfind('/')]}/{temporary_name()}"
        with writing(path):
            output = _Output(self._client.create(name, write_options(self.options)), path)
        try:
            yield name, output
        except BaseException:
            output.abandon()
            with suppress(OSError, RuntimeError):
                self._client.delete(name)
            raise

    def _publish(self, name: str, output: _Output, path: str, *, overwrite: bool) -> None:
        output.finish()
        # The client never repeats a call that may have been carried out, so that a refusal is
        # one of another's file, and a lost answer is told as that.
        with writing(path):
            self._client.rename(name, self._full(path), overwrite=overwrite)


class _Output(io.RawIOBase):
    """A file of HDFS that is being written, with this library's errors."""

    def __init__(self, writer: FileWriter, path: str) -> None:
        self._writer: FileWriter | None = writer
        self._path = path
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        # What a buffer still holds when its file was given up goes nowhere.
        if self._writer is not None and len(data):
            with writing(self._path):
                self._writer.write(data)
        self._position += len(data)
        return len(data)

    def finish(self) -> None:
        """Have HDFS keep what was written; before that the file is not complete."""
        if self._writer is not None:
            with writing(self._path):
                self._writer.close()

    def abandon(self) -> None:
        """Write no more; the file is of no use."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError, RuntimeError):
                writer.close()


def _status(path: str, found: NativeStatus) -> FileStatus:
    return FileStatus(path, found.length, found.modification_time)


def _part(reader: FileReader, offset: int, length: int | None) -> bytes:
    left = len(reader) - offset
    wanted = left if length is None else min(length, left)
    # The client does not survive being asked for what is behind the end.
    if wanted <= 0:
        return b""
    data = reader.read_range(offset, wanted)
    if len(data) != wanted:
        raise OSError(f"{len(data)} of {wanted} bytes came")
    return data
