"""TTL as a service: it judges the partitions, and takes the expired out by an ordinary write."""

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
)
from lakewright.options import settings_from
from lakewright.services.base import ExecutionContext, PlanningContext, TableService
from lakewright.services.cleaning.options import CleaningSettings, CleanPolicy
from lakewright.services.cleaning.planner import load_protected_files
from lakewright.services.ttl.partition_age import (
    evaluate_partitions,
    partitions_in_pending_plans,
    partitions_with_rows,
    writes_rows,
)
from lakewright.services.ttl.planner import TtlDecision, TtlPlan, plan_ttl
from lakewright.services.ttl.record_ttl import RecordTtl
from lakewright.storage.base import Storage
from lakewright.table.snapshot import Snapshot
from lakewright.table.time_generator import format_epoch_ms
from lakewright.table.transaction import TransactionManager
from lakewright.utils.concurrent import many_values
from lakewright.write.task import Operation
from lakewright.write.writer import Commit, EmptyRows, RowSource, WriteRequest, execute_write

# In the folder for what helps readers and writers, which real ones pass over file by file.
_PROBE = ".hoodie/.aux/lakewright_clock"
_MOST_AHEAD_MS = 3_600_000


def check_clock_skew(storage: Storage, clock: Clock) -> None:
    """UnavailableError if this machine's clock is an hour ahead of that of a storage with its own.

    On a disk of this machine nothing can be told.
    """
    if not storage.has_own_clock:
        return
    storage.replace(_PROBE, b"")
    try:
        found = storage.status(_PROBE)
    finally:
        storage.delete(_PROBE)
    ahead = clock.now_ms() - found.modified_ms if found is not None else 0
    if ahead > _MOST_AHEAD_MS:
        raise UnavailableError(
            "the clock of this machine is ahead of the storage's: nothing was taken out; set it "
            "right and run TTL again",
            ahead_minutes=ahead // 60_000,
        )


# ------------------------------------------------------------------------------------------------
# A clock that is ahead would take out what is young: it is compared with the storage's own.


# Which policies have taken partitions out, kept in the commit that did it.
POLICIES_KEY = "lakewright.ttl.policies"
_HOUR_MS = 3_600_000


class PartitionTtl(TableService[TtlPlan, Commit | Skip]):
    """Takes partitions out of the table that nobody has written to for longer than a policy says.

    They go by one DELETE_PARTITION: conflicts with other writers are found as for every write, and
    older states of the table stay readable until a clean deletes the files.
    """

    name: ClassVar[str] = "ttl"
    action: ClassVar[Action | None] = None
    writes: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = TTL_KEYS

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why nothing can be due, by the settings and the timeline alone."""
        snapshot = sight.snapshot
        if not snapshot.config.partition_fields:
            return Skip("the table has no partitions")
        settings = settings_of(sight)
        if not active_policies(settings):
            return Skip(_why_no_rules(settings))
        if not snapshot.timeline.completed_writes:
            return Skip("nothing was written yet")
        return None

    def runs_after(self, name: str, sight: PlanningContext) -> bool:
        """Cleans, where it is on and does not follow writes."""
        settings = settings_of(sight)
        return name == "clean" and bool(settings.enabled) and not settings.run_inline

    def plan(self, sight: PlanningContext) -> TtlPlan | Skip:
        """The expired partitions that nobody holds, oldest first; or why none goes."""
        early = self.check_trigger(sight)
        if early is not None:
            return early
        seen = frozenset(i.requested_at for i in sight.snapshot.timeline.completed_writes)
        return plan_ttl(explain(sight), settings_of(sight), seen)

    def execute(self, job: ExecutionContext, plan: TtlPlan) -> Commit | Skip:
        """Delete what is planned, unless a partition of it was written to or taken up since."""
        if not plan.records:
            return self._delete_partitions(job, plan)
        if not plan.operations:
            return self._delete_rows(job, plan)
        done = self._delete_partitions(job, plan)
        # These are seen on the table as it was before, and found out by what the validator checks.
        return replace(done, services=(self._delete_rows(job, plan),))

    def _delete_partitions(self, job: ExecutionContext, plan: TtlPlan) -> Commit:
        request = WriteRequest(
            Operation.DELETE_PARTITION,
            extra=_extra(plan.operations),
            patterns=plan.partitions,
            exact=True,
        )
        return _written(job, plan, plan.partitions, request, EmptyRows())

    def _delete_rows(self, job: ExecutionContext, plan: TtlPlan) -> Commit | Skip:
        aging = RecordTtl.for_table(job)
        found = aging.counts(job, plan.records)
        if not found:
            return Skip("no row is older than a policy allows")
        chosen = dict(found[: plan.settings.most_partitions])
        verdicts = [v for v in plan.records if v.partition in chosen]
        request = WriteRequest(
            Operation.DELETE, extra=_extra(verdicts), ordered_deletes=aging.is_ordered
        )
        return _written(job, plan, tuple(chosen), request, aging.rows(job, verdicts))


def _extra(verdicts: Iterable[TtlDecision]) -> dict[str, str]:
    policies = tuple(dict.fromkeys(v.policy for v in verdicts if v.policy is not None))
    return {SERVICE_KEY: PartitionTtl.name, POLICIES_KEY: format_policies(policies)}


def _written(
    job: ExecutionContext,
    plan: TtlPlan,
    partitions: Sequence[str],
    request: WriteRequest,
    rows: RowSource,
) -> Commit:
    check_clock_skew(job.writer.storage, job.clock)
    writer = TransactionManager.from_options(job.writer.storage, job.clock, job.options)
    validator = _StillExpired(plan, frozenset(partitions), job.options)
    request = replace(request, options=job.options, validator=validator)
    return execute_write(writer, request, rows, job.engine)[0]


@dataclass(frozen=True)
class _StillExpired:
    """Refuses to delete partitions whose evaluation has changed since the plan was made."""

    plan: TtlPlan
    partitions: frozenset[str]
    options: Mapping[str, str]

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError if a planned partition was written or planned by another process."""
        require_still_due(self.plan, self.partitions, current, self.options)


