"""Hadoop's checksum files: `.<name>.crc` beside a file on a local disk."""

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
from lakewright.storage.base import MOST_THREADS, is_temporary, temporary_name
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
    """Tell whether Hadoop takes `name` for a checksum file, and so hides it."""
    return name.startswith(".") and name.endswith(".crc")


def matches(data: bytes, sidecar: bytes) -> bool:
    """Tell whether `sidecar` is the checksum file of `data`.

    One that ends within its header says nothing, and so does not contradict: Hadoop reads on
    without it, and it looks like that while a Java writer still holds the file open.
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


def sidecar_of(data: bytes, *, chunk: int = 512) -> bytes:
    """Return the checksum file that Hadoop would write for `data`; the inverse of `matches`."""
    sums = [zlib.crc32(data[start : start + chunk]) for start in range(0, len(data), chunk)]
    return _HEADER.pack(_MAGIC, chunk) + struct.pack(f">{len(sums)}I", *sums)


# ------------------------------------------------------------------------------------------------
# The calls that change files and folders of a disk: one door, so that tests can record them.
#
# Every change is made in a folder that is open. From the root of a table on, folders are opened
# one
# below the other and never through a symbolic link: a link can lead out of the table, and what is
# written or deleted behind it belongs to others. The root itself may be a link.


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_NO_SUCH_CALL = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
# Some network and FUSE file systems have no sync of folders, and then no call that would do it.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP}
_RENAME_NOREPLACE = 1
_CLAIM_LOOKS = 100
_CLAIM_PAUSE_S = 0.01

FolderId = tuple[int, int]


class Disk:
    """The file system of this machine.

    A folder that another process has just made may not be on the disk yet. So the entries of all
    folders above a file are synced once by each process that creates files in it, whoever made
    them; `_known` are those which this process has synced, by both inodes and the name.
    """

    threads = MOST_THREADS

    def __init__(self) -> None:
        self._known: set[tuple[FolderId, str, FolderId]] = set()

    def __reduce__(self) -> str:
        return "DISK"

    def open_path(self, full: str) -> int:
        """Open a folder by its whole path; links are followed."""
        return os.open(full, _FOLDER)

    def open_folder(self, parent: int, name: str) -> int:
        """Open a folder in another; a link is a NotADirectoryError."""
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
            raise

    def make_folder(self, parent: int, name: str) -> None:
        """Make a folder; FileExistsError if the name is taken."""
        os.mkdir(name, dir_fd=parent)

    def settle_folder(self, parent: int, name: str, folder: int, *, made: bool) -> None:
        """Let a folder in another survive a power cut; one just made, or not known to do so."""
        entry = folder_id(parent), name, folder_id(folder)
        if made or entry not in self._known:
            self.sync_folder(parent)
            self._known.add(entry)

    def create(self, folder: int, name: str) -> BinaryIO:
        """Make a file; FileExistsError if the name is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb")

    def sync_file(self, descriptor: int) -> None:
        """Let the content of a file survive a power cut; its name is another matter."""
        os.fsync(descriptor)

    def sync_folder(self, folder: int) -> None:
        """Let the names in a folder survive a power cut, and those deleted stay away."""
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_FOLDER_SYNC:
                raise

    def link(self, folder: int, source: str, target: str) -> None:
        """Give a file a second name; FileExistsError if that is taken."""
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def rename_new(self, folder: int, source: str, target: str) -> None:
        """Rename a file in one step, FileExistsError if the name is taken; Linux has this."""
        call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if call is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        if call(folder, os.fsencode(source), folder, os.fsencode(target), _RENAME_NOREPLACE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), target)

    def rename(self, folder: int, source: str, target: str) -> None:
        """Rename a file; one that has the name already is replaced."""
        os.rename(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, folder: int, name: str) -> None:
        """Remove a file, or a link itself."""
        os.unlink(name, dir_fd=folder)

    def remove_folder(self, parent: int, name: str) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=parent)


DISK = Disk()


