"""Values as documents, which `printing.py` shows as text or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from inspect import getdoc
from typing import Any

from lakewright.errors import LakewrightError
from lakewright.model.instant import Instant
from lakewright.model.plans import (
    EVENT_TIME_THRESHOLD,
    WIDENED,
    CleanPlan,
    ClusteringPlan,
    CompactionPlan,
    Skip,
)
from lakewright.services.base import AnyTableService
from lakewright.services.compaction_debt import CompactionDebt
from lakewright.services.ttl.planner import TtlDecision, TtlPlan
from lakewright.write.writer import Commit

Document = dict[str, Any]


def plan_document(plan: Any) -> Document:
    """A plan of any service, or why there is none; with the reason for each partition left."""
    match plan:
        case Skip():
            return {"planned": False, "reason": plan.reason}
        case CompactionPlan() | ClusteringPlan():
            return {
                "planned": True,
                **_event_time_document(plan),
                "operations": [_operation_document(each) for each in plan.operations],
                "missing": _missing(plan.missing_partitions, plan.missing_reasons),
            }
        case CleanPlan():
            kept = plan.earliest_to_retain
            return {
                "planned": True,
                "policy": plan.policy,
                "retained_from": kept.requested_at if kept is not None else None,
                "operations": [
                    {"partition": partition, "file": file.path.rpartition("/")[2]}
                    for partition, files in plan.files.items()
                    for file in files
                ],
                "deleted_partitions": [{"partition": path} for path in plan.deleted_partitions],
            }
        case TtlPlan():
            return {
                "planned": True,
                "operations": [decision_document(each) for each in plan.operations],
                "records": [decision_document(each) for each in plan.records],
                "missing": _missing(plan.missing_partitions, plan.missing_reasons),
            }
    instants = getattr(plan, "instants", ())
    return {"planned": True, "instants": [instant_document(each) for each in instants]}


def _event_time_document(plan: CompactionPlan | ClusteringPlan) -> Document:
    """Up to when a plan goes, and where it stands for that; nothing for other plans."""
    if EVENT_TIME_THRESHOLD not in plan.extra:
        return {}
    return {
        "threshold": plan.extra[EVENT_TIME_THRESHOLD],
        "stands_at": next((o.next_base_instant for o in plan.operations), None),
        "widened": plan.extra.get(WIDENED),
    }


def decision_document(verdict: TtlDecision) -> Document:
    """What becomes of a partition, and why."""
    policy = verdict.policy
    told = f"{policy.spec}: {policy.value} {policy.units}" if policy is not None else None
    return {
        "partition": verdict.partition,
        "policy": told,
        "reference": verdict.reference,
        "source": verdict.source,
        "expires_at": verdict.expires_at,
        "expired": verdict.expired,
        "blocked_by": verdict.blocked_by,
        "files_gone_at": verdict.files_gone_at,
        "rows_before": verdict.rows_before,
    }


def _operation_document(operation: Any) -> Document:
    return {
        "partition": operation.partition,
        "file_id": operation.file_id,
        "base_file": operation.base_file,
        "logs": list(operation.logs),
    }


def _missing(partitions: Sequence[str] | None, reasons: Mapping[str, str]) -> list[Document] | None:
    if partitions is None:
        return None
    return [{"partition": path, "reason": reasons.get(path)} for path in partitions]


def commit_document(commit: Commit) -> Document:
    """A completed write or service, with those that followed it."""
    fields = {each.name: getattr(commit, each.name) for each in dataclasses.fields(commit)}
    return {**fields, "services": [outcome_document(each) for each in commit.services]}


def outcome_document(outcome: Commit | Skip | LakewrightError) -> Document:
    """How a service ended: in a word, in a sentence, and in full."""
    match outcome:
        case Commit():
            more = f", and {len(outcome.services)} more" * bool(outcome.services)
            told = f"{outcome.operation} {outcome.instant}: {outcome.files} files{more}"
            return {"result": "done", "detail": told, "commit": commit_document(outcome)}
        case Skip():
            return {"result": "skipped", "detail": outcome.reason}
        case error:
            return {"result": "failed", "detail": str(error), "error": error_document(error)}


def instant_document(instant: Instant) -> Document:
    """An instant of the timeline."""
    return dataclasses.asdict(instant)


def debt_document(debt: CompactionDebt) -> Document:
    """What a table owes, all in all and by partition."""
    return {
        "log_files": debt.log_files,
        "log_bytes": debt.log_bytes,
        "oldest": debt.oldest,
        "partitions": [dataclasses.asdict(each) for each in debt.partitions],
    }


def service_document(service: AnyTableService) -> Document:
    """A service: what it is called, what it does, which options it reads."""
    does = (getdoc(type(service)) or "").partition("\n")[0]
    return {
        "name": service.name,
        "action": service.action or None,
        "does": does,
        "options": sorted(service.keys),
    }


def error_document(error: LakewrightError) -> Document:
    """An error, with its facts."""
    return {"kind": type(error).__name__, "message": error.message, "facts": dict(error.facts)}
