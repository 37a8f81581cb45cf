"""What can be wrong with the files of a table. Pure: evidence in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from lakewright.core.files import PARTITION_METADATA, BaseFile, LogFile
from lakewright.core.slices import GroupKey
from lakewright.storage.base import FileStatus, split_path
from lakewright.table.doctor.evidence import Evidence
from lakewright.table.doctor.findings import Finding, Kind, Severity
from lakewright.table.doctor.plain_files import data_file
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
            Kind.PARTITION_METADATA,
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
    lost = {split_path(path)[1] for path in evidence.lost}
    for at, files in sorted(evidence.unlisted.items())[:_MOST_FINDINGS]:
        is_whole = not lost & evidence.commits[at].named_files()
        youngest_ms = max(file.modified_ms for file in files)
        is_old = is_expired(youngest_ms, evidence.heartbeat, evidence.now_ms)
        yield Finding(
            Kind.UNLISTED_FILE,
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


def unsliced(evidence: Evidence) -> Iterator[Finding]:
    """Data files that cannot be together, so that every query fails."""
    damage = evidence.unsliced
    if damage is not None:
        yield Finding(
            Kind.FILE_SLICES,
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
        (Kind.MISSING_FILE, "a file that queries need is not there", evidence.lost),
        (Kind.EMPTY_FILE, "a file that queries need is empty", evidence.empty),
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
    stray = {*evidence.leftovers.strays, *evidence.leftovers.aging}
    by_instant: dict[str, list[FileStatus]] = {}
    for status, file in data_files(evidence):
        if file.instant not in known and file.instant not in stray:
            by_instant.setdefault(file.instant, []).append(status)
    for at, files in sorted(by_instant.items())[:_MOST_FINDINGS]:
        counted = timeline.is_archived(at)
        yield Finding(
            Kind.ORPHAN,
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


def leftovers(evidence: Evidence) -> Iterator[Finding]:
    """What killed processes leave, and what is surely of no use to anybody."""
    dead = evidence.leftovers
    if dead.files or dead.marked:
        yield Finding(
            Kind.LEFTOVERS,
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
    for at in dead.strays:
        yield Finding(
            Kind.STRAYS,
            Severity.WARNING,
            "a task attempt ran on after its write had ended: its markers name files that no "
            "commit lists",
            "delete what is there of them; the next writer, or a clean, does so too",
            at,
            safe=True,
        )
    for at in dead.aging:
        yield Finding(
            Kind.STRAYS,
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
            Kind.LOCK,
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