def settings_of(sight: PlanningContext) -> TtlSettings:
    """The settings of the table, with what options say otherwise."""
    return ttl_settings(sight.snapshot.config.properties, sight.options)


def explain(sight: PlanningContext) -> list[TtlDecision]:
    """The verdict on every partition that has rows, by path; reads and changes nothing else."""
    with many_values():
        return _explained(sight)


def _explained(sight: PlanningContext) -> list[TtlDecision]:
    snapshot, settings = sight.snapshot, settings_of(sight)
    now = parse_time(format_epoch_ms(sight.now_ms, zone_of(snapshot.config.timeline_zone)))
    lives = partitions_with_rows(snapshot)
    rules = active_policies(settings)
    verdicts = evaluate_partitions(snapshot, lives, rules, by=settings.conflict_rule, now=now)
    if not any(verdict.affects_partition for verdict in verdicts.values()):
        return list(verdicts.values())
    held, gone_at = partitions_in_pending_plans(snapshot), _files_gone_at(sight)
    saved = {partition for partition, _ in load_protected_files(snapshot).saved}
    return [
        replace(
            verdict,
            blocked_by=held.get(path) or lives[path].writer,
            files_gone_at="not while a savepoint holds them" if path in saved else gone_at,
        )
        if verdict.affects_partition
        else verdict
        for path, verdict in verdicts.items()
    ]


def require_still_due(
    plan: TtlPlan, planned: frozenset[str], now: Snapshot, options: Mapping[str, str]
) -> None:
    """ConflictError if what the plan says of partitions has changed: it must be made anew."""
    if ttl_settings(now.config.properties, options) != plan.settings:
        raise ConflictError("the settings of TTL were changed meanwhile")
    new = [i for i in now.timeline.completed_writes if i.requested_at not in plan.seen]
    for instant, commit in zip(new, now.commits(new), strict=True):
        written = _named(planned, commit.stats)
        if written and writes_rows(commit):
            raise ConflictError(
                "partitions were written to before they could be taken out",
                partitions=written,
                instant=instant.requested_at,
            )
    held = partitions_in_pending_plans(now)
    taken = _named(planned, held)
    if taken:
        raise ConflictError(
            "partitions were taken up by a service before they could be taken out",
            partitions=taken,
            by=held[taken[0]],
        )


def _named(planned: frozenset[str], partitions: Iterable[str]) -> list[str]:
    return sorted(planned.intersection(partitions))


def _why_no_rules(settings: TtlSettings) -> str:
    if settings.enabled:
        return "no policy was saved"
    if settings.policies:
        return "TTL is off: its policies are not in force"
    return "TTL is off, and there is no policy"


def _files_gone_at(sight: PlanningContext) -> str:
    """When a clean may delete the files of partitions that go now, as its settings say."""
    settings = settings_from(CleaningSettings, sight.options)
    if settings.policy is CleanPolicy.VERSIONS:
        return "with the next clean"
    if settings.policy is CleanPolicy.COMMITS:
        return f"with the clean after {settings.commits_retained} more commits"
    zone = zone_of(sight.snapshot.config.timeline_zone)
    at = format_epoch_ms(sight.now_ms + settings.hours_retained * _HOUR_MS, zone)
    return f"with the first clean after {at}"
