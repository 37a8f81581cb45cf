"""Tables on a disk of this machine, or on a network file system mounted here."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from lakewright.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    LakewrightError,
    UnavailableError,
)
from lakewright.storage.base import (
    FileStatus,
    MissingFileError,
    VersionedStorage,
    at_once,
    check_folder,
    check_path,
    check_range,
    content_version,
    flag,
    is_hadoop_setting,
    is_temporary,
    join_path,
    temporary_name,
)
from lakewright.storage.sidecars import is_sidecar, matches, sidecar_name

_NOT_A_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_MANY = 32  # fewer files are gone before threads have started
OPTIONS = ("verify_sidecars", "durable")


@dataclass(frozen=True, slots=True)
class LocalStorage(VersionedStorage):
    """Files below `folder`, which may be given as a path or as a `file:` URI.

    New bytes are written to a temporary file beside their target (a name that every reader of
    the format ignores) and then linked or renamed, so that a killed process can leave such a
    temporary file behind but never half a file.

    - Real Hudi on the same disk keeps a checksum file beside each file and refuses a file that
      does not match it. It goes before its file is replaced or deleted. `read` checks it, unless
      `verify_sidecars` is off; `read_range` and `open_input` do not.
    - With `durable`, what has returned also survives a power cut; without it, as with Hadoop on
      a local disk, only the death of the process.
    """

    folder: str
    verify_sidecars: bool = True
    durable: bool = False

    def __post_init__(self) -> None:
        """Make the folder absolute; symbolic links stay as they are."""
        object.__setattr__(self, "folder", os.path.abspath(_without_scheme(self.folder)))

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str]) -> LocalStorage:
        """Open a storage by its URI or path; options: `verify_sidecars`, `durable`."""
        for name in options:
            # Settings for other stores may come along: one set of options serves many tables.
            if name not in OPTIONS and not is_hadoop_setting(name):
                raise InvalidError("unknown option for a local table", option=name, known=OPTIONS)
        return cls(
            uri,
            verify_sidecars=flag(options, "verify_sidecars", default=True),
            durable=flag(options, "durable", default=False),
        )

    @property
    def root(self) -> str:
        """The base path as a `file://` URI; like Hadoop's, it escapes no character."""
        return f"file://{self.folder}"

    def list_files(self, folder: str) -> list[FileStatus]:
        """Return the files directly in `folder`, sorted by name."""
        files, _ = self._scan(check_folder(folder))
        return sorted(files, key=lambda file: file.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the paths of the folders directly in `folder`, sorted."""
        _, folders = self._scan(check_folder(folder))
        return sorted(folders)

    def list_tree(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files in `folder` and below."""
        waiting = [check_folder(folder)]
        while waiting:
            files, folders = self._scan(waiting.pop())
            yield from files
            waiting += folders

    def list_temporary(self) -> list[FileStatus]:
        """Return the temporary files of processes that are at work, or were killed."""
        found = []
        with _reading(""):
            for parent, _, names in os.walk(self.folder):
                for name in filter(is_temporary, names):
                    full = f"{parent}/{name}"
                    with suppress(FileNotFoundError):
                        path = os.path.relpath(full, self.folder)
                        found.append(_status(path, os.stat(full)))
        return found

    def status(self, path: str) -> FileStatus | None:
        """Return size and modification time of one file, or None if there is no such file."""
        full = self._full(path)
        with _reading(path):
            try:
                found = os.stat(full)
            except _NOT_A_FILE:
                return None
        return _status(path, found) if stat.S_ISREG(found.st_mode) else None

    def read(self, path: str) -> bytes:
        """Return the whole file, checked against Hadoop's checksum file if it has one."""
        full = self._full(path)
        # Bytes first, checksum second: a writer removes the checksum before the bytes change.
        # A Java writer writes both anew, so a mismatch counts only if it is still there.
        for _ in range(2):
            with _reading(path):
                data = _bytes_of(full)
                if not self.verify_sidecars or matches(data, _sidecar_bytes(full)):
                    return data
        sidecar = _sidecar(full)
        raise CorruptError("a file does not match its checksum file", file=full, sidecar=sidecar)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer, or none, at the end of the file."""
        check_range(path, offset, length)
        full = self._full(path)
        with _reading(path), open(full, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access; the caller closes it.

        A file with a checksum file is read and checked whole, as a part cannot be: only files
        that Hadoop wrote to this disk have one.
        """
        full = self._full(path)
        if self.verify_sidecars and os.path.exists(_sidecar(full)):
            return pa.BufferReader(self.read(path))
        with _reading(path):
            if os.path.isdir(full):
                raise IsADirectoryError(full)
            return pa.OSFile(full)

    def create(self, path: str, data: bytes) -> None:
        """Write a new file; ConflictError if the name is taken."""
        full = self._full(path)
        with _writing(path), _temporary(full) as file:
            file.write(data)
            self._publish(file, full)

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """Write a new file in pieces; it appears whole when the block ends."""
        full = self._full(path)
        with _writing(path), _temporary(full) as file:
            with _filling(path):
                yield file
            self._publish(file, full)

    def replace(self, path: str, data: bytes) -> None:
        """Write a file whether it exists or not."""
        full = self._full(path)
        with _writing(path), _temporary(full) as file:
            file.write(data)
            self._settle(file)
            _unlink(_sidecar(full))
            os.replace(file.name, full)
            self._settle_folder(full)

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        """Return the whole file and its version."""
        data = self.read(path)
        return data, content_version(data)

    def replace_if(self, path: str, data: bytes, version: str | None) -> str:
        """Write a file that still has `version`; give the new one."""
        if version is None:
            self.create(path, data)
            return content_version(data)
        full = self._full(path)
        try:
            with _reading(path), _locked(os.path.dirname(full)):
                if self.read_versioned(path)[1] == version:
                    self.replace(path, data)
                    return content_version(data)
        except MissingFileError as error:
            raise ConflictError("the file is gone", path=path) from error
        raise ConflictError("the file was replaced meanwhile", path=path)

    def delete(self, path: str) -> None:
        """Remove a file, and its checksum file first, if they are there."""
        full = self._full(path)
        with _writing(path):
            _unlink(_sidecar(full))
            _unlink(full)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove several files; many of them at once, as each one waits for the disk."""
        wanted = list(paths)
        if len(wanted) < _MANY:
            VersionedStorage.delete_many(self, wanted)
        else:
            at_once(self.delete, wanted)

    def delete_folder(self, folder: str) -> None:
        """Remove a folder and all below it; never the root."""
        full = self._full(folder)
        with _writing(folder):
            for parent, folders, files in os.walk(full, topdown=False):
                for name in files:
                    _unlink(f"{parent}/{name}")
                for name in folders:
                    _remove_folder(f"{parent}/{name}")
            _remove_folder(full)

    def prune_folders(self, folder: str) -> None:
        """Remove a folder and those below it as far as no file is in them; never the root."""
        full = self._full(folder)
        if os.path.islink(full):
            return
        with _writing(folder):
            for parent, _, names in os.walk(full, topdown=False):
                for name in filter(is_sidecar, names):
                    # Without its file it says nothing, and keeps the folder from going.
                    if not os.path.lexists(f"{parent}/{name[1:].removesuffix('.crc')}"):
                        _unlink(f"{parent}/{name}")
                _remove_if_empty(parent)

    def _full(self, path: str) -> str:
        return f"{self.folder}/{check_path(path)}"

    def _scan(self, folder: str) -> tuple[list[FileStatus], list[str]]:
        files, folders = [], []
        full = f"{self.folder}/{folder}"
        with _reading(folder), suppress(*_NOT_A_FILE), os.scandir(full) as entries:
            for entry in entries:
                # A file may vanish between the two calls; a dangling link is no file either.
                with suppress(FileNotFoundError):
                    if entry.is_dir():
                        folders.append(join_path(folder, entry.name))
                    elif not _hidden(entry.name):
                        files.append(_status(join_path(folder, entry.name), entry.stat()))
        return files, folders

    def _publish(self, file: BinaryIO, full: str) -> None:
        self._settle(file)
        # A checksum file without its file is a left-over that would condemn the new file.
        if os.path.exists(_sidecar(full)) and not os.path.lexists(full):
            _unlink(_sidecar(full))
        try:
            os.link(file.name, full)
        except FileExistsError:
            # NFS repeats a call whose answer was lost, and then meets its own link.
            if os.stat(file.name).st_nlink < 2:
                raise
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            _rename_new(file.name, full)
        self._settle_folder(full)

    def _settle(self, file: BinaryIO) -> None:
        file.flush()
        if self.durable:
            os.fsync(file.fileno())

    def _settle_folder(self, full: str) -> None:
        if self.durable:
            descriptor = os.open(os.path.dirname(full), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _without_scheme(uri: str) -> str:
    if not uri.startswith("file:"):
        return uri
    path = uri.removeprefix("file:")
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        raise InvalidError("a file URI names no absolute path on this machine", uri=uri)
    return path


def _hidden(name: str) -> bool:
    return is_sidecar(name) or is_temporary(name)


def _status(path: str, found: os.stat_result) -> FileStatus:
    return FileStatus(path, found.st_size, found.st_mtime_ns // 1_000_000)


def _sidecar(full: str) -> str:
    folder, name = os.path.split(full)
    return f"{folder}/{sidecar_name(name)}"


def _bytes_of(full: str) -> bytes:
    with open(full, "rb", buffering=0) as file:
        return file.read()


def _sidecar_bytes(full: str) -> bytes:
    try:
        return _bytes_of(sidecar) if os.path.exists(sidecar := _sidecar(full)) else b""
    except FileNotFoundError:
        return b""


@contextmanager
def _temporary(full: str) -> Iterator[BinaryIO]:
    name = f"{os.path.dirname(full)}/{temporary_name()}"
    try:
        with _open_new(name) as file:
            yield file
    finally:
        _unlink(name)


def _open_new(name: str) -> BinaryIO:
    try:
        return open(name, "xb")
    except FileNotFoundError:
        os.makedirs(os.path.dirname(name), exist_ok=True)
        return open(name, "xb")


def _rename_new(source: str, target: str) -> None:
    with _locked(os.path.dirname(target)):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(source, target)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    # The lock is on the folder itself: nothing is left behind, and it dies with its process.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unlink(full: str) -> None:
    with suppress(*_NOT_A_FILE):
        os.unlink(full)


def _remove_if_empty(full: str) -> None:
    try:
        os.rmdir(full)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _remove_folder(full: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.rmdir(full)
        except NotADirectoryError:
            if os.path.islink(full):
                os.unlink(full)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except _NOT_A_FILE as error:
        raise MissingFileError("there is no such file", path=path) from error
    except OSError as error:
        raise _refused(error, path) from error


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise ConflictError("the file exists already", path=path) from error
    except OSError as error:
        raise _refused(error, path) from error


@contextmanager
def _filling(path: str) -> Iterator[None]:
    # What the caller's own code raises is never a conflict about this file.
    try:
        yield
    except OSError as error:
        raise _refused(error, path) from error


def _refused(error: OSError, path: str) -> LakewrightError:
    wrong_call = isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError)
    kind = InvalidError if wrong_call or error.errno == errno.ENAMETOOLONG else UnavailableError
    return kind("the file system refused", path=path, reason=error.strerror or str(error))
