"""A simulated disk under the local storage: what a power cut can leave of a folder.

`RecordedDisk` does what it is asked in a real folder and keeps a record of every call that changes
something. From the record follows what can be found in the folder if the power fails after any
number of these calls:

- names that appeared or went since the last sync of their folder: any choice of these changes has
  happened on the disk, in any order; a rename happens as a whole or not at all;
- content since the last sync of a file: all of it, half of it, or nothing;
- what lies in a folder that is not on the disk is not there either.

That is what POSIX leaves open, and more than journaling file systems do.
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
_Key = tuple[int, int]


class Kept(Enum):
    """How much of content that was not synced is found."""

    ALL = "all"
    HALF = "half"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class _Named:
    """A change of names in one folder: some go, and one may appear for a file or folder."""

    folder: int
    gone: str | None = None
    new: str | None = None
    node: int | None = None


@dataclass(frozen=True, slots=True)
class _Synced:
    """A folder, or as much of a file as there was then."""

    node: int
    size: int = -1


@dataclass
class _State:
    """What is surely on the disk after some calls, and what may be."""

    entries: dict[int, dict[str, int]]
    folders: set[int]
    synced: dict[int, int]
    open: list[_Named] = field(default_factory=list)

    def take(self, call: _Named | _Synced) -> None:
        if isinstance(call, _Named):
            self.open.append(call)
        elif call.node in self.folders:
            for change in [each for each in self.open if each.folder == call.node]:
                _apply(self.entries, change)
            self.open = [each for each in self.open if each.folder != call.node]
        else:
            self.synced[call.node] = call.size


def _apply(entries: dict[int, dict[str, int]], change: _Named) -> None:
    names = entries.setdefault(change.folder, {})
    if change.gone is not None:
        names.pop(change.gone, None)
    if change.new is not None and change.node is not None:
        names[change.new] = change.node


class RecordedDisk(Disk):
    """The disk of one folder, which is on it when the record begins, and what is done to it."""

    threads = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self._calls: list[_Named | _Synced] = []
        self._nodes: dict[_Key, int] = {}
        self._content: dict[int, bytes] = {}
        self._start: dict[int, dict[str, int]] = {}
        self._folders: set[int] = set()
        self._next = count(_ROOT + 1)
        self._lock = threading.RLock()
        self._number = next(_NUMBERS)
        _RECORDED[self._number] = self
        self._read(os.fspath(root))

    def __reduce__(self) -> tuple[Callable[[int], RecordedDisk], tuple[int]]:  # type: ignore[override]
        return _recorded, (self._number,)

    def __len__(self) -> int:
        """How many calls were recorded."""
        return len(self._calls)

    @property
    def syncs(self) -> int:
        """How many of them were syncs."""
        return sum(isinstance(call, _Synced) for call in self._calls)

    def after(self, calls: int) -> PowerCut:
        """What can be found after a power cut behind the first so many calls."""
        state = _State(
            {folder: dict(names) for folder, names in self._start.items()},
            {*self._folders},
            {node: len(data) for node, data in self._content.items() if node in self._old},
        )
        for call in self._calls[:calls]:
            state.take(call)
        return PowerCut(state, self._content)

    def _read(self, root: str) -> None:
        self._nodes[_key(os.stat(root))] = _ROOT
        self._folders.add(_ROOT)
        for parent, folders, files in os.walk(root):
            above = self._nodes[_key(os.stat(parent))]
            for name in (*folders, *files):
                found = os.lstat(f"{parent}/{name}")
                node = self._new_node(found)
                self._start.setdefault(above, {})[name] = node
                if name in folders:
                    self._folders.add(node)
                else:
                    self._content[node] = Path(parent, name).read_bytes()
        self._old = frozenset(self._content)

    def _new_node(self, found: os.stat_result) -> int:
        # A number that the file system gives again is that of another file.
        node = self._nodes[_key(found)] = next(self._next)
        return node

    def _of(self, descriptor: int) -> int:
        return self._nodes[_key(os.fstat(descriptor))]

    def make_folder(self, parent: int, name: str) -> None:
        """Make it, and record that."""
        with self._lock:
            super().make_folder(parent, name)
            node = self._new_node(os.stat(name, dir_fd=parent, follow_symlinks=False))
            self._folders.add(node)
            self._calls.append(_Named(self._of(parent), new=name, node=node))

    def create(self, folder: int, name: str) -> BinaryIO:
        """Make it, and record that."""
        with self._lock:
            file = super().create(folder, name)
            node = self._new_node(os.fstat(file.fileno()))
            self._content[node] = b""
            self._calls.append(_Named(self._of(folder), new=name, node=node))
            return file

    def sync_file(self, descriptor: int) -> None:
        """Record how much of the file is on the disk now."""
        with self._lock:
            self._calls.append(_Synced(self._of(descriptor), os.fstat(descriptor).st_size))

    def sync_folder(self, folder: int) -> None:
        """Record that the names in it are on the disk now."""
        with self._lock:
            self._calls.append(_Synced(self._of(folder)))

    def link(self, folder: int, source: str, target: str) -> None:
        """Link, and record that."""
        with self._lock:
            super().link(folder, source, target)
            self._calls.append(
                _Named(self._of(folder), new=target, node=self._seen(folder, target))
            )

    def rename_new(self, folder: int, source: str, target: str) -> None:
        """Rename, and record that."""
        with self._lock:
            super().rename_new(folder, source, target)
            self._renamed(folder, source, target)

    def rename(self, folder: int, source: str, target: str) -> None:
        """Rename, and record that."""
        with self._lock:
            super().rename(folder, source, target)
            self._renamed(folder, source, target)

    def _renamed(self, folder: int, source: str, target: str) -> None:
        node = self._seen(folder, target)
        self._calls.append(_Named(self._of(folder), gone=source, new=target, node=node))

    def unlink(self, folder: int, name: str) -> None:
        """Remove it, and record that."""
        with self._lock:
            super().unlink(folder, name)
            self._calls.append(_Named(self._of(folder), gone=name))

    def remove_folder(self, parent: int, name: str) -> None:
        """Remove it, and record that."""
        with self._lock:
            super().remove_folder(parent, name)
            self._calls.append(_Named(self._of(parent), gone=name))

    def _seen(self, folder: int, name: str) -> int:
        """The file that has just got its last name: nothing is written to it any more."""
        descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
        with os.fdopen(descriptor, "rb") as file:
            node = self._of(descriptor)
            self._content[node] = file.read()
        return node


_NUMBERS = count()
_RECORDED: WeakValueDictionary[int, RecordedDisk] = WeakValueDictionary()


def _recorded(number: int) -> RecordedDisk:
    return _RECORDED[number]


@dataclass(frozen=True)
class PowerCut:
    """A moment at which the power fails."""

    _state: _State
    _content: Mapping[int, bytes]

    @property
    def unsure(self) -> int:
        """How many changes of names may have happened on the disk, or not."""
        return len(self._state.open)

    def files(self, happened: Collection[int], kept: Kept) -> dict[str, bytes]:
        """All files by path if these of the unsure changes are on the disk, by their numbers."""
        entries = {folder: dict(names) for folder, names in self._state.entries.items()}
        for number in sorted(happened):
            _apply(entries, self._state.open[number])
        return dict(self._below(entries, _ROOT, "", kept))

    def without(self, number: int) -> dict[str, bytes]:
        """All files if one of the unsure changes is not on the disk, and all others are."""
        return self.files([each for each in range(self.unsure) if each != number], Kept.ALL)

    def outcomes(
        self, chance: random.Random | None = None, more: int = 0
    ) -> Iterator[dict[str, bytes]]:
        """What may be found, each once: the extremes, and as many more as are asked for."""
        every = range(self.unsure)
        choices: list[Sequence[int]] = [(), every, every[-1:], every[1:], every[:1], every[:-1]]
        seen: set[int] = set()
        for happened in choices:
            for kept in Kept:
                yield from _unseen(self.files(happened, kept), seen)
        for left_out in every if more else ():
            yield from _unseen(self.without(left_out), seen)
        for _ in range(more if chance is not None and self.unsure > 1 else 0):
            assert chance is not None
            happened = [number for number in every if chance.random() < 0.5]
            yield from _unseen(self.files(happened, chance.choice(list(Kept))), seen)

    def _below(
        self, entries: Mapping[int, Mapping[str, int]], folder: int, path: str, kept: Kept
    ) -> Iterator[tuple[str, bytes]]:
        for name, node in entries.get(folder, {}).items():
            full = f"{path}/{name}" if path else name
            if node in self._state.folders:
                yield from self._below(entries, node, full, kept)
            else:
                yield full, self._found(node, kept)

    def _found(self, node: int, kept: Kept) -> bytes:
        data = self._content[node]
        sure = self._state.synced.get(node, 0)
        unsure = len(data) - sure
        more = {Kept.ALL: unsure, Kept.HALF: unsure // 2, Kept.NOTHING: 0}[kept]
        return data[: sure + more]


def _unseen(files: dict[str, bytes], seen: set[int]) -> Iterator[dict[str, bytes]]:
    mark = hash(frozenset(files.items()))
    if mark not in seen:
        seen.add(mark)
        yield files


def _key(found: os.stat_result) -> _Key:
    return found.st_dev, found.st_ino


def write_files(folder: str | os.PathLike[str], files: Mapping[str, bytes]) -> None:
    """Put files into a folder, as they were found."""
    made: set[str] = set()
    for path, data in files.items():
        full = os.path.join(folder, path)
        parent = os.path.dirname(full)
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        with open(full, "wb") as file:
            file.write(data)


def read_files(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """All files below a folder, by path."""
    root = Path(folder)
    files: Iterable[Path] = (each for each in root.rglob("*") if each.is_file())
    return {str(each.relative_to(root)): each.read_bytes() for each in files}
