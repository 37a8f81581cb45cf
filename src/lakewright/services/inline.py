"""The services that follow a write, in the same process: what Hudi's writers do unless told not to.

A service that is not due costs no call to storage: the timeline that the write has seen last tells.
The write is complete before the first of them begins.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.model.instant import REWRITES, Action
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableConfig, TableType
from lakewright.options import option, option_keys, parse_bool, settings_from
from lakewright.services.base import AnyTableService
from lakewright.services.compaction.options import TRIGGER, CompactionTrigger
from lakewright.services.metrics import not_due, record_outcome
from lakewright.services.planning import superseded_plans
from lakewright.services.registry import service_by_name
from lakewright.services.runner import ServiceRunner
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.commit_hooks import is_ttl_triggered, ttl_settings_or_off
from lakewright.write.writer import Commit

_TTL = "ttl"


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineSettings:
    """Which services follow a write."""

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
        "has completed; else it is a warning. Unset: yes, but not of TTL.",
    )

    def is_error(self, name: str) -> bool:
        """Whether a service that fails after a write is an error."""
        return name != _TTL if self.must_succeed is None else self.must_succeed

    def steps(self, config: TableConfig, *, ttl: bool = False) -> Iterator[tuple[str, bool]]:
        """The services of this table, in order; and whether they are only scheduled.

        What TTL takes out, the next clean deletes.
        """
        if config.table_type is TableType.MERGE_ON_READ:
            inline = self.compaction
            if inline or (inline is None and not self.schedule_compaction):
                yield "compaction", False
            elif self.schedule_compaction:
                yield "compaction", True
            if self.log_compaction:
                yield "logcompaction", False
        if self.clustering or self.schedule_clustering:
            yield "clustering", not self.clustering
        if ttl:
            yield _TTL, False
        if self.clean:
            yield "clean", False
        if self.archive:
            yield "archive", False


INLINE_KEYS = option_keys(InlineSettings)


def run_inline(runner: ServiceRunner, after: Snapshot) -> tuple[Commit | Skip, ...]:
    """Run what follows a write; `after` is the table as the write has left it.

    A plan that cannot be executed stops neither those after it nor the next one from being made.
    """
    settings = settings_from(InlineSettings, runner.options)
    # Strategies that need no trigger would be asked after every write.
    runner = replace(runner, options={TRIGGER: CompactionTrigger.NUM_COMMITS, **runner.options})
    results: list[Commit | Skip] = []
    steps = deque(settings.steps(after.config, ttl=_ttl_is_due(after, runner.options)))
    while steps:
        name, only_scheduled = steps.popleft()
        tries = _ServiceAttempts(name)
        after = _step(runner, name, after, tries, only_scheduled=only_scheduled)
        results += tries.done
        if tries.errors and settings.is_error(name):
            error = tries.errors[0]
            error.add_note("The write before it has completed, only this service has not.")
            raise error
        for error in tries.errors:
            warnings.warn(f"{name} after a write failed: {error}", RuntimeWarning, stacklevel=3)
    return tuple(results)


def _ttl_is_due(after: Snapshot, options: Mapping[str, str]) -> bool:
    """Whether TTL runs after a write, as the commit says itself; Hudi's own runs after each."""
    settings = ttl_settings_or_off(after.config, options)
    if settings.hudi_inline and settings.hudi_days > 0:
        return True
    if not settings.enabled or not settings.run_inline:
        return False
    newest = after.timeline.by_completion[-1]
    return is_ttl_triggered(after.commits([newest])[0], newest.requested_at)


@dataclass
class _ServiceAttempts:
    """What has become of the things that one service had to do."""

    name: str
    done: list[Commit | Skip] = field(default_factory=list)
    errors: list[LakewrightError] = field(default_factory=list)

    def attempt(self, do: Callable[[], Commit | Skip | None]) -> None:
        """Do one thing, which may have nothing to tell; a failure is noted."""
        try:
            found = do()
        except ConflictError as error:
            # Somebody else is at it, which is as good.
            self.done.append(Skip(f"{self.name}: {error}"))
        except LakewrightError as error:
            self.done.append(Skip(f"{self.name}: {error}"))
            self.errors.append(error)
        else:
            self.done += [] if found is None else [found]


def _step(
    runner: ServiceRunner,
    name: str,
    after: Snapshot,
    tries: _ServiceAttempts,
    *,
    only_scheduled: bool,
) -> Snapshot:
    """Run one service; gives the table as it was seen last."""
    service = service_by_name(name)
    if service.has_pre_plan and after.timeline.pending(*REWRITES):
        tries.attempt(lambda: runner.pre_plan(service, after))
    action = service.action
    if not only_scheduled and action:
        # What others have scheduled, or an attempt that died has left, comes first.
        tries.attempt(lambda: _execute_waiting(runner, action, after, tries))
    tries.attempt(lambda: _plan_next(runner, service, after, only_scheduled=only_scheduled))
    looked = [after]
    if any(isinstance(each, Commit) for each in tries.done):
        tries.attempt(lambda: looked.append(load_snapshot(runner.storage)))
    return looked[-1]


def _execute_waiting(
    runner: ServiceRunner, action: Action, after: Snapshot, tries: _ServiceAttempts
) -> None:
    void = superseded_plans(after)
    for instant in after.timeline.pending(action):
        at = instant.requested_at
        if at in void:
            tries.done.append(Skip(void[at]))
        else:
            tries.attempt(partial(_execute_if_there, runner, at))


def _execute_if_there(runner: ServiceRunner, at: str) -> Commit | Skip:
    """Execute a plan; one that was cancelled since it was seen is no failure of anybody."""
    try:
        return runner.execute(at)
    except InvalidError as error:
        pending = load_snapshot(runner.storage).timeline.pending(*REWRITES)
        if any(instant.requested_at == at for instant in pending):
            raise
        return Skip(f"{at} is gone: {error}")


def _plan_next(
    runner: ServiceRunner, service: AnyTableService, after: Snapshot, *, only_scheduled: bool
) -> Commit | Skip:
    early = service.check_trigger(runner.planning_context(after))
    if early is not None:
        return record_outcome(runner.meter, service.name, not_due(early))
    if not only_scheduled:
        return runner.run(service.name, prepared=True)
    scheduled = runner.schedule(service.name)
    return scheduled if isinstance(scheduled, Skip) else Skip(f"scheduled as {scheduled}")
