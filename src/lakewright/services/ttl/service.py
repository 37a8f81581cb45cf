"""TTL as a table service: evaluates the partitions, and deletes expired ones by an ordinary write.

Before it deletes, it compares the clock of this machine with that of the storage: a clock that is
ahead would make young partitions expire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lakewright.clock import Clock, zone_of
from lakewright.errors import ConflictError, UnavailableError
from lakewright.model.instant import Action, parse_time
from lakewright.model.plans import SERVICE_KEY, Skip
from lakewright.model.ttl import (
    TTL_KEYS,
    TtlSettings,
    active_policies,
    format_policies,
    ttl_settings,
    ttl_zone,
)
from lakewright.options import settings_from
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.cleaning.planner import load_protected_files
from lakewright.services.ttl.partition_age import (
    dead_writers,
    evaluate_partitions,
    partitions_in_pending_plans,
    partitions_with_rows,
    writes_rows,
)
from lakewright.services.ttl.planner import TtlDecision, TtlPlan, beyond_limit, plan_ttl
from lakewright.services.ttl.record_ttl import RecordTtl
from lakewright.storage.base import Storage
from lakewright.table.heartbeat import storage_time_ms
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import Snapshot
from lakewright.table.time_generator import format_epoch_ms
from lakewright.table.transaction import TransactionManager
from lakewright.utils.concurrent import gc_paused
from lakewright.write.task import Operation
from lakewright.write.writer import Commit, EmptyRows, RowSource, WriteRequest, execute_write

_MAX_AHEAD_MS = 3_600_000


def check_clock_skew(storage: Storage, clock: Clock) -> None:
    """Raise UnavailableError if this machine's clock is over an hour ahead of the storage's.

    A storage that uses the clock of this machine, such as a local disk, is not checked.
    """
    if not storage.has_own_clock:
        return
    storage_ms = storage_time_ms(storage)
    ahead_ms = clock.now_ms() - storage_ms if storage_ms is not None else 0
    if ahead_ms > _MAX_AHEAD_MS:
        raise UnavailableError(
            "the clock of this machine is ahead of the storage's: nothing was deleted; set it "
            "right and run TTL again",
            ahead_minutes=ahead_ms // 60_000,
        )


# The key in the metadata of a TTL commit for the policies that it applied.
POLICIES_KEY = "lakewright.ttl.policies"
_HOUR_MS = 3_600_000


class PartitionTtl(TableService[TtlPlan, Commit | Skip]):
    """Deletes the partitions that have not been written to for longer than a policy allows.

    One DELETE_PARTITION write deletes them: conflicts with concurrent writers are detected as for
    every write, and older snapshots stay readable until a clean deletes the files. With policies of
    level RECORD, a DELETE write deletes old rows.
    """

    name: ClassVar[str] = "ttl"
    action: ClassVar[Action | None] = None
    writes: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = TTL_KEYS

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Why nothing can expire, judging by the settings and the timeline alone."""
        snapshot = context.snapshot
        if not snapshot.config.partition_fields:
            return Skip("the table has no partitions")
        settings = settings_of(context)
        if not active_policies(settings):
            return Skip(_why_no_policies(settings))
        if not snapshot.timeline.completed_writes:
            return Skip("nothing was written yet")
        return None

    def runs_after(self, name: str, context: PlanningContext) -> bool:
        """Whether TTL runs after a service: after cleans, if it is on and not run after writes."""
        settings = settings_of(context)
        return name == "clean" and bool(settings.enabled) and not settings.run_inline

    def plan(self, context: PlanningContext) -> TtlPlan | Skip:
        """The expired partitions that are not blocked, oldest first, or why there are none."""
        skip = self.check_trigger(context)
        if skip is not None:
            return skip
        writes = frozenset(i.requested_at for i in context.snapshot.timeline.completed_writes)
        return plan_ttl(explain(context), settings_of(context), writes)

    def execute(self, context: ExecutionContext, plan: TtlPlan) -> Commit | Skip:
        """Delete the planned partitions and rows.

        Raises:
            ConflictError: a planned partition was written to, or is in a pending plan, since the
                plan was made.
        """
        outcome = self._delete(context, plan)
        return replace(outcome, skipped={**plan.missing_reasons, **outcome.skipped})

    def _delete(self, context: ExecutionContext, plan: TtlPlan) -> Commit | Skip:
        if not plan.records:
            return self._delete_partitions(context, plan)
        if not plan.operations:
            return self._delete_rows(context, plan)
        commit = self._delete_partitions(context, plan)
        # Old rows are read from the snapshot before that commit; the validator detects others.
        rows = self._delete_rows(context, plan)
        return replace(commit, services=(rows,), skipped=rows.skipped)

    def _delete_partitions(self, context: ExecutionContext, plan: TtlPlan) -> Commit:
        request = WriteRequest(
            Operation.DELETE_PARTITION,
            extra=_extra(plan.operations),
            patterns=plan.partitions,
            exact=True,
        )
        return _execute(context, plan, plan.partitions, request, EmptyRows())

    def _delete_rows(self, context: ExecutionContext, plan: TtlPlan) -> Commit | Skip:
        record_ttl = RecordTtl.for_table(context)
        counts = record_ttl.counts(context, plan.records)
        if not counts:
            return Skip("no row is older than a policy allows")
        limit = plan.settings.most_partitions
        chosen = dict(counts[:limit])
        skipped = {partition: beyond_limit(limit) for partition, _ in counts[limit:]}
        decisions = [d for d in plan.records if d.partition in chosen]
        request = WriteRequest(
            Operation.DELETE,
            extra=_extra(decisions),
            ordered_deletes=record_ttl.is_ordered,
            partitions=frozenset(chosen),
        )
        rows = record_ttl.rows(context, decisions)
        return replace(_execute(context, plan, tuple(chosen), request, rows), skipped=skipped)


