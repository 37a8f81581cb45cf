"""A simulated disk for the local storage: the states of a folder that a power cut can leave.

`RecordedDisk` executes calls in a real folder and records every call that changes something. The
record determines the possible states of the folder if the power fails after any number of these
calls:

- directory entries added or removed since the last sync of their folder: any subset of these
  changes is on the disk, in any order; a rename is on the disk completely or not at all;
- content written since the last sync of a file: all of it, half of it, or nothing;
- the entries of a folder that is not on the disk are lost with it.

POSIX permits all of these states; journaling file systems permit fewer.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

from lakewright.storage.durable_disk import Disk

_ROOT = 0
_InodeKey = tuple[int, int]


class SurvivingContent(Enum):
    """How much of the unsynced content of a file survives."""

    ALL = "all"
    HALF = "half"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class _EntryChange:
    """A change of the entries of one folder: one may be removed, and one added for a node."""

    folder: int
    removed: str | None = None
    added: str | None = None
    node: int | None = None


@dataclass(frozen=True, slots=True)
class _Sync:
    """A sync of a folder, or of the first `size` bytes of a file."""

    node: int
    size: int = -1


@dataclass
class _State:
    """What is certainly on the disk after some calls, and the changes that may be.

    `entries` and `folders` are by node number, `synced` is the number of synced bytes of a file.
    """

    entries: dict[int, dict[str, int]]
    folders: set[int]
    synced: dict[int, int]
    unsynced: list[_EntryChange] = field(default_factory=list)

    def record(self, call: _EntryChange | _Sync) -> None:
        if isinstance(call, _EntryChange):
            self.unsynced.append(call)
        elif call.node in self.folders:
            for change in [
                entry_change for entry_change in self.unsynced if entry_change.folder == call.node
            ]:
                _apply(self.entries, change)
            self.unsynced = [
                entry_change for entry_change in self.unsynced if entry_change.folder != call.node
            ]
        else:
            self.synced[call.node] = call.size


def _apply(entries: dict[int, dict[str, int]], change: _EntryChange) -> None:
    names = entries.setdefault(change.folder, {})
    if change.removed is not None:
        names.pop(change.removed, None)
    if change.added is not None and change.node is not None:
        names[change.added] = change.node


class RecordedDisk(Disk):
    """A disk that records the calls that change one folder.

    The content that the folder has when the record starts is on the disk.
    """

    threads = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._calls: list[_EntryChange | _Sync] = []
        self._nodes: dict[_InodeKey, int] = {}
        self._content: dict[int, bytes] = {}
        self._initial_entries: dict[int, dict[str, int]] = {}
        self._folders: set[int] = set()
        self._next = count(_ROOT + 1)
        self._lock = threading.RLock()
        self._number = next(_DISK_NUMBERS)
        _DISKS[self._number] = self
        self._read(os.fspath(root))

    def __reduce__(self) -> tuple[Callable[[int], RecordedDisk], tuple[int]]:  # type: ignore[override]
        return _disk_by_number, (self._number,)

    def __len__(self) -> int:
        """The number of recorded calls."""
        return len(self._calls)

    @property
    def syncs(self) -> int:
        """The number of recorded syncs."""
        return sum(isinstance(call, _Sync) for call in self._calls)

    def after(self, calls: int) -> PowerCut:
        """A power cut after the first `calls` recorded calls."""
        state = _State(
            {folder: dict(names) for folder, names in self._initial_entries.items()},
            {*self._folders},
            {
                node: len(data)
                for node, data in self._content.items()
                if node in self._initial_files
            },
        )
        for call in self._calls[:calls]:
            state.record(call)
        return PowerCut(state, self._content)

    def _read(self, root: str) -> None:
        """Read the initial content of the folder."""
        self._nodes[_inode_key(os.stat(root))] = _ROOT
        self._folders.add(_ROOT)
        for parent, folders, files in os.walk(root):
            parent_node = self._nodes[_inode_key(os.stat(parent))]
            for name in (*folders, *files):
                status = os.lstat(f"{parent}/{name}")
                node = self._new_node(status)
                self._initial_entries.setdefault(parent_node, {})[name] = node
                if name in folders:
                    self._folders.add(node)
                else:
                    self._content[node] = Path(parent, name).read_bytes()
        self._initial_files = frozenset(self._content)

    def _new_node(self, status: os.stat_result) -> int:
        # The file system may reuse an inode number for another file.
        node = self._nodes[_inode_key(status)] = next(self._next)
        return node

    def _node(self, descriptor: int) -> int:
        return self._nodes[_inode_key(os.fstat(descriptor))]

    def make_folder(self, parent: int, name: str) -> None:
        """Create the folder and record the call."""
        with self._lock:
            super().make_folder(parent, name)
            node = self._new_node(os.stat(name, dir_fd=parent, follow_symlinks=False))
            self._folders.add(node)
            self._calls.append(_EntryChange(self._node(parent), added=name, node=node))

    def create(self, folder: int, name: str) -> BinaryIO:
        """Create the file and record the call."""
        with self._lock:
            file = super().create(folder, name)
            node = self._new_node(os.fstat(file.fileno()))
            self._content[node] = b""
            self._calls.append(_EntryChange(self._node(folder), added=name, node=node))
            return file

    def sync_file(self, descriptor: int) -> None:
        """Record that the current content of the file is on the disk."""
        with self._lock:
            self._calls.append(_Sync(self._node(descriptor), os.fstat(descriptor).st_size))

    def sync_folder(self, folder: int) -> None:
        """Record that the current entries of the folder are on the disk."""
        with self._lock:
            self._calls.append(_Sync(self._node(folder)))

    def link(self, folder: int, source: str, target: str) -> None:
        """Link the file and record the call."""
        with self._lock:
            super().link(folder, source, target)
            self._calls.append(
                _EntryChange(self._node(folder), added=target, node=self._read_node(folder, target))
            )

    def rename_new(self, folder: int, source: str, target: str) -> None:
        """Rename the file and record the call."""
        with self._lock:
            super().rename_new(folder, source, target)
            self._record_rename(folder, source, target)

    def rename(self, folder: int, source: str, target: str) -> None:
        """Rename the file and record the call."""
        with self._lock:
            super().rename(folder, source, target)
            self._record_rename(folder, source, target)

    def _record_rename(self, folder: int, source: str, target: str) -> None:
        node = self._read_node(folder, target)
        self._calls.append(
            _EntryChange(self._node(folder), removed=source, added=target, node=node)
        )

    def unlink(self, folder: int, name: str) -> None:
        """Delete the file and record the call."""
        with self._lock:
            super().unlink(folder, name)
            self._calls.append(_EntryChange(self._node(folder), removed=name))

    def remove_folder(self, parent: int, name: str) -> None:
        """Delete the folder and record the call."""
        with self._lock:
            super().remove_folder(parent, name)
            self._calls.append(_EntryChange(self._node(parent), removed=name))

    def _read_node(self, folder: int, name: str) -> int:
        """Read the content of a file that has its final name, so that no more is written to it."""
        descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            node = self._node(descriptor)
            self._content[node] = file.read()
        return node


# An unpickled disk is the same object, so that a pickled storage adds to the same record.
_DISK_NUMBERS = count()
_DISKS: WeakValueDictionary[int, RecordedDisk] = WeakValueDictionary()


def _disk_by_number(number: int) -> RecordedDisk:
    return _DISKS[number]


@dataclass(frozen=True)
class PowerCut:
    """A moment at which the power fails."""

    _state: _State
    _content: Mapping[int, bytes]

    @property
    def unsynced_count(self) -> int:
        """The number of entry changes that may or may not be on the disk."""
        return len(self._state.unsynced)

    def files(self, survived: Collection[int], content: SurvivingContent) -> dict[str, bytes]:
        """All files by path, if of the unsynced entry changes those with these numbers survive."""
        entries = {folder: dict(names) for folder, names in self._state.entries.items()}
        for number in sorted(survived):
            _apply(entries, self._state.unsynced[number])
        return dict(self._files_below(entries, _ROOT, "", content))

    def without(self, number: int) -> dict[str, bytes]:
        """All files, if all unsynced entry changes except this one survive."""
        return self.files(
            [index for index in range(self.unsynced_count) if index != number], SurvivingContent.ALL
        )

    def outcomes(
        self, chance: random.Random | None = None, more: int = 0
    ) -> Iterator[dict[str, bytes]]:
        """Possible states of the folder without duplicates: the extremes and `more` random ones."""
        every = range(self.unsynced_count)
        choices: list[Sequence[int]] = [(), every, every[-1:], every[1:], every[:1], every[:-1]]
        hashes: set[int] = set()
        for applied in choices:
            for content in SurvivingContent:
                yield from _if_new(self.files(applied, content), hashes)
        for number in every if more else ():
            yield from _if_new(self.without(number), hashes)
        for _ in range(more if chance is not None and self.unsynced_count > 1 else 0):
            assert chance is not None
            applied = [index for index in every if chance.random() < 0.5]
            yield from _if_new(self.files(applied, chance.choice(list(SurvivingContent))), hashes)

    def _files_below(
        self,
        entries: Mapping[int, Mapping[str, int]],
        folder: int,
        path: str,
        content: SurvivingContent,
    ) -> Iterator[tuple[str, bytes]]:
        for name, node in entries.get(folder, {}).items():
            full = f"{path}/{name}" if path else name
            if node in self._state.folders:
                yield from self._files_below(entries, node, full, content)
            else:
                yield full, self._surviving_content(node, content)

    def _surviving_content(self, node: int, content: SurvivingContent) -> bytes:
        data = self._content[node]
        synced = self._state.synced.get(node, 0)
        unsynced = len(data) - synced
        surviving = {
            SurvivingContent.ALL: unsynced,
            SurvivingContent.HALF: unsynced // 2,
            SurvivingContent.NOTHING: 0,
        }[content]
        return data[: synced + surviving]


def _if_new(files: dict[str, bytes], hashes: set[int]) -> Iterator[dict[str, bytes]]:
    digest = hash(frozenset(files.items()))
    if digest not in hashes:
        hashes.add(digest)
        yield files


def _inode_key(status: os.stat_result) -> _InodeKey:
    return status.st_dev, status.st_ino


def write_files(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Write files by path into a folder."""
    created: set[str] = set()
    for path, data in files.items():
        full = os.path.join(folder, path)
        parent = os.path.dirname(full)
        if parent not in created:
            os.makedirs(parent, exist_ok=True)
            created.add(parent)
        with open(full, "wb") as file:
            file.write(data)


def read_files(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """All files below a folder, by path."""
    root = Path(folder)
    files: Iterable[Path] = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): file.read_bytes() for file in files}
