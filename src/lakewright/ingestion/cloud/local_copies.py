"""Temporary folders for copies of objects: private to the user, and removed even after a crash."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

PREFIX = "lakewright-objects-"
# Folders younger than this are kept: a folder is locked shortly after it was created, and older
# versions of this library do not lock theirs.
_MIN_AGE_S = 24 * 60 * 60


@dataclass(frozen=True)
class CopyFolder:
    """A folder for copies; `private` if only this user may read it."""

    address: str
    remove: Callable[[], None]
    private: bool = False


def private_folder(now_ms: int) -> CopyFolder:
    """Create a temporary folder, and remove those that crashed processes left behind.

    This process holds a lock on the folder, which the operating system releases when it exits.
    """
    parent = tempfile.gettempdir()
    sweep(parent, now_ms)
    path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    return CopyFolder(path, partial(_remove, path, _try_lock(path)), private=True)


def sweep(parent: str, now_ms: int) -> None:
    """Remove old folders of this user that no process has locked."""
    with os.scandir(parent) as entries:
        folders = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in folders:
        # In a world-writable folder, other users may remove the entry or create it concurrently.
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            is_old = status.st_mtime < now_ms / 1000 - _MIN_AGE_S
            if is_old and entry.is_dir(follow_symlinks=False) and status.st_uid == os.getuid():
                lock = _try_lock(entry.path)
                if lock is not None:
                    _remove(entry.path, lock)


def _try_lock(path: str) -> int | None:
    """Lock a folder and return its descriptor; None if another process holds the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: str, lock: int | None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


@contextmanager
def private_files() -> Iterator[None]:
    """Create files that only this user may read, while the block runs."""
    old_umask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(old_umask)
