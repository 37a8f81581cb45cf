"""Whether file groups still are what the plan of a compaction says they are.

A write may choose its completion time, and its file appear only after a plan was made at a later
time, where storage is slow or writers have no lock in common. Its log file would lie below the new
base file, where nobody reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.core.files import LogFile
from lakewright.core.instant import Instant
from lakewright.core.plans import CompactionOperation, CompactionPlan
from lakewright.core.slices import FileSlice, GroupKey, View, build_groups
from lakewright.errors import ConflictError, CorruptError
from lakewright.services.overtaken import why_void
from lakewright.table.snapshot import Snapshot

_CHANGE_FILES = ".cdc"
_PARTITIONS_AT_ONCE = 1000


def require_as_planned(snapshot: Snapshot, planned: Instant, plan: CompactionPlan) -> None:
    """ConflictError unless the groups of a plan hold, below its instant, the files that it names.

    Beside a log compaction log files may stay, but none that are merged before those it names.
    """
    if len(plan.file_groups) < len(plan.operations):
        raise CorruptError("a plan names a file group twice", instant=planned.requested_at)
    reason = why_void(snapshot, planned, plan)
    if reason is not None:
        raise ConflictError(reason, instant=planned.requested_at)
    partitions = plan.partitions
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        some = set(partitions[start : start + _PARTITIONS_AT_ONCE])
        named = {(o.partition, o.file_id): o for o in plan.operations if o.partition in some}
        _compare(snapshot, planned, named)


def newer_logs(
    snapshot: Snapshot, at: str, plan: CompactionPlan
) -> dict[GroupKey, tuple[LogFile, ...]]:
    """The log files from a plan's instant on in its groups, whether they count yet or not."""
    found: dict[GroupKey, tuple[LogFile, ...]] = {}
    groups = plan.file_groups
    partitions = plan.partitions
    for start in range(0, len(partitions), _PARTITIONS_AT_ONCE):
        listed = snapshot.files(partitions[start : start + _PARTITIONS_AT_ONCE])
        for partition, files in listed.items():
            for file in files:
                key = (partition, file.file_id)
                if isinstance(file, LogFile) and file.instant > at and key in groups:
                    found[key] = (*found.get(key, ()), file)
    return found


def _compare(
    snapshot: Snapshot, planned: Instant, named: Mapping[GroupKey, CompactionOperation]
) -> None:
    listed = snapshot.files(sorted({partition for partition, _ in named}))
    files = {
        partition: [file for file in found if (partition, file.file_id) in named]
        for partition, found in listed.items()
    }
    at = planned.requested_at
    # A base file counts by its requested time, whenever it completed: so it would be hidden.
    view = snapshot.with_completions(snapshot.view(requested_until=at), files)
    groups = [group for p, found in files.items() for group in build_groups(p, found, view)]
    slices = {group.key: group.merged() for group in groups}
    for key, operation in named.items():
        changed = _changed(planned, operation, slices.get(key), view)
        if changed:
            raise ConflictError(
                f"a file group has changed since its {planned.action} was planned: roll the "
                f"{planned.action} back and plan it again",
                instant=at,
                partition=operation.partition,
                file_id=operation.file_id,
                files=changed[:3],
            )


def _changed(
    planned: Instant, operation: CompactionOperation, found: FileSlice | None, view: View
) -> list[str]:
    """The files that are there and not in the plan, or the other way round."""
    logs = _logs_below(planned.requested_at, found, view) if found is not None else {}
    base = found.base.name if found is not None and found.base is not None else None
    expected = {name for name in operation.logs if not name.endswith(_CHANGE_FILES)}
    bases = {base, operation.base_file} - {None} if base != operation.base_file else set()
    missing, added = expected - logs.keys(), logs.keys() - expected
    if planned.action == "logcompaction":
        last = max((logs[name].order for name in expected & logs.keys()), default=None)
        added = {name for name in added if last is not None and logs[name].order < last}
    return sorted(str(name) for name in bases | missing | added)


def _logs_below(at: str, slice_: FileSlice, view: View) -> dict[str, LogFile]:
    return {
        log.name: log for log in slice_.logs if (view.completion(log.instant) or log.instant) < at
    }
