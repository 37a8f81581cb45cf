"""JSON documents for the panels: the timeline, one instant, freshness, pending plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lakewright.client.documents import commit_document, instant_document, plan_document
from lakewright.clock import zone_of
from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.freshness import FreshnessRecord, parse_freshness_record
from lakewright.model.instant import Action, Instant, epoch_ms
from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.services.base import METADATA_ONLY_RESULTS
from lakewright.services.planning import superseded_plans
from lakewright.table.heartbeat import is_expired
from lakewright.table.options import HeartbeatSettings
from lakewright.table.properties import read_optional
from lakewright.table.rollback import RollbackInfo, load_rollbacks
from lakewright.table.snapshot import Snapshot
from lakewright.write.writer import commit_result

Document = dict[str, Any]
TimeMs = Callable[[str | None], int | None]

# The timeline panel reads the metadata of this many newest commits; an older commit is read only
# when the details of its instant are requested.
_MAX_COMMITS_READ = 500
_MAX_ARCHIVED = 2000
_MAX_LIST_ITEMS = 200
_MAX_TEXT = 2000
_MAX_ROLLBACKS = 20
_SCHEMA = "schema"


def times_of(snapshot: Snapshot) -> TimeMs:
    """Return a function from an instant time to epoch milliseconds, or None if it is no date."""
    zone = zone_of(snapshot.config.timeline_zone)

    def time_ms(text: str | None) -> int | None:
        if not text:
            return None
        try:
            return epoch_ms(text, zone)
        except InvalidError:
            return None

    return time_ms


def truncate_lists(document: Document, max_items: int = _MAX_LIST_ITEMS) -> Document:
    """Truncate the long lists of a document and add their full length as `<name>_total`."""
    truncated: Document = {}
    for name, value in document.items():
        if isinstance(value, list | tuple) and len(value) > max_items:
            truncated |= {name: list(value[:max_items]), f"{name}_total": len(value)}
        elif isinstance(value, dict):
            truncated[name] = truncate_lists(value, max_items)
        else:
            truncated[name] = value
    return truncated


def readable_commits(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> dict[str, tuple[Instant, CommitMetadata]]:
    """The metadata of completed writes by requested time, without commits that cannot be read."""
    completed = list(instants)
    try:
        return {
            i.requested_at: (i, commit)
            for i, commit in zip(completed, snapshot.commits(completed), strict=True)
        }
    except (CorruptError, UnsupportedError):
        # Bisect to the unreadable commits.
        if len(completed) < 2:
            return {}
        middle = len(completed) // 2
        halves = (completed[:middle], completed[middle:])
        return {
            at: pair for half in halves for at, pair in readable_commits(snapshot, half).items()
        }


def readable_rollbacks(snapshot: Snapshot) -> tuple[RollbackInfo, ...]:
    """The rollbacks of the active timeline; none if the file of any of them cannot be read."""
    with suppress(CorruptError, UnsupportedError):
        return load_rollbacks(snapshot)
    return ()


def timeline_document(snapshot: Snapshot, *, archived: bool) -> Document:
    """The instants, oldest first, with a summary of the metadata of recent ones."""
    time_ms = times_of(snapshot)
    newest = snapshot.timeline.completed_writes[-_MAX_COMMITS_READ:]
    commits = readable_commits(snapshot, newest)
    rollbacks = {
        rollback.instant.requested_at: str(rollback) for rollback in readable_rollbacks(snapshot)
    }
    plans = snapshot.timeline.plans
    archived_instants = snapshot.archived if archived else ()
    shown = [*archived_instants[-_MAX_ARCHIVED:], *snapshot.timeline]
    active = set(snapshot.timeline)
    return {
        "instants": [
            {
                **instant_document(instant),
                "kind": plans.get(instant.requested_at, instant.action)
                if instant.is_write
                else instant.action,
                "requested_ms": time_ms(instant.requested_at),
                "completed_ms": time_ms(instant.completed_at),
                "archived": instant not in active,
                **_commit_summary(instant, commits.get(instant.requested_at)),
                "detail": rollbacks.get(instant.requested_at)
                if instant.action == Action.ROLLBACK
                else None,
            }
            for instant in shown
        ],
        "left_off": max(0, len(archived_instants) - _MAX_ARCHIVED),
    }


def _commit_summary(instant: Instant, completed: tuple[Instant, CommitMetadata] | None) -> Document:
    if completed is None or completed[0] != instant:
        return {}
    commit = commit_result(*completed)
    rows = commit.inserted + commit.updated
    counts = {"operation": commit.operation, "rows": rows, "deleted": commit.deleted}
    return {**counts, "partitions": len(commit.partitions), "files": commit.files}


def instant_details(snapshot: Snapshot, at: str, action: str) -> Document | None:
    """The details of one instant; None if it is on neither the active nor the archived timeline."""
    candidates = [i for i in snapshot.timeline if i.requested_at == at]
    instant = next((i for i in candidates if i.action == action), None)
    if instant is None:
        instant = snapshot.archived_writes({at}).get(at)
    if instant is None:
        return None
    time_ms = times_of(snapshot)
    planned = snapshot.timeline.plans.get(at) if instant.is_write else None
    document: Document = {
        **instant_document(instant),
        "kind": planned or instant.action,
        "requested_ms": time_ms(instant.requested_at),
        "completed_ms": time_ms(instant.completed_at),
        "file": instant.file_name,
    }
    document |= _result(snapshot, instant)
    action = planned or instant.action
    if action.is_rewrite:
        plan = snapshot.plan_of(at, action)
        document["plan"] = None if plan is None else truncate_lists(plan_document(plan))
        document["cancellable"] = plan is not None and plan.cancellable
    return document


def _result(snapshot: Snapshot, instant: Instant) -> Document:
    """The result that the metadata of an instant records."""
    if instant.action == Action.ROLLBACK:
        rollbacks = [r for r in load_rollbacks(snapshot) if r.instant == instant]
        return {
            "rollback": _rollback_document(rollbacks[0], times_of(snapshot)) if rollbacks else None
        }
    if instant.is_write and instant.is_completed:
        (commit,) = snapshot.commits([instant])
        stats = commit.write_stats()
        extra = {key: text[:_MAX_TEXT] for key, text in commit.extra.items() if key != _SCHEMA}
        return {
            "commit": truncate_lists(commit_document(commit_result(instant, commit))),
            "written_bytes": sum(s.file_size_in_bytes or s.total_write_bytes or 0 for s in stats),
            "extra": extra,
        }
    if instant.action in METADATA_ONLY_RESULTS and instant.is_completed:
        data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
        result = METADATA_ONLY_RESULTS[instant.action].parse(data) if data else None
        if result is not None:
            paths = {"files_deleted": result.files_deleted, "partitions": sorted(result.partitions)}
            return {"clean": truncate_lists(paths)}
    return {}


def freshness_history(snapshot: Snapshot) -> list[Document]:
    """Completion and freshness as recorded by the newest commits, in completion order."""
    time_ms = times_of(snapshot)
    newest = snapshot.timeline.by_completion[-_MAX_COMMITS_READ:]
    commits = readable_commits(snapshot, newest)
    points = []
    for instant in newest:
        commit = commits.get(instant.requested_at)
        record = parse_freshness_record(commit[1].extra) if commit is not None else None
        # Other writers copy the extra metadata of older commits, and with it their record.
        if record is not None and record.at == instant.requested_at:
            at = {"instant": instant.requested_at, "at_ms": time_ms(instant.completed_at)}
            points.append({**at, **_views(record)})
    return points


def _views(record: FreshnessRecord) -> Document:
    views = record.watermarks.views(record.lateness_ms)
    return {
        "snapshot_watermark": views.snapshot.watermark,
        "read_optimized_watermark": views.read_optimized.watermark,
        "snapshot_completion": views.snapshot.completion,
        "snapshot_freshness": views.snapshot.freshness,
        "read_optimized_completion": views.read_optimized.completion,
        "read_optimized_freshness": views.read_optimized.freshness,
    }


def plans_document(
    snapshot: Snapshot, heartbeats: Mapping[str, int], settings: HeartbeatSettings, now_ms: int
) -> Document:
    """The pending instants with their heartbeats, and the newest rollbacks with their reasons."""
    time_ms = times_of(snapshot)
    rollbacks = readable_rollbacks(snapshot)
    pending_rollbacks = {
        rollback.target.requested_at: rollback
        for rollback in rollbacks
        if not rollback.instant.is_completed
    }
    with suppress(CorruptError, UnsupportedError):
        superseded = superseded_plans(snapshot)
        return {
            "pending": [
                {
                    **instant_document(instant),
                    "requested_ms": time_ms(instant.requested_at),
                    "heartbeat": _heartbeat(heartbeats.get(instant.requested_at), settings, now_ms),
                    **_plan_summary(snapshot, instant),
                    "stopping": _rollback_cause(pending_rollbacks.get(instant.requested_at)),
                    "void": superseded.get(instant.requested_at),
                }
                for instant in snapshot.timeline.pending()
            ],
            "expires_after_ms": settings.expires_after_ms,
            "rollbacks": [
                _rollback_document(rollback, time_ms)
                for rollback in rollbacks[-_MAX_ROLLBACKS:][::-1]
            ],
        }
    raise CorruptError("the file of a pending plan cannot be read")


def _heartbeat(
    modified_ms: int | None, settings: HeartbeatSettings, now_ms: int
) -> Document | None:
    if modified_ms is None:
        return None
    live = not is_expired(modified_ms, settings, now_ms)
    return {"beat_ms": modified_ms, "age_ms": max(0, now_ms - modified_ms), "alive": live}


def _plan_summary(snapshot: Snapshot, instant: Instant) -> Document:
    if not instant.action.is_rewrite:
        return {"is_plan": False, "cancellable": False}
    plan: CompactionPlan | ClusteringPlan | None = snapshot.plan_of(
        instant.requested_at, instant.action
    )
    if plan is None:
        return {"is_plan": True, "cancellable": False}
    return {
        "is_plan": True,
        "cancellable": plan.cancellable,
        "groups": len(plan.file_groups),
        "partitions": len(plan.partitions),
    }


def _rollback_cause(rollback: RollbackInfo | None) -> str | None:
    if rollback is None:
        return None
    by, reason = rollback.caused_by or "another process", rollback.reason
    return f"{by}: {reason}" if reason else by


def _rollback_document(rollback: RollbackInfo, time_ms: TimeMs) -> Document:
    fields = asdict(rollback)
    return {
        **fields,
        "at_ms": time_ms(rollback.instant.completed_at or rollback.instant.requested_at),
        "target": asdict(rollback.target),
    }


def properties_document(properties: Mapping[str, str]) -> list[Document]:
    """The table properties, sorted by key."""
    by_key = sorted(properties.items())
    return [{"key": key, "value": value[:_MAX_TEXT]} for key, value in by_key]
