"""Inline table services: those that a writer runs after each commit, by default as in Hudi.

The write is complete before the first service starts. A service that is not due makes no request
to storage: its trigger is checked against the timeline that the writer loaded last.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from lakewright.errors import ConflictError, InvalidError, LakewrightError, after_commit
from lakewright.model.instant import REWRITES, Action
from lakewright.model.plans import CANCELLABLE, Skip
from lakewright.model.table_config import TableConfig, TableType
from lakewright.options import option, option_keys, parse_bool, settings_from
from lakewright.services.base import AnyTableService
from lakewright.services.compaction.options import TRIGGER, CompactionTrigger
from lakewright.services.planning import superseded_plans
from lakewright.services.registry import service_by_name
from lakewright.services.runner import ServiceRunner, not_due, record_outcome
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.commit_hooks import is_ttl_triggered, ttl_settings_or_off
from lakewright.write.writer import Commit

_TTL = "ttl"


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineSettings:
    """Which services run after a write."""

    compaction: bool | None = option(
        "hoodie.compact.inline",
        None,
        parse=parse_bool,
        doc="Whether a write to a merge-on-read table is followed by a compaction, if one is due. "
        "Unset: yes, unless compactions are only scheduled.",
    )
    schedule_compaction: bool = option(
        "hoodie.compact.schedule.inline",
        False,
        parse=parse_bool,
        doc="Whether a write schedules a compaction, if one is due, for others to execute.",
    )
    log_compaction: bool = option(
        "hoodie.log.compaction.inline",
        False,
        parse=parse_bool,
        doc="Whether a write is followed by a log compaction, if one is due.",
    )
    clustering: bool = option(
        "hoodie.clustering.inline",
        False,
        parse=parse_bool,
        aliases=("hoodie.datasource.clustering.inline.enable",),
        doc="Whether a write is followed by a clustering, if one is due.",
    )
    schedule_clustering: bool = option(
        "hoodie.clustering.schedule.inline",
        False,
        parse=parse_bool,
        doc="Whether a write schedules a clustering, if one is due, for others to execute.",
    )
    clean: bool = option(
        "hoodie.clean.automatic",
        True,
        parse=parse_bool,
        doc="Whether a write is followed by a clean, if one is due.",
    )
    archive: bool = option(
        "hoodie.archive.automatic",
        True,
        parse=parse_bool,
        doc="Whether a write is followed by archiving, if that is due.",
    )
    must_succeed: bool | None = option(
        "hoodie.fail.writes.on.inline.table.service.exception",
        None,
        parse=parse_bool,
        doc="Whether the failure of a service after a write is an error, though the write itself "
        "has completed; else it is a warning. Unset: yes, except for TTL.",
    )

    def is_error(self, name: str) -> bool:
        """Whether the failure of a service after a write is an error."""
        return name != _TTL if self.must_succeed is None else self.must_succeed

    def steps(
        self, config: TableConfig, *, ttl: bool = False, beside: Collection[str] = ()
    ) -> Iterator[tuple[str, bool]]:
        """Yield the services to run on this table, in order, and whether they are only scheduled.

        TTL precedes the clean, which deletes the file groups that TTL has replaced. Those `beside`
        the write run in a thread of the writer, which executes what is scheduled here.
        """
        if config.table_type is TableType.MERGE_ON_READ:
            yield from self._compactions(beside)
        if "clustering" in beside:
            yield "clustering", True
        elif self.clustering or self.schedule_clustering:
            yield "clustering", not self.clustering
        if ttl:
            yield _TTL, False
        if self.clean and "clean" not in beside:
            yield "clean", False
        if self.archive and "archive" not in beside:
            yield "archive", False

    def _compactions(self, beside: Collection[str]) -> Iterator[tuple[str, bool]]:
        inline = self.compaction
        if "compaction" in beside:
            yield "compaction", True
        elif inline or (inline is None and not self.schedule_compaction):
            yield "compaction", False
        elif self.schedule_compaction:
            yield "compaction", True
        if self.log_compaction:
            yield "logcompaction", False


INLINE_KEYS = option_keys(InlineSettings)


def run_inline(
    runner: ServiceRunner, snapshot: Snapshot, beside: Collection[str] = ()
) -> tuple[Commit | Skip, ...]:
    """Run the services that follow a write; `snapshot` is the table after the commit.

    A plan whose execution fails prevents neither the execution nor the scheduling of others. Of the
    services `beside` the write, those that rewrite file groups are scheduled.
    """
    settings = settings_from(InlineSettings, runner.options)
    # A compaction by event time has no trigger unless one is set: it would plan after every write.
    runner = replace(runner, options={TRIGGER: CompactionTrigger.NUM_COMMITS, **runner.options})
    results: list[Commit | Skip] = []
    instant = snapshot.timeline.by_completion[-1].requested_at
    ttl_is_due = _ttl_is_due(snapshot, runner.options)
    # The writer must not be refused rows that its own clustering is about to move.
    preemptible = replace(runner, options={**runner.options, CANCELLABLE: "true"})
    steps = deque(settings.steps(snapshot.config, ttl=ttl_is_due, beside=beside))
    while steps:
        name, only_scheduled = steps.popleft()
        attempts = _ServiceAttempts(name)
        scheduler = preemptible if name == "clustering" and name in beside else runner
        snapshot = _run_step(scheduler, name, snapshot, attempts, only_scheduled=only_scheduled)
        results += attempts.outcomes
        if attempts.errors and settings.is_error(name):
            error = attempts.errors[0]
            raise after_commit(error, instant, f"the {name} after it") from error
        for error in attempts.errors:
            warnings.warn(f"{name} after a write failed: {error}", RuntimeWarning, stacklevel=3)
    return tuple(results)


def _ttl_is_due(after: Snapshot, options: Mapping[str, str]) -> bool:
    """Whether the commit has triggered TTL; TTL by Hudi's options runs after every commit."""
    settings = ttl_settings_or_off(after.config, options)
    if settings.hudi_inline and settings.hudi_days > 0:
        return True
    if not settings.enabled or not settings.run_inline:
        return False
    newest = after.timeline.by_completion[-1]
    return is_ttl_triggered(after.commits([newest])[0], newest.requested_at)


