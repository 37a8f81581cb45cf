"""What can be wrong with the files of a table. Pure: evidence in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lakewright.clock import zone_of
from lakewright.errors import InvalidError
from lakewright.format.archived_timeline import VERSION_FILE
from lakewright.model.file_group import PARTITION_METADATA, BaseFile, GroupKey, LogFile
from lakewright.model.instant import REWRITES, WRITE_ACTIONS, Instant, State, epoch_ms
from lakewright.storage.base import FileStatus, split_path
from lakewright.table.doctor.damaged_timeline import Remedy
from lakewright.table.doctor.evidence import Evidence, data_file
from lakewright.table.doctor.findings import Finding, FindingKind, Severity
from lakewright.table.heartbeat import is_expired

_MOST_NAMED = 5
_MOST_FINDINGS = 50


def partition_metadata(evidence: Evidence) -> Iterator[Finding]:
    """Folders with committed files that no reader takes for partitions."""
    marked = {
        split_path(f.path)[0] for f in evidence.files if f.name.startswith(PARTITION_METADATA)
    }
    bare: dict[str, list[BaseFile | LogFile]] = {}
    for status, file in data_files(evidence):
        folder = split_path(status.path)[0]
        if folder not in marked and evidence.snapshot.timeline.is_committed(file.instant):
            bare.setdefault(folder, []).append(file)
    written = {key for commit in evidence.commits.values() for key in commit.file_groups()}
    for folder, files in sorted(bare.items()):
        groups: set[GroupKey] = {(folder, file.file_id) for file in files}
        replaced = groups & evidence.replaced
        if replaced == groups:
            continue  # a partition that was deleted, and is being cleaned
        # What history alone knows may have been replaced; then it must not come to light again.
        sure = groups <= written and not replaced
        yield Finding(
            FindingKind.PARTITION_METADATA,
            Severity.ERROR,
            "a folder holds committed files and lacks the partition metadata: nobody reads them",
            "write the partition metadata"
            if sure
            else "look whether the partition was deleted; if not, write its partition metadata",
            folder,
            safe=sure,
            facts={
                "files": len(files),
                "first_instant": min(file.instant for file in files),
            },
        )


def unlisted_files(evidence: Evidence) -> Iterator[Finding]:
    """Data files of completed writes that their commits do not list.

    A task attempt made them after its write had completed without it. Readers of the format take
    files by name, so their rows are read twice, or hide others. They may be deleted once the files
    that the commit lists are there, and no task of the write can be running.
    """
    lost = {split_path(path)[1] for path in evidence.missing}
    for at, files in sorted(evidence.unlisted.items())[:_MOST_FINDINGS]:
        is_whole = not lost & evidence.commits[at].named_files()
        youngest_ms = max(file.modified_ms for file in files)
        is_old = is_expired(youngest_ms, evidence.heartbeat, evidence.now_ms)
        yield Finding(
            FindingKind.UNLISTED_FILE,
            Severity.ERROR if is_old else Severity.NOTE,
            f"{len(files)} data files of a completed write are not in its commit"
            + (": other readers take them for part of the table" if is_old else ", and new"),
            "delete them: a task attempt left them that the write completed without"
            if is_whole
            else "files that the commit lists are missing: look whether these hold their rows",
            at,
            safe=is_old and is_whole,
            facts={
                "bytes": sum(file.size for file in files),
                "files": [file.path for file in files[:_MOST_NAMED]],
            },
        )


def invalid_file_slices(evidence: Evidence) -> Iterator[Finding]:
    """Data files that cannot be together, so that every query fails."""
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
    """Files that the newest state of the table consists of, and that are not there, or empty."""
    found = [
        (FindingKind.MISSING_FILE, "a file that queries need is not there", evidence.missing),
        (FindingKind.EMPTY_FILE, "a file that queries need is empty", evidence.empty),
    ]
    for kind, message, paths in found:
        for path in paths[:_MOST_FINDINGS]:
            yield Finding(
                kind,
                Severity.ERROR,
                message,
                "bring it back from a copy, or take the table back to a savepoint before it; "
                "queries of its partition fail or lack rows",
                path,
                facts={"such_files": len(paths)},
            )


def orphans(evidence: Evidence) -> Iterator[Finding]:
    """Data files of instants that neither the timeline nor history knows.

    They are never deleted here. The same is seen where a file of the timeline was lost, and then
    they are all that is left of the write.
    """
    if evidence.archived is None:
        return
    timeline = evidence.snapshot.timeline
    known = {i.requested_at for i in timeline} | evidence.archived
    stray = {*evidence.leftovers.orphans, *evidence.leftovers.aging}
    by_instant: dict[str, list[FileStatus]] = {}
    for status, file in data_files(evidence):
        if file.instant not in known and file.instant not in stray:
            by_instant.setdefault(file.instant, []).append(status)
    for at, files in sorted(by_instant.items())[:_MOST_FINDINGS]:
        counted = timeline.is_archived(at)
        yield Finding(
            FindingKind.ORPHAN,
            Severity.WARNING,
            f"{len(files)} data files of an instant that neither the timeline nor history knows"
            + (": readers take them for archived" if counted else ": no reader sees them"),
            "look whether a file of the timeline was lost, and bring it back; "
            + (
                "if not, move the files out of the table: their rows may be counted twice"
                if counted
                else "if not, move the files out of the table before archiving passes their instant"
            ),
            at,
            facts={
                "bytes": sum(file.size for file in files),
                "seen_by_readers": counted,
                "files": [file.path for file in files[:_MOST_NAMED]],
            },
        )


def leftover_files(evidence: Evidence) -> Iterator[Finding]:
    """What killed processes leave, and what is surely of no use to anybody."""
    dead = evidence.leftovers
    if dead.files or dead.marked:
        yield Finding(
            FindingKind.LEFTOVERS,
            Severity.WARNING,
            "temporary files, heartbeats or markers of writes that have ended are left",
            "delete them: no data file is among them",
            safe=True,
            facts={
                "files": len(dead.files),
                "markers_of": list(dead.marked[:_MOST_NAMED]),
                "first": list(dead.files[:_MOST_NAMED]),
            },
        )
    for at in dead.orphans:
        yield Finding(
            FindingKind.STRAYS,
            Severity.WARNING,
            "a task attempt ran on after its write had ended: its markers name files that no "
            "commit lists",
            "delete what is there of them; the next writer, or a clean, does so too",
            at,
            safe=True,
        )
    for at in dead.aging:
        yield Finding(
            FindingKind.STRAYS,
            Severity.NOTE,
            "a task attempt may be running whose write has ended: its markers name files that no "
            "commit lists, and readers pass over them",
            "nothing: the next writer, or a clean, deletes them once the markers are old",
            at,
        )


def lock(evidence: Evidence) -> Iterator[Finding]:
    """A lock file: somebody is at work, or died."""
    if evidence.lock is not None:
        age_s = (evidence.now_ms - evidence.lock.modified_ms) // 1000
        yield Finding(
            FindingKind.LOCK,
            Severity.NOTE,
            "the table is locked by a lock file",
            "if nobody is writing, delete the file; writers wait for it until then",
            evidence.lock.path,
            facts={"age_s": age_s},
        )


def data_files(evidence: Evidence) -> Iterator[tuple[FileStatus, BaseFile | LogFile]]:
    """The data files that lie anywhere in the table."""
    for status in evidence.files:
        file = data_file(status)
        if file is not None:
            yield status, file


# ------------------------------------------------------------------------------------------------
# What can be wrong with the timeline. Pure: evidence in, findings out.


# A writer without a heartbeat cannot be told from a dead one, unless it is silent for very long.
SILENT_MS = 24 * 3_600_000
_SKEW_MS = 5 * 60_000
# The zone of a table in local time is that of its writers, wherever they are.
_LOCAL_SKEW_MS = 28 * 3_600_000


def properties_backup(evidence: Evidence) -> Iterator[Finding]:
    """A change of the properties that somebody died in."""
    if evidence.has_backup:
        yield Finding(
            FindingKind.PROPERTIES_BACKUP,
            Severity.WARNING,
            "a change of the table's properties was not ended: their backup is still there",
            "end it: the file that is whole stays, the backup goes",
            ".hoodie/hoodie.properties.backup",
            safe=True,
        )


def archived_timeline(evidence: Evidence) -> Iterator[Finding]:
    """History that does not say what it should: the file of it that cannot be read."""
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
        f"history cannot be read, so old files cannot be told from orphans: {damage.message}",
        advice,
        path,
        facts={name: value for name, value in damage.facts.items() if value != path},
    )


def unreadable_timeline_files(evidence: Evidence) -> Iterator[Finding]:
    """Files of the timeline that do not say what they should.

    Not every writer creates a file in one step: a young one may be on its way.
    """
    written_ms = {file.name: file.modified_ms for file in evidence.timeline_files}
    for damaged in evidence.damaged:
        instant = damaged.instant
        beat = evidence.heartbeats_ms.get(instant.requested_at)
        changed_ms = evidence.last_activity_ms.get(instant.requested_at, 0)
        silent_ms = evidence.now_ms - max(
            written_ms.get(instant.file_name, 0), changed_ms, beat or 0
        )
        without_beat_ms = SILENT_MS if damaged.begun else evidence.heartbeat.expires_after_ms
        limit_ms = without_beat_ms if beat is None else evidence.heartbeat.expires_after_ms
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
    """Times that cannot be, or that other readers would take in another order."""
    done = [i for i in evidence.snapshot.timeline if i.completed_at is not None]
    for instant in done:
        # A savepoint has the time of what it saves.
        if (instant.completed_at or "") < instant.requested_at:
            yield _clock(Severity.ERROR, "an instant completed before it was requested", instant)
    counts = Counter(i.completed_at for i in done if i.is_write)
    for instant in done:
        if instant.is_write and counts[instant.completed_at] > 1:
            yield _clock(Severity.WARNING, "two writes have the same completion time", instant)
    limit = evidence.now_ms + _skew_ms(evidence)
    for instant in evidence.snapshot.timeline:
        if _ms(evidence, max(instant.requested_at, instant.completed_at or "")) > limit:
            yield _clock(Severity.WARNING, "an instant lies in the future", instant)


def _clock(severity: Severity, message: str, instant: Instant) -> Finding:
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


def _ms(evidence: Evidence, time: str) -> int:
    try:
        return epoch_ms(time, zone_of(evidence.config.timeline_zone))
    except InvalidError:
        return 0  # no date, which tells nothing


def pending_instants(evidence: Evidence) -> Iterator[Finding]:
    """Instants that were begun and that nobody seems to be working at."""
    for instant in evidence.snapshot.timeline.pending():
        at = instant.requested_at
        beat = evidence.heartbeats_ms.get(at)
        if beat is not None and not is_expired(beat, evidence.heartbeat, evidence.now_ms):
            continue
        silent_ms = evidence.now_ms - max(evidence.last_activity_ms.get(at, 0), beat or 0)
        dead = silent_ms > (SILENT_MS if beat is None else evidence.heartbeat.expires_after_ms)
        yield from _pending(instant, silent_ms, dead=dead)


def _pending(instant: Instant, silent_ms: int, *, dead: bool) -> Iterator[Finding]:
    facts = {"state": str(instant.state), "silent_for_s": silent_ms // 1000}
    name = instant.file_name
    if instant.action in WRITE_ACTIONS and dead:
        yield Finding(
            FindingKind.DEAD_WRITE,
            Severity.WARNING,
            "a write was begun and its writer is dead",
            "roll it back: no query has seen it",
            name,
            safe=True,
            facts=facts,
        )
    elif instant.action == "rollback" and dead:
        yield Finding(
            FindingKind.DEAD_ROLLBACK,
            Severity.WARNING,
            "a rollback was begun and nobody is ending it",
            "end it",
            name,
            safe=True,
            facts=facts,
        )
    elif instant.action in WRITE_ACTIONS or instant.action == "rollback":
        yield Finding(
            FindingKind.SILENT_WRITE,
            Severity.NOTE,
            "a write is under way without a heartbeat: its writer may be alive or dead",
            "wait for it; the next writer rolls it back if it is dead",
            name,
            facts=facts,
        )
    elif instant.state is State.INFLIGHT and (instant.action in (*REWRITES, "clean")):
        yield Finding(
            FindingKind.DEAD_EXECUTION,
            Severity.WARNING if dead else Severity.NOTE,
            f"a {instant.action} was begun and nobody seems to be executing it",
            "run `lakewright services run`: it executes waiting plans anew",
            name,
            facts=facts,
        )


def metadata_table(evidence: Evidence) -> Iterator[Finding]:
    """A metadata table that readers trust and that does not know the newest write."""
    trusted = evidence.config.properties.get("hoodie.table.metadata.partitions", "").strip(", ")
    if not trusted:
        return
    writes = evidence.snapshot.timeline.by_completion
    newest = writes[-1] if writes else None
    if evidence.metadata is None:
        message = "the properties name a metadata table, and there is none"
    elif newest is not None and not _is_recorded(newest, evidence.metadata):
        message = "the metadata table does not know the newest write: who trusts it misses rows"
    else:
        return
    yield Finding(
        FindingKind.METADATA_TABLE,
        Severity.ERROR,
        message,
        "drop it: readers list the table instead, and Hudi's next write builds it anew",
        ".hoodie/metadata",
        safe=True,
        facts={"newest_write": newest and newest.requested_at, "partitions": trusted},
    )


def _is_recorded(write: Instant, recorded: tuple[Instant, ...]) -> bool:
    """Whether a metadata table knows a write: by its instant, or as it was built or archived since.

    What a metadata table is built from when it begins has instants that are no dates.
    """
    at, done = write.requested_at, write.completed_at or ""
    built = [i.completed_at or "" for i in recorded if i.requested_at.startswith("0")]
    since = [i.requested_at for i in recorded if not i.requested_at.startswith("0")]
    known = at in since or any(done <= time for time in built)
    return known or (not built and bool(since) and at < min(since))


# ------------------------------------------------------------------------------------------------
# What lies in the folder of a table and is no part of it, by its name or kind. Pure.


def ignored_entries(evidence: Evidence) -> Iterator[Finding]:
    """Files and folders that no listing shows."""
    for each in evidence.ignored[:_MOST_FINDINGS]:
        yield Finding(
            FindingKind.PASSED_OVER,
            Severity.WARNING,
            f"readers and writers pass over something in the table's folder: {each.reason}",
            "move it out of the table; a folder that belongs to the table has to be in it, "
            "or mounted there",
            each.name,
            facts={"such": len(evidence.ignored)},
        )
