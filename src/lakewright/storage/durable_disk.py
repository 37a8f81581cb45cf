"""Changes to a table on a local disk, ordered so that a power failure does no harm.

- Hadoop's checksum files, `.<name>.crc` beside a file, are called sidecars here.
- `Disk` makes all system calls that change files and folders, so that tests can record them. Every
  change is made relative to an open folder. From the root of a table on, folders are opened one
  below the other and never through a symbolic link: a link can lead out of the table, and files
  behind it are not the table's to write or delete. The root itself may be a link.
- `DirectoryChanges` syncs the content of a file before the file gets its name, syncs the entries of
  all folders above the file before that, and the folder of the file after it.

All functions raise plain OSErrors, and InvalidError where a folder of the table is a symbolic link.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from lakewright.errors import InvalidError
from lakewright.storage.base import MAX_THREADS, is_temporary, temporary_name
from lakewright.storage.os_errors import NOT_A_FILE

_MAGIC = b"crc\0"
_HEADER = struct.Struct(">4si")


def sidecar_name(name: str) -> str:
    """Return the name of the checksum file that belongs to the file `name`.

    >>> sidecar_name("hoodie.properties")
    '.hoodie.properties.crc'
    """
    return f".{name}.crc"


def is_sidecar(name: str) -> bool:
    """Whether `name` is that of a checksum file, which Hadoop hides."""
    return name.startswith(".") and name.endswith(".crc")


def matches(data: bytes, sidecar: bytes) -> bool:
    """Whether the content of the checksum file `sidecar` does not contradict `data`.

    A sidecar that is shorter than its header contradicts nothing: Hadoop ignores it as well, and it
    has that length while a Java writer has the file open.
    """
    if len(sidecar) < _HEADER.size:
        return True
    magic, chunk = _HEADER.unpack_from(sidecar)
    if magic != _MAGIC or chunk <= 0:
        return False
    starts = range(0, len(data), chunk)
    if len(sidecar) != _HEADER.size + 4 * len(starts):
        return False
    view = memoryview(data)
    sums = struct.unpack_from(f">{len(starts)}I", sidecar, _HEADER.size)
    return all(
        zlib.crc32(view[start : start + chunk]) == expected
        for start, expected in zip(starts, sums, strict=True)
    )


# System calls that change files and folders.

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_SUCH_CALL = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
# Some network and FUSE file systems cannot sync folders, and offer no replacement.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP}
_RENAME_NOREPLACE = 1
_CLAIM_ATTEMPTS = 100
_CLAIM_PAUSE_S = 0.01

FolderId = tuple[int, int]


class Disk:
    """The file system of this machine.

    A folder that another process has just made may not be durable yet. So each process that
    creates files syncs the entries of all folders above them once, whichever process made the
    folders. `_synced_entries` holds those that this process has synced: parent id, name, folder id.
    """

    threads = MAX_THREADS

    def __init__(self) -> None:
        self._synced_entries: set[tuple[FolderId, str, FolderId]] = set()

    def __reduce__(self) -> str:
        return "DISK"

    def open_path(self, full: str) -> int:
        """Open a folder by its absolute path; links are followed."""
        return os.open(full, _FOLDER)

    def open_folder(self, parent: int, name: str) -> int:
        """Open the folder `name` in `parent`; NotADirectoryError if it is a link."""
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
            raise

    def make_folder(self, parent: int, name: str) -> None:
        """Make a folder; FileExistsError if the name exists."""
        os.mkdir(name, dir_fd=parent)

    def settle_folder(self, parent: int, name: str, folder: int, *, is_new: bool) -> None:
        """Make the entry of `folder` in `parent` durable, unless this process did so before."""
        entry = folder_id(parent), name, folder_id(folder)
        if is_new or entry not in self._synced_entries:
            self.sync_folder(parent)
            self._synced_entries.add(entry)

    def create(self, folder: int, name: str) -> BinaryIO:
        """Create a file and open it for writing; FileExistsError if the name exists."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb")

    def sync_file(self, descriptor: int) -> None:
        """Make the content of a file durable, but not its name."""
        os.fsync(descriptor)

    def sync_folder(self, folder: int) -> None:
        """Make the entries of a folder durable: new names as well as deletions."""
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    def link(self, folder: int, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError if that name exists."""
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename_new(self, folder: int, source: str, target: str) -> None:
        """Rename a file atomically; FileExistsError if the name exists. Only on Linux."""
        call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if call(folder, os.fsencode(source), folder, os.fsencode(target), _RENAME_NOREPLACE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    def rename(self, folder: int, source: str, target: str) -> None:
        """Rename a file; an existing file of that name is replaced."""
        os.rename(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, folder: int, name: str) -> None:
        """Delete a file, or a link itself."""
        os.unlink(name, dir_fd=folder)

    def remove_folder(self, parent: int, name: str) -> None:
        """Delete an empty folder."""
        os.rmdir(name, dir_fd=parent)


DISK = Disk()


def folder_id(descriptor: int) -> FolderId:
    """Return device and inode of an open folder, which identify it."""
    stats = os.fstat(descriptor)
    return stats.st_dev, stats.st_ino


def lexists(folder: int, name: str) -> bool:
    """Whether a name exists, even as a dangling link."""
    return _mode(folder, name) is not None


def is_link(folder: int, name: str) -> bool:
    """Whether a name is a symbolic link."""
    mode = _mode(folder, name)
    return mode is not None and stat.S_ISLNK(mode)


def _mode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def put_new(disk: Disk, folder: int, source: str, target: str) -> None:
    """Give a complete file its final name; FileExistsError if the name exists.

    If several processes or machines do so concurrently, exactly one succeeds: by a hard link; where
    the file system has none, by a rename that replaces nothing; where it has neither, by a claim.
    """
    try:
        disk.link(folder, source, target)
    except FileExistsError:
        # NFS repeats a call whose response was lost, and then finds its own link.
        if os.stat(source, dir_fd=folder, follow_symlinks=False).st_nlink < 2:
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_new(disk, folder, source, target)


def _rename_new(disk: Disk, folder: int, source: str, target: str) -> None:
    try:
        disk.rename_new(folder, source, target)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
        _rename_claimed(disk, folder, source, target)


def _rename_claimed(disk: Disk, folder: int, source: str, target: str) -> None:
    """Rename while holding a claim on the name: a file that exactly one process can create.

    A process that crashes leaves its claim behind. The claim has the name of a temporary file, so
    that listings leave it out and the cleanup of temporary files deletes it; until then no process
    can create the claimed name.
    """
    claim = f".lw-{hashlib.sha256(os.fsencode(target)).hexdigest()[:16]}.tmp"
    assert is_temporary(claim)
    for _ in range(_CLAIM_ATTEMPTS):
        try:
            disk.create(folder, claim).close()
            break
        except FileExistsError:
            if lexists(folder, target):
                raise
            time.sleep(_CLAIM_PAUSE_S)
    else:
        reason = f"another process is creating the file, or has crashed and left {claim}: remove it"
        raise OSError(errno.EBUSY, reason)
    try:
        if lexists(folder, target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        disk.rename(folder, source, target)
    finally:
        disk.unlink(folder, claim)


def remove_tree(disk: Disk, parent: int, name: str) -> None:
    """Delete a folder with everything in it; of links only the links themselves."""
    try:
        folder = disk.open_folder(parent, name)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if is_link(parent, name):
            _unlink_if_exists(disk, parent, name)
        return
    try:
        with os.scandir(folder) as entries:
            children = [(child.name, child.is_dir(follow_symlinks=False)) for child in entries]
        for child, is_folder in children:
            (remove_tree if is_folder else _unlink_if_exists)(disk, folder, child)
    finally:
        os.close(folder)
    with suppress(FileNotFoundError):
        disk.remove_folder(parent, name)


def remove_empty(disk: Disk, parent: int, name: str) -> None:
    """Delete a folder and those below it that contain no file but orphan checksum files."""
    try:
        folder = disk.open_folder(parent, name)
    except NOT_A_FILE:
        return
    try:
        with os.scandir(folder) as entries:
            children = [(child.name, child.is_dir(follow_symlinks=False)) for child in entries]
        names = {child for child, _ in children}
        for child, is_folder in children:
            if is_folder:
                remove_empty(disk, folder, child)
            elif is_sidecar(child) and child[1:].removesuffix(".crc") not in names:
                _unlink_if_exists(disk, folder, child)
    finally:
        os.close(folder)
    try:
        disk.remove_folder(parent, name)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _unlink_if_exists(disk: Disk, folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        disk.unlink(folder, name)


# Durable changes to the files of a table.


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """A file that is being written: its open folder, its temporary name, and its final name."""

    folder: int
    name: str
    target: str
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class DirectoryChanges:
    """Changes below `root`; folders are paths relative to it, names are single path segments."""

    root: str
    durable: bool
    disk: Disk

    @contextmanager
    def opened(self, folder: str, *, make: bool = False, settle: bool = False) -> Iterator[int]:
        """Open a folder of the table; with `make`, create it if it is missing.

        With `make` or `settle`, the folder and those above it become durable.
        """
        settle = self.durable and (make or settle)
        with ExitStack() as stack:
            start, names = self._existing_start(make=make)
            current = _closing(stack, self.disk.open_path(start))
            for name in [*names, *(folder.split("/") if folder else ())]:
                child, is_new = self._open_below(current, name, folder, make=make)
                _closing(stack, child)
                if settle:
                    self.disk.settle_folder(current, name, child, is_new=is_new)
                current = child
            yield current

    def _existing_start(self, *, make: bool) -> tuple[str, list[str]]:
        """Return the folder to start from, and the names from there down to the root.

        This is the root itself or, with `make`, the nearest existing folder above it.
        """
        start, names = self.root, list[str]()
        while make and start != "/" and not os.path.isdir(start):
            start, name = os.path.split(start)
            names.insert(0, name)
        return start, names

    def _open_below(self, parent: int, name: str, folder: str, *, make: bool) -> tuple[int, bool]:
        """Open the folder `name` in `parent`; return it, and whether it was made."""
        is_new = False
        try:
            child = self.disk.open_folder(parent, name)
        except NotADirectoryError as error:
            if is_link(parent, name):
                raise InvalidError(
                    "a folder of the table is a symbolic link: nothing is written or deleted "
                    "behind it; mount the other folder there instead",
                    table=self.root,
                    folder=folder,
                    link=name,
                ) from error
            raise
        except FileNotFoundError:
            if not make:
                raise
            with suppress(FileExistsError):
                self.disk.make_folder(parent, name)
                is_new = True
            child = self.disk.open_folder(parent, name)
        return child, is_new

    @contextmanager
    def unfinished(self, folder: str, target: str) -> Iterator[UnfinishedFile]:
        """Open a new temporary file, which is deleted at the end of the block unless published."""
        with self.opened(folder, make=True) as opened:
            name = temporary_name()
            try:
                with self.disk.create(opened, name) as file:
                    yield UnfinishedFile(opened, name, target, file)
            finally:
                self._unlink(opened, name)

    def publish(self, unfinished: UnfinishedFile) -> None:
        """Give a file its final name; FileExistsError if the name exists."""
        folder, target = unfinished.folder, unfinished.target
        self._finish(unfinished)
        # A leftover checksum file without its file would make readers refuse the new file.
        if not lexists(folder, target):
            self._unlink_sidecar(folder, target)
        try:
            put_new(self.disk, folder, unfinished.name, target)
        except FileExistsError:
            # The process that created the other file may have crashed before it synced the name.
            self._sync_folder(folder)
            raise
        self._unlink(folder, unfinished.name)
        try:
            self._sync_folder(folder)
        except OSError:
            # The name may not be durable: no other process may find the file and rely on it.
            self._unlink(folder, target)
            raise

    def publish_over(self, unfinished: UnfinishedFile) -> None:
        """Give a file its final name; an existing file of that name is replaced."""
        self._finish(unfinished)
        self._unlink_sidecar(unfinished.folder, unfinished.target)
        self.disk.rename(unfinished.folder, unfinished.name, unfinished.target)
        self._sync_folder(unfinished.folder)

    def _finish(self, unfinished: UnfinishedFile) -> None:
        """Sync the content of a file; an empty file has nothing to lose."""
        unfinished.file.flush()
        descriptor = unfinished.file.fileno()
        if self.durable and os.fstat(descriptor).st_size:
            self.disk.sync_file(descriptor)

    def delete(self, folder: str, names: Iterable[str]) -> None:
        """Delete files of one folder, each after its checksum file, as far as they exist."""
        with suppress(FileNotFoundError), self.opened(folder) as opened:
            for name in names:
                self._unlink(opened, sidecar_name(name))
                self._unlink(opened, name)
            # Sync even if no file existed: the process that deleted them may have crashed before.
            self._sync_folder(opened)

    def delete_folder(self, parent: str, name: str) -> None:
        """Delete a folder with everything in it, or a link itself."""
        with suppress(FileNotFoundError), self.opened(parent) as opened:
            remove_tree(self.disk, opened, name)
            self._sync_folder(opened)

    def prune_folders(self, parent: str, name: str) -> None:
        """Delete a folder and the folders below it that contain no file.

        Nothing is synced: an empty folder that reappears does no harm.
        """
        with suppress(FileNotFoundError), self.opened(parent) as opened:
            remove_empty(self.disk, opened, name)

    def sync_content(self, folder: str, name: str) -> None:
        """Sync the content of a file."""
        with self.opened(folder) as opened:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=opened)
            try:
                self.disk.sync_file(descriptor)
            finally:
                os.close(descriptor)

    def sync_entry(self, folder: str) -> None:
        """Sync a folder if it exists, and the entries of the folders above it."""
        with suppress(FileNotFoundError), self.opened(folder, settle=True) as opened:
            self._sync_folder(opened)

    def _sync_folder(self, folder: int) -> None:
        if self.durable:
            self.disk.sync_folder(folder)

    def _unlink(self, folder: int, name: str) -> None:
        with suppress(*NOT_A_FILE):
            self.disk.unlink(folder, name)

    def _unlink_sidecar(self, folder: int, target: str) -> None:
        """Delete a checksum file durably, before the content that it covers changes."""
        sidecar = sidecar_name(target)
        if lexists(folder, sidecar):
            self._unlink(folder, sidecar)
            self._sync_folder(folder)


def _closing(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor
