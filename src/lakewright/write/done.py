"""Partitions whose time is over and whose rows are all there: they are marked as done, once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

from lakewright.clock import zone_of
from lakewright.core.freshness import Marks
from lakewright.core.partition_times import partition_end
from lakewright.errors import ConflictError, LakewrightError
from lakewright.storage.base import Storage, join_path
from lakewright.write.freshness_settings import (
    SUCCESS_FILE,
    FreshnessSettings,
    call_others,
    load_function,
)

_SUCCESS = "_SUCCESS"
# Tells that the function was called: readers of the format pass over such names.
_CALLED = ".lakewright_done"


@dataclass(frozen=True, slots=True)
class DoneMarks:
    """Which partitions of a table are done, and how they are marked.

    A mark is made after the commit that lets completion pass the end of a partition. Whoever dies
    in between leaves it to the next commit. A function is called until it has returned once.
    """

    storage: Storage
    settings: FreshnessSettings
    zone: str

    @property
    def are_wanted(self) -> bool:
        """Whether partitions are marked at all."""
        return self.settings.done_mark is not None

    def timed(self, partitions: Iterable[str]) -> tuple[str, ...]:
        """Of these partitions the ones whose path names a time."""
        return tuple(path for path in partitions if self._end(path) is not None)

    def over(self, partitions: Iterable[str], marks: Marks) -> tuple[str, ...]:
        """Of these partitions the ones that completion has passed."""
        completion = self.completion(marks)
        if completion is None:
            return ()
        ends = {path: self._end(path) for path in partitions}
        return tuple(path for path, end in ends.items() if end is not None and end <= completion)

    def completion(self, marks: Marks) -> int | None:
        """The completion that counts."""
        optimized = self.settings.done_view == "read_optimized"
        return marks.ro_completion if optimized else marks.rt_completion

    def is_marked(self, partition: str) -> bool:
        """Whether a partition was marked before."""
        return self.storage.exists(join_path(partition, self._file))

    def mark(self, partitions: Iterable[str], marks: Marks) -> None:
        """Mark partitions as done; a failure is a warning, and the next commit tries again."""
        for path in partitions:
            try:
                if not self.is_marked(path):
                    self._mark(path, self.completion(marks))
            except LakewrightError as error:
                self._warn(path, str(error))

    def _mark(self, partition: str, completion: int | None) -> None:
        named = self.settings.done_mark
        if named is not None and named != SUCCESS_FILE:
            failure = call_others(load_function(named), self.storage.root, partition, completion)
            if failure is not None:
                self._warn(partition, failure)
                return
        try:
            self.storage.create(join_path(partition, self._file), b"")
        except ConflictError:
            return  # another writer was faster

    @staticmethod
    def _warn(partition: str, reason: str) -> None:
        text = f"partition {partition!r} was not marked as done: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    @property
    def _file(self) -> str:
        return _SUCCESS if self.settings.done_mark == SUCCESS_FILE else _CALLED

    def _end(self, path: str) -> int | None:
        return partition_end(path, zone_of(self.zone), self.settings.done_interval_ms)
