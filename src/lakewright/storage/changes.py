"""Changes of a table on a disk, in an order that a power cut does no harm.

The content of a file is synced before the file gets its name; the folder of the name is synced
after that, and the entries of all folders above it before. Everything raises OSError as it comes,
and InvalidError where a folder of the table is a symbolic link.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from lakewright.errors import InvalidError
from lakewright.storage.base import temporary_name
from lakewright.storage.disk import Disk, is_link, lexists, put_new, remove_empty, remove_tree
from lakewright.storage.refusals import NOT_A_FILE
from lakewright.storage.sidecars import sidecar_name


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A file that is being written: its folder, its temporary name, and the name it will have."""

    folder: int
    name: str
    target: str
    file: BinaryIO


@dataclass(frozen=True, slots=True)
class Changes:
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
    def unfinished(self, folder: str, target: str) -> Iterator[Unfinished]:
        """A new file to write to, which goes when the block ends unless it was published."""
        with self.opened(folder, make=True) as opened:
            name = temporary_name()
            try:
                with self.disk.create(opened, name) as file:
                    yield Unfinished(opened, name, target, file)
            finally:
                self._unlink(opened, name)

    def publish(self, unfinished: Unfinished) -> None:
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

    def publish_over(self, unfinished: Unfinished) -> None:
        """Let a file appear in the place of another, if there is one."""
        self._finish(unfinished)
        self._unlink_sidecar(unfinished.folder, unfinished.target)
        self.disk.rename(unfinished.folder, unfinished.name, unfinished.target)
        self._sync_folder(unfinished.folder)

    def _finish(self, unfinished: Unfinished) -> None:
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
