"""How much memory a process and its children hold, looked at while they work."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path

EVERY_SECONDS = 0.1
_PAGE = os.sysconf("SC_PAGE_SIZE")


def children_of(parents: dict[int, int], root: int) -> set[int]:
    """A process and all that it started, from a table of parents. Pure."""
    offspring: dict[int, list[int]] = defaultdict(list)
    for child, parent in parents.items():
        offspring[parent].append(child)
    processes, waiting = set[int](), [root]
    while waiting:
        process = waiting.pop()
        if process not in processes:
            processes.add(process)
            waiting += offspring[process]
    return processes


def resident_bytes(root: int) -> int:
    """Resident memory of a tree of processes, without what they share with others."""
    return sum(_private_bytes(process) for process in children_of(_parents(), root))


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text()
        except OSError:  # it has ended meanwhile
            continue
        # The second field is a name in brackets and may hold anything.
        parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _private_bytes(process: int) -> int:
    try:
        _, resident, shared, *_ = Path("/proc", str(process), "statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * _PAGE


class PeakMemory:
    """The greatest amount that a tree of processes held while the block ran."""

    def __init__(self, root: int) -> None:
        self.bytes = 0
        self._root = root
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, resident_bytes(self._root))
            if self._stopped.wait(EVERY_SECONDS):
                return
