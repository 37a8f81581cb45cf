"""Tables on HDFS, without a JVM, through the optional package hdfs-native.

Hadoop's settings configure the client; its errors are translated into this library's errors.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa

from lakewright.clock import SystemClock
from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
    UnsupportedError,
)
from lakewright.storage.base import (
    FileStatus,
    MissingFileError,
    RemoteStorage,
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
# About half a minute; the client's default of minutes is meant for failover of two NameNodes.
_SINGLE_NODE_ATTEMPTS = "5"
_PROVIDER = "dfs.client.failover.proxy.provider"
_ACTIVE_ONLY_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"

# How the client formats an exception of the server: its class, then its message.
_JAVA_ERROR = re.compile(r'(?:Fatal)?RPCError\("([^"]*)", ')
_REFUSALS = (
    "AccessControlException",
    "AuthorizationException",
    "InvalidPathException",
    "InvalidToken",
    "ParentNotDirectoryException",
    "PathComponentTooLongException",
)
_FOLDER_NOT_EMPTY = "PathIsNotEmptyDirectoryException"
_PARENT_IS_FILE = "(is not a directory)"
_TARGET_IS_FOLDER = "must both be directories"
# Names of the client's own errors that mean a wrong request or setting.
_CLIENT_REFUSALS = (
    "GSSAPIError",
    "InvalidArgument",
    "InvalidPath",
    "NoSASL",
    "SASLError",
    "UrlParseError",
)
_MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """A folder of a NameNode (`host:port`) or of a nameservice; `folder` is "" or "/a/b"."""

    authority: str
    folder: str

    @classmethod
    def parse(cls, uri: str, options: Mapping[str, str]) -> HdfsLocation:
        """Parse a URI such as `hdfs://namenode:8020/lake`; `fs.defaultFS` is the default host."""
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
        """The URI for Spark."""
        return f"hdfs://{self.authority}{self.folder}"


def _split(uri: str) -> tuple[str, str]:
    rest = re.sub(r"^hdfs:(//)?", "", uri, flags=re.IGNORECASE)
    authority, _, path = rest.partition("/")
    return authority, path


def normal_options(options: Mapping[str, str]) -> Options:
    """Return Hadoop's storage settings without Spark's prefix, sorted."""
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
            # A host without a port that is no nameservice is a NameNode at the default port.
            if ":" in authority or "No NameNode hosts found" not in str(error):
                raise
            client = native.Client(f"hdfs://{authority}:{_DEFAULT_PORT}", config)
    except (OSError, RuntimeError) as error:
        raise InvalidError(
            "the settings do not make a client of HDFS",
            address=authority,
            settings=[name for name, _ in options],
            reason=str(error)[:_MAX_REASON],
        ) from error
    return client


def _config(authority: str, options: Options) -> dict[str, str]:
    config = dict(options)
    if ":" in authority:
        config.setdefault(_ATTEMPTS, _SINGLE_NODE_ATTEMPTS)
    # An observer NameNode may lag behind: its listing could miss a completed commit.
    config[f"{_PROVIDER}.{authority.partition(':')[0]}"] = _ACTIVE_ONLY_PROVIDER
    return config


@lru_cache(maxsize=64)
def write_options(options: Options) -> WriteOptions:
    """Return replication and permissions of new files, as Hadoop's client derives them."""
    settings = dict(options)
    replication, umask = settings.get(_REPLICATION), settings.get(_UMASK, "022")
    try:
        result: WriteOptions = imported("hdfs_native", "hdfs").WriteOptions(
            replication=int(replication) if replication else None,
            permission=0o666 & ~int(umask, 8),
        )
    except (ValueError, OverflowError) as error:
        raise InvalidError(
            "a setting is no number", **{_REPLICATION: replication, _UMASK: umask}
        ) from error
    return result


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Translate client errors of a block that reads; a missing file is a MissingFileError."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingFileError("there is no such file", path=path) from error
    except (OSError, RuntimeError) as error:
        # The parent of the path is a file, which HDFS reports as an access error.
        if _PARENT_IS_FILE in str(error):
            raise MissingFileError("there is no such file", path=path) from error
        raise _translated(error, path) from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Translate client errors of a block that writes; an existing name is a ConflictError."""
    try:
        yield
    except FileExistsError as error:
        raise ConflictError("the file exists already", path=path) from error
    except (OSError, RuntimeError) as error:
        raise _translated(error, path) from error


@contextmanager
def deleting(path: str) -> Iterator[None]:
    """Translate client errors of a block that deletes; a path that is no file is no error."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        is_no_file = _PARENT_IS_FILE in str(error) or _java_error(error) == _FOLDER_NOT_EMPTY
        if not is_no_file:
            raise _translated(error, path) from error


