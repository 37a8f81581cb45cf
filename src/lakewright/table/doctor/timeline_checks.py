"""What can be wrong with the timeline. Pure: evidence in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lakewright.clock import zone_of
from lakewright.core.instant import COMPLETED_NAME, WRITE_ACTIONS, Instant, State, epoch_ms
from lakewright.errors import InvalidError
from lakewright.format.history import VERSION_FILE
from lakewright.table.doctor.damaged_files import Remedy
from lakewright.table.doctor.evidence import Evidence
from lakewright.table.doctor.findings import Finding, Kind, Severity
from lakewright.table.heartbeat import is_expired

# A writer without a heartbeat cannot be told from a dead one, unless it is silent for very long.
SILENT_MS = 24 * 3_600_000
_SKEW_MS = 5 * 60_000
# The zone of a table in local time is that of its writers, wherever they are.
_LOCAL_SKEW_MS = 28 * 3_600_000


def backup(evidence: Evidence) -> Iterator[Finding]:
    """A change of the properties that somebody died in."""
    if evidence.has_backup:
        yield Finding(
            Kind.PROPERTIES_BACKUP,
            Severity.WARNING,
            "a change of the table's properties was not ended: their backup is still there",
            "end it: the file that is whole stays, the backup goes",
            ".hoodie/hoodie.properties.backup",
            safe=True,
        )


def history(evidence: Evidence) -> Iterator[Finding]:
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
        Kind.HISTORY,
        Severity.ERROR,
        f"history cannot be read, so old files cannot be told from orphans: {damage.message}",
        advice,
        path,
        facts={name: value for name, value in damage.facts.items() if value != path},
    )


def unreadable(evidence: Evidence) -> Iterator[Finding]:
    """Files of the timeline that do not say what they should.

    Not every writer creates a file in one step: a young one may be on its way.
    """
    written_ms = {file.name: file.modified_ms for file in evidence.timeline_files}
    for damaged in evidence.damaged:
        instant = damaged.instant
        beat = evidence.beats_ms.get(instant.requested_at)
        changed_ms = evidence.signs_ms.get(instant.requested_at, 0)
        silent_ms = evidence.now_ms - max(
            written_ms.get(instant.file_name, 0), changed_ms, beat or 0
        )
        without_beat_ms = SILENT_MS if damaged.begun else evidence.heartbeat.expires_after_ms
        limit_ms = without_beat_ms if beat is None else evidence.heartbeat.expires_after_ms
        yield Finding(
            Kind.TIMELINE_FILE,
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
        Kind.CLOCK_ORDER,
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


def pending(evidence: Evidence) -> Iterator[Finding]:
    """Instants that were begun and that nobody seems to be working at."""
    for instant in evidence.snapshot.timeline.pending():
        at = instant.requested_at
        beat = evidence.beats_ms.get(at)
        if beat is not None and not is_expired(beat, evidence.heartbeat, evidence.now_ms):
            continue
        silent_ms = evidence.now_ms - max(evidence.signs_ms.get(at, 0), beat or 0)
        dead = silent_ms > (SILENT_MS if beat is None else evidence.heartbeat.expires_after_ms)
        yield from _pending(instant, silent_ms, dead=dead)


def _pending(instant: Instant, silent_ms: int, *, dead: bool) -> Iterator[Finding]:
    facts = {"state": str(instant.state), "silent_for_s": silent_ms // 1000}
    name = instant.file_name
    if instant.action in WRITE_ACTIONS and dead:
        yield Finding(
            Kind.DEAD_WRITE,
            Severity.WARNING,
            "a write was begun and its writer is dead",
            "roll it back: no query has seen it",
            name,
            safe=True,
            facts=facts,
        )
    elif instant.action == "rollback" and dead:
        yield Finding(
            Kind.DEAD_ROLLBACK,
            Severity.WARNING,
            "a rollback was begun and nobody is ending it",
            "end it",
            name,
            safe=True,
            facts=facts,
        )
    elif instant.action in WRITE_ACTIONS or instant.action == "rollback":
        yield Finding(
            Kind.SILENT_WRITE,
            Severity.NOTE,
            "a write is under way without a heartbeat: its writer may be alive or dead",
            "wait for it; the next writer rolls it back if it is dead",
            name,
            facts=facts,
        )
    elif instant.state is State.INFLIGHT and (instant.action in (*COMPLETED_NAME, "clean")):
        yield Finding(
            Kind.DEAD_EXECUTION,
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
        Kind.METADATA_TABLE,
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
