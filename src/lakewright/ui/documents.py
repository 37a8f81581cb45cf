"""What the panels show, as documents: the timeline, one instant, freshness, plans that wait."""

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
from lakewright.model.instant import Instant, epoch_ms
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

# Commits are read to tell what they did; older ones only if somebody asks for one of them.
_MOST_READ = 500
_MOST_ARCHIVED = 2000
_MOST_LISTED = 200
_MOST_TEXT = 2000
_MOST_ROLLBACKS = 20
_SCHEMA = "schema"


def times_of(snapshot: Snapshot) -> TimeMs:
    """What turns times of the timeline into milliseconds since 1970; None for what is no date."""
    zone = zone_of(snapshot.config.timeline_zone)

    def time_ms(text: str | None) -> int | None:
        if not text:
            return None
        try:
            return epoch_ms(text, zone)
        except InvalidError:
            return None

    return time_ms


def cut(document: Document, most: int = _MOST_LISTED) -> Document:
    """A document without what is too much to show: of long lists the beginning, and how many."""
    found: Document = {}
    for name, value in document.items():
        if isinstance(value, list | tuple) and len(value) > most:
            found |= {name: list(value[:most]), f"{name}_total": len(value)}
        elif isinstance(value, dict):
            found[name] = cut(value, most)
        else:
            found[name] = value
    return found


def readable_commits(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> dict[str, tuple[Instant, CommitMetadata]]:
    """What completed writes did, by requested time; broken ones are left out."""
    wanted = list(instants)
    try:
        return {
            i.requested_at: (i, commit)
            for i, commit in zip(wanted, snapshot.commits(wanted), strict=True)
        }
    except (CorruptError, UnsupportedError):
        if len(wanted) < 2:
            return {}
        middle = len(wanted) // 2
        halves = (wanted[:middle], wanted[middle:])
        return {
            at: found for half in halves for at, found in readable_commits(snapshot, half).items()
        }


def readable_rollbacks(snapshot: Snapshot) -> tuple[RollbackInfo, ...]:
    """The rollbacks, unless the file of one is broken."""
    with suppress(CorruptError, UnsupportedError):
        return load_rollbacks(snapshot)
    return ()


def timeline_document(snapshot: Snapshot, *, archived: bool) -> Document:
    """What has happened, oldest first, with what the names of instants do not tell."""
    time_ms = times_of(snapshot)
    newest = snapshot.timeline.completed_writes[-_MOST_READ:]
    commits = readable_commits(snapshot, newest)
    told = {each.instant.requested_at: str(each) for each in readable_rollbacks(snapshot)}
    plans = snapshot.timeline.plans
    history = snapshot.archived if archived else ()
    shown = [*history[-_MOST_ARCHIVED:], *snapshot.timeline]
    active = set(snapshot.timeline)
    return {
        "instants": [
            {
                **instant_document(each),
                "kind": plans.get(each.requested_at, each.action) if each.is_write else each.action,
                "requested_ms": time_ms(each.requested_at),
                "completed_ms": time_ms(each.completed_at),
                "archived": each not in active,
                **_brief(each, commits.get(each.requested_at)),
                "detail": told.get(each.requested_at) if each.action == "rollback" else None,
            }
            for each in shown
        ],
        "left_off": max(0, len(history) - _MOST_ARCHIVED),
    }


def _brief(instant: Instant, found: tuple[Instant, CommitMetadata] | None) -> Document:
    if found is None or found[0] != instant:
        return {}
    commit = commit_result(*found)
    rows = commit.inserted + commit.updated
    brief = {"operation": commit.operation, "rows": rows, "deleted": commit.deleted}
    return {**brief, "partitions": len(commit.partitions), "files": commit.files}


def instant_details(snapshot: Snapshot, at: str, action: str) -> Document | None:
    """All that is known of one instant; None if there is none."""
    known = [i for i in snapshot.timeline if i.requested_at == at]
    found = next((i for i in known if i.action == action), None)
    if found is None:
        found = next((i for i in snapshot.archived if i.requested_at == at), None)
    if found is None:
        return None
    time_ms = times_of(snapshot)
    planned = snapshot.timeline.plans.get(at) if found.is_write else None
    document: Document = {
        **instant_document(found),
        "kind": planned or found.action,
        "requested_ms": time_ms(found.requested_at),
        "completed_ms": time_ms(found.completed_at),
        "file": found.file_name,
    }
    document |= _result(snapshot, found)
    action = planned or found.action
    if action.is_rewrite:
        plan = snapshot.plan_of(at, action)
        document["plan"] = None if plan is None else cut(plan_document(plan))
        document["cancellable"] = plan is not None and plan.cancellable
    return document


def _result(snapshot: Snapshot, found: Instant) -> Document:
    """What a completed instant did."""
    if found.action == "rollback":
        told = [r for r in load_rollbacks(snapshot) if r.instant == found]
        return {"rollback": _rollback_document(told[0], times_of(snapshot)) if told else None}
    if found.is_write and found.is_completed:
        (commit,) = snapshot.commits([found])
        stats = commit.write_stats()
        extra = {key: text[:_MOST_TEXT] for key, text in commit.extra.items() if key != _SCHEMA}
        return {
            "commit": cut(commit_document(commit_result(found, commit))),
            "written_bytes": sum(s.file_size_in_bytes or s.total_write_bytes or 0 for s in stats),
            "extra": extra,
        }
    if found.action in METADATA_ONLY_RESULTS and found.is_completed:
        data = read_optional(snapshot.storage, snapshot.timeline_path(found))
        result = METADATA_ONLY_RESULTS[found.action].parse(data) if data else None
        if result is not None:
            paths = {"files_deleted": result.files_deleted, "partitions": sorted(result.partitions)}
            return {"clean": cut(paths)}
    return {}


def freshness_history(snapshot: Snapshot) -> list[Document]:
    """What commits keep of completion and freshness, in the order in which they completed."""
    time_ms = times_of(snapshot)
    newest = snapshot.timeline.by_completion[-_MOST_READ:]
    found = readable_commits(snapshot, newest)
    points = []
    for instant in newest:
        commit = found.get(instant.requested_at)
        stored = parse_freshness_record(commit[1].extra) if commit is not None else None
        # Other writers copy what older commits keep.
        if stored is not None and stored.at == instant.requested_at:
            at = {"instant": instant.requested_at, "at_ms": time_ms(instant.completed_at)}
            points.append({**at, **_views(stored)})
    return points


def _views(stored: FreshnessRecord) -> Document:
    views = stored.watermarks.views
    return {
        "snapshot_completion": views.snapshot.completion,
        "snapshot_freshness": views.snapshot.freshness,
        "read_optimized_completion": views.read_optimized.completion,
        "read_optimized_freshness": views.read_optimized.freshness,
    }


def plans_document(
    snapshot: Snapshot, beats: Mapping[str, int], settings: HeartbeatSettings, now_ms: int
) -> Document:
    """What is pending, with its heartbeat; and what was taken back, and why."""
    time_ms = times_of(snapshot)
    rollbacks = readable_rollbacks(snapshot)
    going = {each.target.requested_at: each for each in rollbacks if not each.instant.is_completed}
    with suppress(CorruptError, UnsupportedError):
        void = superseded_plans(snapshot)
        return {
            "pending": [
                {
                    **instant_document(each),
                    "requested_ms": time_ms(each.requested_at),
                    "heartbeat": _heartbeat(beats.get(each.requested_at), settings, now_ms),
                    **_plan_brief(snapshot, each),
                    "stopping": _why(going.get(each.requested_at)),
                    "void": void.get(each.requested_at),
                }
                for each in snapshot.timeline.pending()
            ],
            "expires_after_ms": settings.expires_after_ms,
            "rollbacks": [
                _rollback_document(each, time_ms) for each in rollbacks[-_MOST_ROLLBACKS:][::-1]
            ],
        }
    raise CorruptError("the file of a pending plan cannot be read")


def _heartbeat(
    modified_ms: int | None, settings: HeartbeatSettings, now_ms: int
) -> Document | None:
    if modified_ms is None:
        return None
    alive = not is_expired(modified_ms, settings, now_ms)
    return {"beat_ms": modified_ms, "age_ms": max(0, now_ms - modified_ms), "alive": alive}


def _plan_brief(snapshot: Snapshot, instant: Instant) -> Document:
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


def _why(rollback: RollbackInfo | None) -> str | None:
    if rollback is None:
        return None
    by, reason = rollback.caused_by or "somebody", rollback.reason
    return f"{by}: {reason}" if reason else by


def _rollback_document(rollback: RollbackInfo, time_ms: TimeMs) -> Document:
    told = asdict(rollback)
    return {
        **told,
        "at_ms": time_ms(rollback.instant.completed_at or rollback.instant.requested_at),
        "target": asdict(rollback.target),
    }


def properties_document(properties: Mapping[str, str]) -> list[Document]:
    """The table's properties, in order."""
    shown = sorted(properties.items())
    return [{"key": key, "value": value[:_MOST_TEXT]} for key, value in shown]