def _extra(decisions: Iterable[TtlDecision]) -> dict[str, str]:
    policies = tuple(dict.fromkeys(d.policy for d in decisions if d.policy is not None))
    return {SERVICE_KEY: PartitionTtl.name, POLICIES_KEY: format_policies(policies)}


def _execute(
    context: ExecutionContext,
    plan: TtlPlan,
    partitions: Sequence[str],
    request: WriteRequest,
    rows: RowSource,
) -> Commit:
    check_clock_skew(context.writer.storage, context.clock)
    writer = TransactionManager.from_options(context.writer.storage, context.clock, context.options)
    validator = _StillExpired(plan, frozenset(partitions), context.options)
    request = replace(request, options=context.options, validator=validator)
    return execute_write(writer, request, rows, context.engine)[0]


@dataclass(frozen=True)
class _StillExpired:
    """Rejects the commit if the decision on a planned partition may have changed."""

    plan: TtlPlan
    partitions: frozenset[str]
    options: Mapping[str, str]

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if a planned partition was written or planned by another process."""
        require_still_due(self.plan, self.partitions, current, self.options)


def settings_of(context: PlanningContext) -> TtlSettings:
    """The TTL settings of the table; options override them."""
    return ttl_settings(context.snapshot.config.properties, context.options)


def explain(context: PlanningContext) -> list[TtlDecision]:
    """The decision on every partition that has rows, by path; changes nothing."""
    with gc_paused():
        return _decisions(context)


def _decisions(context: PlanningContext) -> list[TtlDecision]:
    snapshot, settings = context.snapshot, settings_of(context)
    zone = ttl_zone(snapshot.config.timeline_zone, settings)
    now = parse_time(format_epoch_ms(context.now_ms, zone))
    dead = dead_writers(snapshot, settings_from(HeartbeatSettings, context.options), context.now_ms)
    activity = partitions_with_rows(snapshot, dead)
    policies = active_policies(settings)
    decisions = evaluate_partitions(
        snapshot, activity, policies, by=settings.conflict_rule, now=now
    )
    if not any(decision.affects_partition for decision in decisions.values()):
        return list(decisions.values())
    planned, deleted_at = partitions_in_pending_plans(snapshot), _files_deleted_at(context)
    saved = {partition for partition, _ in load_protected_files(snapshot).saved}
    return [
        replace(
            decision,
            blocked_by=planned.get(path) or activity[path].writer,
            files_deleted_at="not while a savepoint holds them" if path in saved else deleted_at,
        )
        if decision.affects_partition
        else decision
        for path, decision in decisions.items()
    ]


def require_still_due(
    plan: TtlPlan, planned: frozenset[str], current: Snapshot, options: Mapping[str, str]
) -> None:
    """Raise ConflictError if TTL must be planned again.

    That is if the settings have changed, or a planned partition was written to or is in a pending
    plan now.
    """
    if ttl_settings(current.config.properties, options) != plan.settings:
        raise ConflictError("the settings of TTL were changed concurrently")
    new = [
        i for i in current.timeline.completed_writes if i.requested_at not in plan.considered_writes
    ]
    for instant, commit in zip(new, current.commits(new), strict=True):
        written = _planned_among(planned, commit.stats)
        if written and writes_rows(commit):
            raise ConflictError(
                "partitions were written to before they could be deleted",
                partitions=written,
                instant=instant.requested_at,
            )
    pending_plans = partitions_in_pending_plans(current)
    blocked = _planned_among(planned, pending_plans)
    if blocked:
        raise ConflictError(
            "a service planned to rewrite partitions before they could be deleted",
            partitions=blocked,
            by=pending_plans[blocked[0]],
        )


def _planned_among(planned: frozenset[str], partitions: Iterable[str]) -> list[str]:
    return sorted(planned.intersection(partitions))


def _why_no_policies(settings: TtlSettings) -> str:
    if settings.enabled:
        return "no policy was saved"
    if settings.policies:
        return "TTL is off: its policies are not in force"
    return "TTL is off, and there is no policy"


def _files_deleted_at(context: PlanningContext) -> str:
    """When a clean may delete the files of partitions that are deleted now."""
    settings = settings_from(CleaningSettings, context.options)
    if settings.policy is CleanPolicy.VERSIONS:
        return "with the next clean"
    if settings.policy is CleanPolicy.COMMITS:
        return f"with the clean after {settings.commits_retained} more commits"
    zone = zone_of(context.snapshot.config.timeline_zone)
    at = format_epoch_ms(context.now_ms + settings.hours_retained * _HOUR_MS, zone)
    return f"with the first clean after {at}"
