"""Folders for copies of objects: one of this machine is private, and removed though left behind."""

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
# A folder gets its lock right after it was made; and older versions of this library have no locks.
_LEFT_BEHIND_S = 24 * 60 * 60


@dataclass(frozen=True)
class CopyFolder:
    """Where copies are put; `private` if nobody but this user may read them."""

    address: str
    remove: Callable[[], None]
    private: bool = False


def private_folder(now_ms: int) -> CopyFolder:
    """A fresh folder in the temporary one; sweeps what processes have left there that were killed.

    This process holds a lock on it, which ends with the process if nothing else ends it.
    """
    parent = tempfile.gettempdir()
    sweep(parent, now_ms)
    path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    return CopyFolder(path, partial(_remove, path, _locked(path)), private=True)


def sweep(parent: str, now_ms: int) -> None:
    """Remove folders of this user that are old, and that no process holds a lock on."""
    with os.scandir(parent) as entries:
        found = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in found:
        # Others may remove it, or make one of that name, in a folder that everybody may write to.
        with suppress(OSError):
            about = entry.stat(follow_symlinks=False)
            old = about.st_mtime < now_ms / 1000 - _LEFT_BEHIND_S
            if old and entry.is_dir(follow_symlinks=False) and about.st_uid == os.getuid():
                lock = _locked(entry.path)
                if lock is not None:
                    _remove(entry.path, lock)


def _locked(path: str) -> int | None:
    """A lock on a folder, as a descriptor; None if another process holds it."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        return None
    return folder


def _remove(path: str, lock: int | None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)


@contextmanager
def private_files() -> Iterator[None]:
    """New files of this process are for this user alone while the block runs."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
