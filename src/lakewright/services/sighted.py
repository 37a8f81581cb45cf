"""What planning reads of a table: the slices of some partitions, and who holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakewright.core.slices import FileSlice, GroupKey
from lakewright.core.table_config import TableType
from lakewright.errors import InvalidError
from lakewright.services.overtaken import why_void
from lakewright.services.service import Sight
from lakewright.services.window import Window
from lakewright.table.snapshot import FilesByPartition, Snapshot

KeepPartitions = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Sighted:
    """The newest slice of each file group, by partition and file id; groups that are spoken for."""

    slices: list[FileSlice]
    held: dict[GroupKey, str]


def look_into(sight: Sight, window: Window, keep: KeepPartitions) -> Sighted:
    """List the partitions of a window that `keep` leaves in, and no others if it names any."""
    if window.partitions is not None:
        files = sight.snapshot.files(keep(window.partitions))
    else:
        listed = sight.snapshot.files()
        files = {path: listed[path] for path in keep(list(listed))}
    return Sighted(newest_slices(sight, files), held_groups(sight.snapshot))


def newest_slices(sight: Sight, files: FilesByPartition) -> list[FileSlice]:
    """The slices as they are at the instant of the plan: what completes later is not in them."""
    snapshot = sight.snapshot
    late = any((i.completed_at or "") >= sight.instant for i in snapshot.timeline.completed_writes)
    # The bound needs the completion times of archived writes, which cost a look into history.
    view = snapshot.view(completed_until=sight.instant) if late else snapshot.view()
    return [group.merged() for group in snapshot.groups(view, files)]


def held_groups(snapshot: Snapshot) -> dict[GroupKey, str]:
    """The file groups that pending plans are going to rewrite, each with what it waits for.

    A plan that can never be executed holds nothing.
    """
    return {
        key: f"{instant.action} {instant.requested_at}"
        for instant, plan in snapshot.pending_plans()
        if why_void(snapshot, instant, plan) is None
        for key in plan.file_groups
    }


def need_log_files(snapshot: Snapshot, service: str) -> None:
    """Raise InvalidError for a table that never has log files."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        raise InvalidError(
            "a copy-on-write table has no log files", service=service, table=snapshot.config.name
        )