def _translated(error: Exception, path: str) -> LakewrightError:
    text = str(error)
    reason = text.partition("\\n")[0].partition("\n")[0][:_MAX_REASON]
    client_text = text if isinstance(error, RuntimeError) else ""
    if isinstance(error, NotImplementedError) or client_text.startswith("UnsupportedErasure"):
        return UnsupportedError("the client of HDFS cannot do this", path=path, reason=reason)
    if client_text.startswith("ChecksumError"):
        return CorruptError("HDFS returned other bytes than were written", path=path, reason=reason)
    if (
        _java_error(error) in _REFUSALS
        or client_text.startswith(_CLIENT_REFUSALS)
        or _TARGET_IS_FOLDER in client_text
    ):
        return InvalidError("HDFS refused the request", path=path, reason=reason)
    return UnavailableError("HDFS did not answer, or not now", path=path, reason=reason)


def _java_error(error: Exception) -> str:
    """Return the class, without package, of an exception of the server; "" if there is none."""
    match = _JAVA_ERROR.match(str(error))
    return re.split(r"[.$]", match[1])[-1] if match else ""


# The storage.

_BUFFER = 1024 * 1024
# The least size of a block that a NameNode accepts, unless its administrator lowers it.
_MIN_BLOCK = 1024 * 1024
_LENGTH_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class HdfsStorage(RemoteStorage):
    """Files below a folder of HDFS; made by `HdfsStorage.at`.

    Options are Hadoop's settings (`dfs.*`, `fs.*`, `hadoop.*`: nameservices, `dfs.replication`,
    `fs.permissions.umask-mode`, ...); they override those in the files of HADOOP_CONF_DIR.

    New bytes are written to a temporary file beside their target (a name that every reader of the
    format ignores), which is renamed once it is complete. The rename is atomic on the NameNode,
    which refuses an existing name. A killed process can leave a temporary file behind, but never
    half a file. HDFS has no conditional replace, so a lock here is a file.

    HDFS allows no colon in a name: such a path is an InvalidError.
    """

    location: HdfsLocation
    options: Options = field(default=(), repr=False)

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str] | None = None) -> HdfsStorage:
        """Open a storage by its URI; a wrong setting raises InvalidError here, not later."""
        settings = normal_options(options or {})
        storage = cls(HdfsLocation.parse(uri, dict(settings)), settings)
        client_for(storage.location.authority, settings)
        write_options(settings)
        return storage

    @property
    def root(self) -> str:
        """The base path as an `hdfs://` URI, without escapes, like Hadoop's."""
        return self.location.text

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        files, _ = self._scan(check_folder(folder))
        permanent = (file for file in files if not is_temporary(file.name))
        return sorted(permanent, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        _, folders = self._scan(check_folder(folder))
        return sorted(folders)

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below; the folders of a level are listed concurrently."""
        for file in self._walk(check_folder(folder)):
            if not is_temporary(file.name):
                yield file

    def list_temporary(self) -> list[FileStatus]:
        """Return the temporary files of running or killed processes."""
        return [file for file in self._walk("") if is_temporary(file.name)]

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if it does not exist."""
        full = self._full(path)
        try:
            with reading(path):
                info = self._client.get_file_info(full)
        except MissingFileError:
            return None
        return None if info.isdir else _status(path, info)

    def read(self, path: str) -> bytes:
        """Return the whole file."""
        return self._read_open(path, self._open(path), 0, None)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        check_range(path, offset, length)
        return self._read_open(path, self._open(path), offset, length)

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; its block locations are requested once."""
        reader = self._open(path)
        return pa.PythonFile(
            RangedInput(len(reader), partial(self._read_open, path, reader)), mode="r"
        )

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if it exists."""
        self._write(path, data, overwrite=False)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces; the whole file appears when the block ends."""
        with self._temporary(path) as (name, output):
            pieces = io.BufferedWriter(output, _BUFFER)
            yield cast(BinaryIO, pieces)
            pieces.flush()
            self._publish(name, output, path, overwrite=False)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        self._write(path, data, overwrite=True)

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        full = self._full(path)
        with deleting(path):
            self._client.delete(full)

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with everything in it, atomically; never the root."""
        full = self._full(folder)
        with suppress(MissingFileError), reading(folder):
            if self._client.get_file_info(full).isdir:
                self._client.delete(full, recursive=True)

    def prune_folders(self, folder: str) -> None:
        """Delete a folder and the folders below it that contain no file; never the root."""
        files, folders = self._scan(check_path(folder))
        for child in folders:
            self.prune_folders(child)
        if files or any(self._scan(folder)):
            return
        # Another process may have created a file since: delete the folder only if it is empty.
        with deleting(folder):
            self._client.delete(self._full(folder), recursive=False)

    @property
    def _client(self) -> Client:
        return client_for(self.location.authority, self.options)

    def _full(self, path: str) -> str:
        return f"{self.location.folder}/{check_path(path)}"

    def _scan(self, folder: str) -> tuple[list[FileStatus], list[str]]:
        """Return the files of a folder, including temporary ones, and the folders in it."""
        full = self._full(folder) if folder else self.location.folder or "/"
        files, folders = [], []
        with suppress(MissingFileError), reading(folder):
            for entry in self._client.list_status(full):
                # Listing a file returns the file itself.
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
        level = [folder]
        while level:
            scanned = map_in_threads(self._scan, level)
            for files, _ in scanned:
                yield from files
            level = [child for _, folders in scanned for child in folders]

    def _open(self, path: str) -> FileReader:
        """Open a file once it has its whole length.

        Where the NameNode lets writers close files before their DataNodes have reported the last
        block (`dfs.namenode.file.close.num-committed-allowed`), a reader that comes first gets the
        length without that block. The file's status has the whole length.
        """
        full = self._full(path)
        for pause_s in (*_LENGTH_PAUSES_S, None):
            with reading(path):
                reader = self._client.read(full)
                if len(reader) % _MIN_BLOCK:
                    return reader  # it ends within a block, so its last block is there
                if len(reader) == self._client.get_file_info(full).length:
                    return reader
            if pause_s is not None:
                SystemClock().sleep(pause_s)
        raise UnavailableError(
            "the NameNode does not know the last block of the file yet", path=path
        )

    def _read_open(self, path: str, reader: FileReader, offset: int, length: int | None) -> bytes:
        try:
            with reading(path):
                return _read_part(reader, offset, length)
        except UnavailableError:
            # Blocks move, or vanish if the file is replaced or deleted: get the current ones.
            fresh = self._open(path)
            with reading(path):
                return _read_part(fresh, offset, length)

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
        # The client never repeats a call that may have been executed. So a refusal means that
        # another process created the file, and a lost response is reported as such.
        with writing(path):
            self._client.rename(name, self._full(path), overwrite=overwrite)


class _Output(io.RawIOBase):
    """A file that is being written to HDFS; translates the client's errors."""

    def __init__(self, writer: FileWriter, path: str) -> None:
        self._writer: FileWriter | None = writer
        self._path = path
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        # After `abandon`, the rest of the buffer in front of this file is discarded.
        if self._writer is not None and len(data):
            with writing(self._path):
                self._writer.write(data)
        self._position += len(data)
        return len(data)

    def finish(self) -> None:
        """Close the file on HDFS, which makes it complete."""
        if self._writer is not None:
            with writing(self._path):
                self._writer.close()

    def abandon(self) -> None:
        """Stop writing; the file will not be published."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError, RuntimeError):
                writer.close()


def _status(path: str, info: NativeStatus) -> FileStatus:
    return FileStatus(path, info.length, info.modification_time)


def _read_part(reader: FileReader, offset: int, length: int | None) -> bytes:
    remaining = len(reader) - offset
    to_read = remaining if length is None else min(length, remaining)
    # The client crashes on a range behind the end of the file.
    if to_read <= 0:
        return b""
    data = reader.read_range(offset, to_read)
    if len(data) != to_read:
        raise OSError(f"got {len(data)} of {to_read} bytes")
    return data
