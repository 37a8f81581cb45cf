"""Convert results to documents (dicts), which `printing.py` prints as text or JSON."""

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
from lakewright.model.ttl import TtlSettings
from lakewright.services.base import AnyTableService
from lakewright.services.compaction_debt import CompactionDebt
from lakewright.services.ttl.planner import TtlDecision, TtlPlan
from lakewright.write.writer import Commit

Document = dict[str, Any]


def plan_document(plan: Any) -> Document:
    """Return the document of a plan of any service, or of the reason why there is none.

    Skipped partitions are listed with their reasons.
    """
    match plan:
        case Skip():
            return {"planned": False, "reason": plan.reason}
        case CompactionPlan() | ClusteringPlan():
            return {
                "planned": True,
                **_event_time_document(plan),
                "operations": [_operation_document(item) for item in plan.operations],
                "missing": _missing(plan.missing_partitions, plan.missing_reasons),
            }
        case CleanPlan():
            earliest = plan.earliest_to_retain
            return {
                "planned": True,
                "policy": plan.policy,
                "retained_from": earliest.requested_at if earliest is not None else None,
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
                "operations": [decision_document(item) for item in plan.operations],
                "records": [decision_document(item) for item in plan.records],
                "missing": _missing(plan.missing_partitions, plan.missing_reasons),
            }
    instants = getattr(plan, "instants", ())
    return {"planned": True, "instants": [instant_document(item) for item in instants]}


def _event_time_document(plan: CompactionPlan | ClusteringPlan) -> Document:
    """Return the event-time threshold of a plan and its position; empty for other plans."""
    if EVENT_TIME_THRESHOLD not in plan.extra:
        return {}
    return {
        "threshold": plan.extra[EVENT_TIME_THRESHOLD],
        "stands_at": next((o.next_base_instant for o in plan.operations), None),
        "widened": plan.extra.get(WIDENED),
    }


def decision_document(decision: TtlDecision) -> Document:
    """Return the document of a TTL decision on a partition."""
    policy = decision.policy
    policy_text = f"{policy.spec}: {policy.value} {policy.units}" if policy is not None else None
    return {
        "partition": decision.partition,
        "policy": policy_text,
        "reference": decision.reference,
        "source": decision.source,
        "expires_at": decision.expires_at,
        "expired": decision.expired,
        "blocked_by": decision.blocked_by,
        "files_gone_at": decision.files_deleted_at,
        "rows_before": decision.rows_before,
    }


def ttl_settings_document(settings: TtlSettings) -> Document:
    """Return the settings of a table's TTL, by the names that users set them with."""
    return {
        "enabled": bool(settings.enabled),
        "run_inline": settings.run_inline,
        "trigger_strategy": settings.trigger.value,
        "trigger_value": settings.trigger_value,
        "resolve_conflicts_by": settings.conflict_rule.value,
        "max_partitions_per_run": settings.most_partitions,
        **({"writers_zone": settings.writers_zone.key} if settings.writers_zone else {}),
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
    """Return the document of a completed write or service, with the services that followed it."""
    fields = {item.name: getattr(commit, item.name) for item in dataclasses.fields(commit)}
    return {
        **fields,
        "services": [outcome_document(item) for item in commit.services],
        "skipped": _missing(tuple(commit.skipped), commit.skipped),
    }


def outcome_document(outcome: Commit | Skip | LakewrightError) -> Document:
    """Return the document of the outcome of a service: a word, a sentence and the details."""
    match outcome:
        case Commit():
            more = f", and {len(outcome.services)} more" * bool(outcome.services)
            detail = f"{outcome.operation} {outcome.instant}: {outcome.files} files{more}"
            if outcome.skipped:
                count = len(outcome.skipped)
                detail += f", {count} partition{'s' * (count > 1)} skipped"
            return {"result": "done", "detail": detail, "commit": commit_document(outcome)}
        case Skip():
            skipped = _missing(tuple(outcome.skipped), outcome.skipped)
            document = {"result": "skipped", "detail": outcome.reason}
            return {**document, "skipped": skipped} if skipped else document
        case error:
            return {"result": "failed", "detail": str(error), "error": error_document(error)}


def instant_document(instant: Instant) -> Document:
    """Return the document of an instant."""
    return dataclasses.asdict(instant)


def debt_document(debt: CompactionDebt) -> Document:
    """Return the document of the compaction debt of a table, in total and by partition."""
    return {
        "log_files": debt.log_files,
        "log_bytes": debt.log_bytes,
        "oldest": debt.oldest,
        "partitions": [dataclasses.asdict(partition) for partition in debt.partitions],
    }


def service_document(service: AnyTableService) -> Document:
    """Return the document of a service: its name, action, description and options."""
    description = (getdoc(type(service)) or "").partition("\n")[0]
    return {
        "name": service.name,
        "action": service.action or None,
        "does": description,
        "options": sorted(service.keys),
    }


def error_document(error: LakewrightError) -> Document:
    """Return the document of an error with its facts."""
    return {"kind": type(error).__name__, "message": error.message, "facts": dict(error.facts)}
