"""The calls that change files and folders of a disk: one door, so that tests can record them.

Every change is made in a folder that is open. From the root of a table on, folders are opened one
below the other and never through a symbolic link: a link can lead out of the table, and what is
written or deleted behind it belongs to others. The root itself may be a link.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import stat
import time
from contextlib import suppress
from typing import BinaryIO

from lakewright.storage.base import MOST_THREADS, is_temporary
from lakewright.storage.refusals import NOT_A_FILE
from lakewright.storage.sidecars import is_sidecar

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
