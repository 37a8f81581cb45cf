"""Partitions whose time is over and whose rows are all there: they are marked as done, once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.freshness import Watermarks
from lakewright.model.instant import parse_time
from lakewright.model.partition_time import partition_end
from lakewright.model.plans import SERVICE_KEY
from lakewright.model.table_config import TableConfig
from lakewright.model.ttl import TtlSettings, TtlTrigger, ttl_settings
from lakewright.storage.base import Storage, join_path, map_in_threads
from lakewright.table.freshness_options import (
    SUCCESS_FILE,
    FreshnessSettings,
    call_user_function,
    load_function,
)
from lakewright.table.properties import touch_last_update_time
from lakewright.table.snapshot import Snapshot

_SUCCESS = "_SUCCESS"
# Tells that the function was called: readers of the format pass over such names.
_CALLED = ".lakewright_done"


@dataclass(frozen=True, slots=True)
class PartitionDoneMarker:
    """Which partitions of a table are done, and how they are marked.

    A mark is made after the commit that lets completion pass the end of a partition. Whoever dies
    in between leaves it to the next commit. A function is called until it has returned once.
    """

    storage: Storage
    settings: FreshnessSettings
    zone: str

    @property
    def enabled(self) -> bool:
        """Whether partitions are marked at all."""
        return self.settings.done_mark is not None

    def partitions_with_time(self, partitions: Iterable[str]) -> tuple[str, ...]:
        """Of these partitions the ones whose path names a time."""
        return tuple(path for path in partitions if self._end(path) is not None)

    def completed_partitions(self, partitions: Iterable[str], marks: Watermarks) -> tuple[str, ...]:
        """Of these partitions the ones that completion has passed."""
        completion = self.completion(marks)
        if completion is None:
            return ()
        ends = {path: self._end(path) for path in partitions}
        return tuple(path for path, end in ends.items() if end is not None and end <= completion)

    def completion(self, marks: Watermarks) -> int | None:
        """The completion that counts."""
        optimized = self.settings.done_view == "read_optimized"
        return marks.ro_completion if optimized else marks.rt_completion

    def is_marked(self, partition: str) -> bool:
        """Whether a partition was marked before."""
        return self.storage.exists(join_path(partition, self._file))

    def mark(self, partitions: Iterable[str], marks: Watermarks) -> None:
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
            failure = call_user_function(
                load_function(named), self.storage.root, partition, completion
            )
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


# ------------------------------------------------------------------------------------------------
# What a write does for TTL: it renews its partitions, and tells when the trigger was met.
#
# Nothing of this decides about rows. A line that was not renewed is made up for by the timeline,
# and
# a run that fails after a trigger was met comes with the next trigger.


# Carried on from commit to commit: the requested time of the write after which TTL was last due,
# and the time before which no partition can expire, with the settings that this was found for.
CHECKED_KEY = "lakewright.ttl.checked"
NEXT_KEY = "lakewright.ttl.next"
_DAY_MS = 86_400_000


def touch_partitions(
    storage: Storage,
    config: TableConfig,
    options: Mapping[str, str],
    metadata: CommitMetadata,
    completed_at: str,
) -> None:
    """Note in partitions that rows were written to them, where TTL is switched on."""
    if SERVICE_KEY in metadata.extra or not ttl_settings_or_off(config, options).enabled:
        return
    try:
        map_in_threads(partial(_renew, storage, completed_at), sorted(metadata.stats))
    except LakewrightError as error:
        # The write has completed, whatever is wrong here.
        warnings.warn(
            f"the time of the last update of partitions was not renewed: {error}",
            RuntimeWarning,
            stacklevel=4,
        )


def ttl_settings_or_off(config: TableConfig, options: Mapping[str, str]) -> TtlSettings:
    """The settings as writes go by them: off where they make no sense, which is no writer's fault.

    Who runs TTL by hand is told what is wrong with them.
    """
    if not config.partition_fields:
        return TtlSettings()
    try:
        return ttl_settings(config.properties, options)
    except InvalidError as error:
        warnings.warn(f"TTL is not carried out: {error}", RuntimeWarning, stacklevel=2)
        return TtlSettings()


def _renew(storage: Storage, completed_at: str, partition: str) -> bool:
    return touch_last_update_time(storage, partition, completed_at)


def ttl_extra_metadata(
    now: Snapshot, own: str, now_ms: int, options: Mapping[str, str], metadata: CommitMetadata
) -> dict[str, str]:
    """What a commit at `own` keeps of the last check, on the table as it is before it."""
    settings = ttl_settings_or_off(now.config, options)
    if not settings.enabled:
        return {}
    if not settings.run_inline:
        found = metadata.extra.get(NEXT_KEY) or next_ttl_check(now)
        return {NEXT_KEY: found} if found else {}
    checked = _last_check(now)
    counts = metadata.operation not in SERVICE_OPERATIONS
    if counts and _is_due(now, settings, checked, now_ms):
        checked = own
    return {CHECKED_KEY: checked}


def is_ttl_triggered(metadata: CommitMetadata, requested_at: str) -> bool:
    """Whether TTL is to run after a commit, as it says itself."""
    return metadata.extra.get(CHECKED_KEY) == requested_at


def next_ttl_check(now: Snapshot) -> str:
    """What the newest write says about when to look next; empty if it does not."""
    newest = now.commits(now.timeline.by_completion[-1:])
    return newest[0].extra.get(NEXT_KEY, "") if newest else ""


def _last_check(now: Snapshot) -> str:
    for instant in reversed(now.timeline.by_completion):
        (commit,) = now.commits([instant])
        if CHECKED_KEY in commit.extra:
            return commit.extra[CHECKED_KEY]
    return ""


def _is_due(now: Snapshot, settings: TtlSettings, checked: str, now_ms: int) -> bool:
    if settings.trigger is TtlTrigger.NUM_COMMITS:
        done = [i for i in now.timeline.completed_writes if i.requested_at > checked]
        return len(done) + 1 >= settings.trigger_value
    if not checked:
        return True
    zone = zone_of(now.config.timeline_zone)
    try:
        since_ms = int(parse_time(checked, zone).timestamp() * 1000)
    except InvalidError:
        return True
    return now_ms - since_ms >= settings.trigger_value * _DAY_MS