@dataclass
class _ServiceAttempts:
    """The outcomes of all that one service did after a write, and the errors among them."""

    name: str
    outcomes: list[Commit | Skip] = field(default_factory=list)
    errors: list[LakewrightError] = field(default_factory=list)

    def attempt(self, do: Callable[[], Commit | Skip | None]) -> None:
        """Call a function and record its outcome, if it returns one, or its error."""
        try:
            outcome = do()
        except ConflictError as error:
            # Another process is doing the same, so nothing is left to do here.
            self.outcomes.append(Skip(f"{self.name}: {error}"))
        except LakewrightError as error:
            self.outcomes.append(Skip(f"{self.name}: {error}"))
            self.errors.append(error)
        else:
            self.outcomes += [] if outcome is None else [outcome]


def _run_step(
    runner: ServiceRunner,
    name: str,
    after: Snapshot,
    attempts: _ServiceAttempts,
    *,
    only_scheduled: bool,
) -> Snapshot:
    """Run one service; returns the table after it, or `after` if it has committed nothing."""
    service = service_by_name(name)
    unfinished = after.timeline.pending(*REWRITES) or after.timeline.aborted
    if service.has_pre_plan and unfinished:
        attempts.attempt(lambda: runner.pre_plan(service, after))
    action = service.action
    if not only_scheduled and action:
        # Plans that another process has scheduled, or whose execution crashed, come first.
        attempts.attempt(lambda: _execute_pending(runner, action, after, attempts))
    attempts.attempt(lambda: _plan_next(runner, service, after, only_scheduled=only_scheduled))
    snapshots = [after]
    if any(isinstance(outcome, Commit) for outcome in attempts.outcomes):
        attempts.attempt(lambda: snapshots.append(load_snapshot(runner.storage)))
    return snapshots[-1]


def _execute_pending(
    runner: ServiceRunner, action: Action, after: Snapshot, attempts: _ServiceAttempts
) -> None:
    superseded = superseded_plans(after)
    for instant in after.timeline.pending(action):
        at = instant.requested_at
        if at in superseded:
            attempts.outcomes.append(Skip(superseded[at]))
        else:
            attempts.attempt(partial(_execute_if_pending, runner, at))


def _execute_if_pending(runner: ServiceRunner, at: str) -> Commit | Skip:
    """Execute a plan; Skip if it was cancelled since the timeline was loaded."""
    try:
        return runner.execute(at)
    except InvalidError as error:
        pending = load_snapshot(runner.storage).timeline.pending(*REWRITES)
        if any(instant.requested_at == at for instant in pending):
            raise
        return Skip(f"{at} is no longer pending: {error}")


def _plan_next(
    runner: ServiceRunner, service: AnyTableService, after: Snapshot, *, only_scheduled: bool
) -> Commit | Skip:
    skip = service.check_trigger(runner.planning_context(after))
    if skip is not None:
        return record_outcome(runner.meter, service.name, not_due(skip))
    if not only_scheduled:
        return runner.run(service.name, triggered=True, skip_pre_plan=True)
    scheduled = runner.schedule(service.name, triggered=True)
    # Another process executes what is only scheduled here, or a thread of this one.
    runner.heartbeats.stop_all()
    return scheduled if isinstance(scheduled, Skip) else Skip(f"scheduled as {scheduled}")
