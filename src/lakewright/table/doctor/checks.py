"""The checks of an examination: data files, the timeline, and foreign entries of the folder.

Each check is a pure function from the evidence to findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.format.archived_timeline import VERSION_FILE
from lakewright.model.file_group import PARTITION_METADATA, BaseFile, GroupKey, LogFile
from lakewright.model.instant import REWRITES, WRITE_ACTIONS, Action, Instant, State, epoch_ms
from lakewright.model.table_config import META_FOLDER
from lakewright.storage.base import FileStatus, split_path
from lakewright.table.doctor.damaged_timeline import Remedy
from lakewright.table.doctor.evidence import Evidence, data_file
from lakewright.table.doctor.findings import Finding, FindingKind, Severity
from lakewright.table.heartbeat import is_expired
from lakewright.table.properties import METADATA_FOLDER

_MAX_SHOWN_FILES = 5
_MAX_FINDINGS = 50


# Data files.


def partition_metadata(evidence: Evidence) -> Iterator[Finding]:
    """Find folders with committed files that no reader recognizes as partitions."""
    partitions = {
        split_path(f.path)[0] for f in evidence.files if f.name.startswith(PARTITION_METADATA)
    }
    unmarked: dict[str, list[BaseFile | LogFile]] = {}
    for status, file in data_files(evidence):
        folder = split_path(status.path)[0]
        if folder not in partitions and evidence.snapshot.timeline.is_committed(file.instant):
            unmarked.setdefault(folder, []).append(file)
    written = {key for commit in evidence.commits.values() for key in commit.file_groups()}
    for folder, files in sorted(unmarked.items()):
        groups: set[GroupKey] = {(folder, file.file_id) for file in files}
        replaced = groups & evidence.replaced
        if replaced == groups:
            continue  # a partition that was deleted, and is being cleaned
        # File groups of archived writes may have been replaced; their rows must not reappear.
        safe = groups <= written and not replaced
        yield Finding(
            FindingKind.PARTITION_METADATA,
            Severity.ERROR,
            "a folder holds committed files and lacks the partition metadata: no reader sees them",
            "write the partition metadata"
            if safe
            else "look whether the partition was deleted; if not, write its partition metadata",
            folder,
            safe=safe,
            facts={
                "files": len(files),
                "first_instant": min(file.instant for file in files),
            },
        )


def unlisted_files(evidence: Evidence) -> Iterator[Finding]:
    """Find data files of completed writes that their commits do not list.

    A task attempt created them after its write had committed without it. Readers of the format find
    files by name, so their rows are read twice, or hide other rows. They may be deleted if all
    files that the commit lists exist, and no task of the write can be running.
    """
    missing = {split_path(path)[1] for path in evidence.missing}
    for at, files in sorted(evidence.unlisted.items())[:_MAX_FINDINGS]:
        all_listed_exist = not missing & evidence.commits[at].referenced_file_names()
        youngest_ms = max(file.modified_ms for file in files)
        is_old = is_expired(youngest_ms, evidence.heartbeat, evidence.now_ms)
        yield Finding(
            FindingKind.UNLISTED_FILE,
            Severity.ERROR if is_old else Severity.NOTE,
            f"{len(files)} data files of a completed write are not in its commit"
            + (": other readers take them for part of the table" if is_old else ", and new"),
            "delete them: a task attempt left them that the write completed without"
            if all_listed_exist
            else "files that the commit lists are missing: look whether these hold their rows",
            at,
            safe=is_old and all_listed_exist,
            facts={
                "bytes": sum(file.size for file in files),
                "files": [file.path for file in files[:_MAX_SHOWN_FILES]],
            },
        )


def invalid_file_slices(evidence: Evidence) -> Iterator[Finding]:
    """Find data files that form no file slices, so that every query fails."""
    damage = evidence.invalid_slices
    if damage is not None:
        yield Finding(
            FindingKind.FILE_SLICES,
            Severity.ERROR,
            f"the data files cannot be put into file slices: {damage.message}",
            "move the file that is no part of its commit out of the table; whether others are "
            "missing was not examined",
            str(damage.facts.get("file", "")),
            facts={name: value for name, value in damage.facts.items() if name != "file"},
        )


def missing_files(evidence: Evidence) -> Iterator[Finding]:
    """Find files of the newest state of the table that do not exist, or are empty."""
    groups = [
        (FindingKind.MISSING_FILE, "a file that queries need does not exist", evidence.missing),
        (FindingKind.EMPTY_FILE, "a file that queries need is empty", evidence.empty),
    ]
    for kind, message, paths in groups:
        for path in paths[:_MAX_FINDINGS]:
            yield Finding(
                kind,
                Severity.ERROR,
                message,
                "bring it back from a copy, or restore the table to a savepoint before it; "
                "queries of its partition fail or lack rows",
                path,
                facts={"such_files": len(paths)},
            )


def orphans(evidence: Evidence) -> Iterator[Finding]:
    """Find data files of instants that are on neither the active nor the archived timeline.

    A repair never deletes them. It looks the same if a timeline file was lost, and then they are
    all that is left of the write.
    """
    if evidence.archived is None:
        return
    timeline = evidence.snapshot.timeline
    instants = {i.requested_at for i in timeline} | evidence.archived
    marked = {*evidence.leftovers.orphans, *evidence.leftovers.recent_orphans}
    by_instant: dict[str, list[FileStatus]] = {}
    for status, file in data_files(evidence):
        if file.instant not in instants and file.instant not in marked:
            by_instant.setdefault(file.instant, []).append(status)
    for at, files in sorted(by_instant.items())[:_MAX_FINDINGS]:
        visible = timeline.is_archived(at)
        yield Finding(
            FindingKind.ORPHAN,
            Severity.WARNING,
            f"{len(files)} data files of an instant that is not on the active or archived timeline"
            + (": readers take them for archived" if visible else ": no reader sees them"),
            "look whether a file of the timeline was lost, and bring it back; "
            + (
                "if not, move the files out of the table: their rows may be counted twice"
                if visible
                else "if not, move the files out of the table before archiving passes their instant"
            ),
            at,
            facts={
                "bytes": sum(file.size for file in files),
                "seen_by_readers": visible,
                "files": [file.path for file in files[:_MAX_SHOWN_FILES]],
            },
        )


def leftover_files(evidence: Evidence) -> Iterator[Finding]:
    """Find what killed processes have left, and what certainly no process uses."""
    leftovers = evidence.leftovers
    if leftovers.files or leftovers.marked:
        yield Finding(
            FindingKind.LEFTOVERS,
            Severity.WARNING,
            "temporary files, heartbeats or markers of finished writes are left",
            "delete them: no data file is among them",
            safe=True,
            facts={
                "files": len(leftovers.files),
                "markers_of": list(leftovers.marked[:_MAX_SHOWN_FILES]),
                "first": list(leftovers.files[:_MAX_SHOWN_FILES]),
            },
        )
    for at in leftovers.orphans:
        yield Finding(
            FindingKind.STRAYS,
            Severity.WARNING,
            "a task attempt ran on after its write had finished: its markers name files that no "
            "commit lists",
            "delete those that exist; the next writer, or a clean, does so too",
            at,
            safe=True,
        )
    for at in leftovers.recent_orphans:
        yield Finding(
            FindingKind.STRAYS,
            Severity.NOTE,
            "a task attempt may be running whose write has finished: its markers name files that "
            "no commit lists, and readers pass over them",
            "nothing: the next writer, or a clean, deletes them once the markers are old",
            at,
        )


def lock(evidence: Evidence) -> Iterator[Finding]:
    """Find a lock file: a writer is running, or has crashed."""
    if evidence.lock is not None:
        age_s = (evidence.now_ms - evidence.lock.modified_ms) // 1000
        yield Finding(
            FindingKind.LOCK,
            Severity.NOTE,
            "the table is locked by a lock file",
            "if no process is writing, delete the file; writers wait for it until then",
            evidence.lock.path,
            facts={"age_s": age_s},
        )


def data_files(evidence: Evidence) -> Iterator[tuple[FileStatus, BaseFile | LogFile]]:
    """Iterate over the data files of the table, in partitions and in other folders."""
    for status in evidence.files:
        file = data_file(status)
        if file is not None:
            yield status, file


# The timeline.

# A writer without a heartbeat counts as crashed only if it has changed no file for very long.
SILENT_MS = 24 * 3_600_000
_SKEW_MS = 5 * 60_000
# Instants in local time are in the zone of the writers, which may be any zone.
_LOCAL_SKEW_MS = 28 * 3_600_000


def properties_backup(evidence: Evidence) -> Iterator[Finding]:
    """Find a change of the properties in which a process crashed."""
    if evidence.has_backup:
        yield Finding(
            FindingKind.PROPERTIES_BACKUP,
            Severity.WARNING,
            "a change of the table's properties was not finished: their backup still exists",
            "finish it: the file that is complete stays, the backup is deleted",
            f"{META_FOLDER}/hoodie.properties.backup",
            safe=True,
        )


def archived_timeline(evidence: Evidence) -> Iterator[Finding]:
    """Find the file of the archived timeline that cannot be read."""
    damage = evidence.history_damage
    if damage is None:
        return
    folder = evidence.config.history_folder
    path = str(damage.facts.get("file") or damage.facts.get("path") or folder)
    if path.endswith(f"/{VERSION_FILE}"):
        advice = "delete it: the newest manifest counts then. Do not clean or archive before"
    else:
        advice = "bring it back from a copy; do not clean or archive before"
    yield Finding(
        FindingKind.HISTORY,
        Severity.ERROR,
        "the archived timeline cannot be read, so old files cannot be distinguished from "
        f"orphan files: {damage.message}",
        advice,
        path,
        facts={name: value for name, value in damage.facts.items() if value != path},
    )


def unreadable_timeline_files(evidence: Evidence) -> Iterator[Finding]:
    """Find timeline files that cannot be read.

    Not every writer creates a file in one step: a young file may not be complete yet.
    """
    written_ms = {file.name: file.modified_ms for file in evidence.timeline_files}
    for damaged in evidence.damaged:
        instant = damaged.instant
        heartbeat_ms = evidence.heartbeats_ms.get(instant.requested_at)
        changed_ms = evidence.last_activity_ms.get(instant.requested_at, 0)
        silent_ms = evidence.now_ms - max(
            written_ms.get(instant.file_name, 0), changed_ms, heartbeat_ms or 0
        )
        no_heartbeat_limit_ms = SILENT_MS if damaged.begun else evidence.heartbeat.expires_after_ms
        limit_ms = (
            no_heartbeat_limit_ms if heartbeat_ms is None else evidence.heartbeat.expires_after_ms
        )
        yield Finding(
            FindingKind.TIMELINE_FILE,
            Severity.NOTE if damaged.harmless else Severity.ERROR,
            f"a file of the timeline cannot be read: {damaged.reason}",
            damaged.advice,
            f"{evidence.config.timeline_folder}/{instant.file_name}",
            safe=damaged.remedy.is_safe and silent_ms > limit_ms,
            loses_rows=damaged.remedy is Remedy.FORCE and silent_ms > limit_ms,
            facts=damaged.facts,
        )


def clock_order(evidence: Evidence) -> Iterator[Finding]:
    """Find times that are impossible, or that other readers would order differently."""
    completed = [i for i in evidence.snapshot.timeline if i.completed_at is not None]
    for instant in completed:
        # A savepoint has the time of what it saves.
        if (instant.completed_at or "") < instant.requested_at:
            yield _clock_finding(
                Severity.ERROR, "an instant completed before it was requested", instant
            )
    counts = Counter(i.completed_at for i in completed if i.is_write)
    for instant in completed:
        if instant.is_write and counts[instant.completed_at] > 1:
            yield _clock_finding(
                Severity.WARNING, "two writes have the same completion time", instant
            )
    limit = evidence.now_ms + _skew_ms(evidence)
    for instant in evidence.snapshot.timeline:
        if _epoch_ms(evidence, max(instant.requested_at, instant.completed_at or "")) > limit:
            yield _clock_finding(Severity.WARNING, "an instant lies in the future", instant)


def _clock_finding(severity: Severity, message: str, instant: Instant) -> Finding:
    return Finding(
        FindingKind.CLOCK_ORDER,
        severity,
        message,
        "check the clocks of the writers, and hoodie.table.timeline.timezone; "
        "readers by completion time may pass over rows",
        instant.file_name,
        facts={"requested_at": instant.requested_at, "completed_at": instant.completed_at},
    )


def _skew_ms(evidence: Evidence) -> int:
    local = evidence.config.timeline_zone.strip().upper() != "UTC"
    return _LOCAL_SKEW_MS if local else _SKEW_MS


def _epoch_ms(evidence: Evidence, time: str) -> int:
    try:
        return epoch_ms(time, zone_of(evidence.config.timeline_zone))
    except InvalidError:
        return 0  # not a date, so it cannot lie in the future


def pending_instants(evidence: Evidence) -> Iterator[Finding]:
    """Find pending instants that no process seems to be working on."""
    for instant in evidence.snapshot.timeline.pending():
        at = instant.requested_at
        heartbeat_ms = evidence.heartbeats_ms.get(at)
        if heartbeat_ms is not None and not is_expired(
            heartbeat_ms, evidence.heartbeat, evidence.now_ms
        ):
            continue
        silent_ms = evidence.now_ms - max(evidence.last_activity_ms.get(at, 0), heartbeat_ms or 0)
        crashed = silent_ms > (
            SILENT_MS if heartbeat_ms is None else evidence.heartbeat.expires_after_ms
        )
        yield from _pending_findings(instant, silent_ms, crashed=crashed)


def _pending_findings(instant: Instant, silent_ms: int, *, crashed: bool) -> Iterator[Finding]:
    facts = {"state": str(instant.state), "silent_for_s": silent_ms // 1000}
    name = instant.file_name
    if instant.action in WRITE_ACTIONS and crashed:
        yield Finding(
            FindingKind.DEAD_WRITE,
            Severity.WARNING,
            "a write is pending and its writer has crashed",
            "roll it back: no query has seen it",
            name,
            safe=True,
            facts=facts,
        )
    elif instant.action == Action.ROLLBACK and crashed:
        yield Finding(
            FindingKind.DEAD_ROLLBACK,
            Severity.WARNING,
            "a rollback is pending and no process is finishing it",
            "finish it",
            name,
            safe=True,
            facts=facts,
        )
    elif instant.action in WRITE_ACTIONS or instant.action == Action.ROLLBACK:
        yield Finding(
            FindingKind.SILENT_WRITE,
            Severity.NOTE,
            "a write is pending without a heartbeat: its writer may be running or have crashed",
            "wait for it; the next writer rolls it back if its writer has crashed",
            name,
            facts=facts,
        )
    elif instant.state is State.INFLIGHT and (instant.action in (*REWRITES, Action.CLEAN)):
        yield Finding(
            FindingKind.DEAD_EXECUTION,
            Severity.WARNING if crashed else Severity.NOTE,
            f"a {instant.action} is inflight and no process seems to be executing it",
            "run `lakewright services run`: it executes pending plans again",
            name,
            facts=facts,
        )


def metadata_table(evidence: Evidence) -> Iterator[Finding]:
    """Find a metadata table that readers use and that lacks the newest write."""
    used_partitions = evidence.config.properties.get("hoodie.table.metadata.partitions", "").strip(
        ", "
    )
    if not used_partitions:
        return
    writes = evidence.snapshot.timeline.by_completion
    newest = writes[-1] if writes else None
    if evidence.metadata is None:
        message = "the properties name a metadata table, and there is none"
    elif newest is not None and not _is_recorded(newest, evidence.metadata):
        message = "the metadata table lacks the newest write: readers that use it miss rows"
    else:
        return
    yield Finding(
        FindingKind.METADATA_TABLE,
        Severity.ERROR,
        message,
        "drop it: readers list the table instead, and Hudi's next write builds it anew",
        METADATA_FOLDER,
        safe=True,
        facts={"newest_write": newest and newest.requested_at, "partitions": used_partitions},
    )


def _is_recorded(write: Instant, recorded: tuple[Instant, ...]) -> bool:
    """Whether a metadata table includes a write.

    It does if it has the instant of the write, or was built after the write, or has archived its
    instant since. The instants that build a metadata table initially are not dates.
    """
    at, completed_at = write.requested_at, write.completed_at or ""
    built_at = [i.completed_at or "" for i in recorded if i.requested_at.startswith("0")]
    instants = [i.requested_at for i in recorded if not i.requested_at.startswith("0")]
    includes = at in instants or any(completed_at <= time for time in built_at)
    return includes or (not built_at and bool(instants) and at < min(instants))


# Entries in the table's folder that are no part of it, by their name or kind.


def ignored_entries(evidence: Evidence) -> Iterator[Finding]:
    """Find files and folders that no listing shows."""
    for entry in evidence.ignored[:_MAX_FINDINGS]:
        yield Finding(
            FindingKind.PASSED_OVER,
            Severity.WARNING,
            f"readers and writers pass over something in the table's folder: {entry.reason}",
            "move it out of the table; a folder that belongs to the table has to be in it, "
            "or mounted there",
            entry.name,
            facts={"such": len(evidence.ignored)},
        )