def folder_id(descriptor: int) -> FolderId:
    """What tells an open folder from all others that are there."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def lexists(folder: int, name: str) -> bool:
    """Whether a name is taken, be it by a dangling link."""
    return _mode(folder, name) is not None


def is_link(folder: int, name: str) -> bool:
    """Whether a name is that of a symbolic link."""
    mode = _mode(folder, name)
    return mode is not None and stat.S_ISLNK(mode)


def _mode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def put_new(disk: Disk, folder: int, source: str, target: str) -> None:
    """Give a finished file its name, by which it appears whole; FileExistsError if that is taken.

    Of several processes, also of several machines, exactly one succeeds: by a hard link; where the
    file system has none, by a rename that replaces nothing; where it has neither, by a claim.
    """
    try:
        disk.link(folder, source, target)
    except FileExistsError:
        # NFS repeats a call whose answer was lost, and then meets its own link.
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
    """Rename under a claim on the name: a file that exactly one process can create.

    Who dies with a claim leaves it. Its name is that of a temporary file, so no listing shows it
    and it is swept up with these; until then the name that it stands for cannot be created.
    """
    claim = f".lw-{hashlib.sha256(os.fsencode(target)).hexdigest()[:16]}.tmp"
    assert is_temporary(claim)
    for _ in range(_CLAIM_LOOKS):
        try:
            disk.create(folder, claim).close()
            break
        except FileExistsError:
            if lexists(folder, target):
                raise
            time.sleep(_CLAIM_PAUSE_S)
    else:
        reason = f"another process is creating the file, or has died and left {claim}: remove it"
        raise OSError(errno.EBUSY, reason)
    try:
        if lexists(folder, target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        disk.rename(folder, source, target)
    finally:
        disk.unlink(folder, claim)


def remove_tree(disk: Disk, parent: int, name: str) -> None:
    """Remove a folder and all below it; of a link, wherever it is, the link alone."""
    try:
        folder = disk.open_folder(parent, name)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        if is_link(parent, name):
            _gone(disk, parent, name)
        return
    try:
        with os.scandir(folder) as entries:
            below = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        for each, is_folder in below:
            (remove_tree if is_folder else _gone)(disk, folder, each)
    finally:
        os.close(folder)
    with suppress(FileNotFoundError):
        disk.remove_folder(parent, name)


def remove_empty(disk: Disk, parent: int, name: str) -> None:
    """Remove a folder and those below it, where no file is but checksum files of missing ones."""
    try:
        folder = disk.open_folder(parent, name)
    except NOT_A_FILE:
        return
    try:
        with os.scandir(folder) as entries:
            below = [(each.name, each.is_dir(follow_symlinks=False)) for each in entries]
        names = {each for each, _ in below}
        for each, is_folder in below:
            if is_folder:
                remove_empty(disk, folder, each)
            elif is_sidecar(each) and each[1:].removesuffix(".crc") not in names:
                _gone(disk, folder, each)
    finally:
        os.close(folder)
    try:
        disk.remove_folder(parent, name)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _gone(disk: Disk, folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        disk.unlink(folder, name)


# ------------------------------------------------------------------------------------------------
# Changes of a table on a disk, in an order that a power cut does no harm.
#
# The content of a file is synced before the file gets its name; the folder of the name is synced
# after that, and the entries of all folders above it before. Everything raises OSError as it
# comes,
# and InvalidError where a folder of the table is a symbolic link.


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """A file that is being written: its folder, its temporary name, and the name it will have."""

    folder: int
    name: str
    target: str
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class DirectoryChanges:
    """What can be changed below `root`; folders are named relative to it, names are single."""

    root: str
    durable: bool
    disk: Disk

    @contextmanager
    def opened(self, folder: str, *, make: bool = False, settle: bool = False) -> Iterator[int]:
        """A folder of the table, open; with `make` one that is missing is made.

        With either, it and those above it survive a power cut.
        """
        settle = self.durable and (make or settle)
        with ExitStack() as stack:
            above, names = self._beginning(make=make)
            here = _closing(stack, self.disk.open_path(above))
            for name in [*names, *(folder.split("/") if folder else ())]:
                below, made = self._open_below(here, name, folder, make=make)
                _closing(stack, below)
                if settle:
                    self.disk.settle_folder(here, name, below, made=made)
                here = below
            yield here

    def _beginning(self, *, make: bool) -> tuple[str, list[str]]:
        """The root; if that is to be made, the first folder above it that is there."""
        above, names = self.root, list[str]()
        while make and above != "/" and not os.path.isdir(above):
            above, name = os.path.split(above)
            names.insert(0, name)
        return above, names

    def _open_below(self, parent: int, name: str, folder: str, *, make: bool) -> tuple[int, bool]:
        """A folder in another, and whether it was made."""
        made = False
        try:
            below = self.disk.open_folder(parent, name)
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
                made = True
            below = self.disk.open_folder(parent, name)
        return below, made

    @contextmanager
    def unfinished(self, folder: str, target: str) -> Iterator[UnfinishedFile]:
        """A new file to write to, which goes when the block ends unless it was published."""
        with self.opened(folder, make=True) as opened:
            name = temporary_name()
            try:
                with self.disk.create(opened, name) as file:
                    yield UnfinishedFile(opened, name, target, file)
            finally:
                self._unlink(opened, name)

    def publish(self, unfinished: UnfinishedFile) -> None:
        """Let a file appear; FileExistsError if its name is taken."""
        folder, target = unfinished.folder, unfinished.target
        self._finish(unfinished)
        # A checksum file without its file is a left-over that would condemn the new file.
        if not lexists(folder, target):
            self._unlink_sidecar(folder, target)
        try:
            put_new(self.disk, folder, unfinished.name, target)
        except FileExistsError:
            # The other file may be of a process that died before it had synced the name.
            self._sync_folder(folder)
            raise
        self._unlink(folder, unfinished.name)
        try:
            self._sync_folder(folder)
        except OSError:
            # Who finds the file here would take it for written.
            self._unlink(folder, target)
            raise

    def publish_over(self, unfinished: UnfinishedFile) -> None:
        """Let a file appear in the place of another, if there is one."""
        self._finish(unfinished)
        self._unlink_sidecar(unfinished.folder, unfinished.target)
        self.disk.rename(unfinished.folder, unfinished.name, unfinished.target)
        self._sync_folder(unfinished.folder)

    def _finish(self, unfinished: UnfinishedFile) -> None:
        """Sync what was written; a file without content has nothing that could get lost."""
        unfinished.file.flush()
        descriptor = unfinished.file.fileno()
        if self.durable and os.fstat(descriptor).st_size:
            self.disk.sync_file(descriptor)

    def delete(self, folder: str, names: Iterable[str]) -> None:
        """Remove files of one folder, their checksum files first, if they are there."""
        with suppress(FileNotFoundError), self.opened(folder) as opened:
            for name in names:
                self._unlink(opened, sidecar_name(name))
                self._unlink(opened, name)
            # Also if none was there: who deleted them may have died before the sync.
            self._sync_folder(opened)

    def delete_folder(self, parent: str, name: str) -> None:
        """Remove a folder and all below it, or a link and nothing behind it."""
        with suppress(FileNotFoundError), self.opened(parent) as opened:
            remove_tree(self.disk, opened, name)
            self._sync_folder(opened)

    def prune_folders(self, parent: str, name: str) -> None:
        """Remove a folder and those below it as far as no file is in them.

        Nothing is synced: a folder without files that comes back means nothing.
        """
        with suppress(FileNotFoundError), self.opened(parent) as opened:
            remove_empty(self.disk, opened, name)

    def sync_content(self, folder: str, name: str) -> None:
        """Sync the bytes of a file."""
        with self.opened(folder) as opened:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=opened)
            try:
                self.disk.sync_file(descriptor)
            finally:
                os.close(descriptor)

    def sync_named(self, folder: str) -> None:
        """Sync a folder that is there, and the entries of those above it."""
        with suppress(FileNotFoundError), self.opened(folder, settle=True) as opened:
            self._sync_folder(opened)

    def _sync_folder(self, folder: int) -> None:
        if self.durable:
            self.disk.sync_folder(folder)

    def _unlink(self, folder: int, name: str) -> None:
        with suppress(*NOT_A_FILE):
            self.disk.unlink(folder, name)

    def _unlink_sidecar(self, folder: int, target: str) -> None:
        """Remove a checksum file for good, before the bytes change that it tells of."""
        sidecar = sidecar_name(target)
        if lexists(folder, sidecar):
            self._unlink(folder, sidecar)
            self._sync_folder(folder)


def _closing(stack: ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor
