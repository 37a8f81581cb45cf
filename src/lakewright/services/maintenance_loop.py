"""The maintenance loop: runs table services in rounds, concurrently with the table's writers.

A round first executes the pending plans, whichever process has scheduled them, and then runs each
service. After a transient error (a conflict, or storage that does not answer) a service backs off
and is run again; any other error removes the service from the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from lakewright.clock import Clock
from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.model.instant import Instant
from lakewright.model.plans import Skip
from lakewright.services.planning import superseded_plans
from lakewright.services.registry import service_by_name
from lakewright.services.runner import ServiceRunner, parse_plan, read_plan_bytes
from lakewright.table.plan_execution import PlanInProgressError
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.write.writer import Commit

# How long a pause takes to notice a request to stop.
_STOP_POLL_S = 0.5
_MAX_SKIPPED_ROUNDS = 15


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """What a service did in a round, why it did nothing, or why it failed."""

    service: str
    outcome: Commit | Skip | LakewrightError

    @property
    def error(self) -> LakewrightError | None:
        """Why the service failed; None if it did not."""
        return self.outcome if isinstance(self.outcome, LakewrightError) else None

    @property
    def is_final(self) -> bool:
        """Whether the service failed with an error that is not transient."""
        transient = (ConflictError, UnavailableError)
        return self.error is not None and not isinstance(self.error, transient)


@dataclass(frozen=True, slots=True)
class MaintenanceRound:
    """All steps of one round, in order; rounds are counted from 1."""

    number: int
    steps: tuple[ServiceOutcome, ...] = ()

    @property
    def errors(self) -> tuple[LakewrightError, ...]:
        """The errors of all steps."""
        return tuple(step.error for step in self.steps if step.error is not None)


def run_continuously(
    runner: ServiceRunner,
    names: Sequence[str],
    *,
    interval_s: float,
    clock: Clock,
    stop: Callable[[], bool],
    report: Callable[[MaintenanceRound], None],
) -> None:
    """Run services in rounds, `interval_s` apart, until `stop` returns True between two steps.

    A conflict, or storage that does not answer, is reported; the service skips some rounds, twice
    as many after each failure, and is run again. A service with any other error is reported and
    not run any more.

    Raises:
        LakewrightError: the last service that was left in the loop has failed for good.
    """
    if interval_s <= 0:
        raise InvalidError("the pause between two rounds must be above 0", seconds=interval_s)
    if not names:
        raise InvalidError("no service to run was named")
    backoff = _Backoff([service_by_name(name).name for name in names])
    number = 0
    while not stop():
        number += 1
        skipped = backoff.count_down()
        steps = (*skipped, *run_round(runner, backoff.active(), stop))
        if steps:
            report(MaintenanceRound(number, steps))
        backoff.record(steps)
        pause(interval_s, clock, stop)


def run_round(
    runner: ServiceRunner, names: Sequence[str], stop: Callable[[], bool] = lambda: False
) -> Iterator[ServiceOutcome]:
    """Execute the pending plans of some services, then run each; errors are outcomes."""
    services = list(dict.fromkeys(service_by_name(name).name for name in names))
    failed: set[str] = set()
    try:
        for step in execute_plans(runner, services, stop):
            failed |= {step.service} if step.is_final else set()
            yield step
    except LakewrightError as error:
        yield from (ServiceOutcome(name, error) for name in services)
        return
    for name in services:
        if stop():
            return
        if name not in failed:
            yield _try_step(runner, name, partial(runner.run, name, triggered=True))


def execute_plans(
    runner: ServiceRunner, services: Sequence[str], stop: Callable[[], bool] = lambda: False
) -> Iterator[ServiceOutcome]:
    """Execute the pending plans of some services; errors of executions are outcomes.

    A service with an error that is not transient executes no further plan.
    """
    work = _PendingWork.load(runner, services)
    failed: set[str] = set()
    for instant in work.plans:
        if stop():
            return
        step = work.execute(instant, without=failed)
        if step is not None:
            failed |= {step.service} if step.is_final else set()
            yield step


def pause(seconds: float, clock: Clock, stop: Callable[[], bool]) -> None:
    """Sleep for some seconds, or until `stop` returns True."""
    deadline = clock.monotonic_ms() + round(seconds * 1000)
    while not stop() and (remaining_ms := deadline - clock.monotonic_ms()) > 0:
        clock.sleep(min(remaining_ms / 1000, _STOP_POLL_S))


@dataclass
class _Backoff:
    """Which services run in the next round.

    `names` are the services in the loop, `failures` how often each has failed in a row, `to_skip`
    how many rounds each has to skip yet.
    """

    names: list[str]
    failures: dict[str, int] = field(default_factory=dict)
    to_skip: dict[str, int] = field(default_factory=dict)

    def active(self) -> list[str]:
        """Return the services that run in this round."""
        return [name for name in self.names if name not in self.to_skip]

    def count_down(self) -> tuple[ServiceOutcome, ...]:
        """Count a round for the services that back off; returns those that skip it, as steps."""
        steps = []
        for name, rounds in list(self.to_skip.items()):
            if rounds:
                self.to_skip[name] = rounds - 1
                steps.append(
                    ServiceOutcome(name, Skip(f"backs off after {self.failures[name]} failures"))
                )
            else:
                del self.to_skip[name]
        return tuple(steps)

    def record(self, steps: Sequence[ServiceOutcome]) -> None:
        """Record which services failed; raises the error if that leaves no service in the loop."""
        for name in self.active():
            failed = [step for step in steps if step.service == name and step.error is not None]
            final = [step.error for step in failed if step.is_final]
            if final:
                self.names.remove(name)
            elif failed:
                self.failures[name] = self.failures.get(name, 0) + 1
                self.to_skip[name] = min(2 ** (self.failures[name] - 1) - 1, _MAX_SKIPPED_ROUNDS)
            else:
                self.failures.pop(name, None)
            if final and final[0] is not None and not self.names:
                raise final[0]


@dataclass(frozen=True)
class _PendingWork:
    """The pending plans at the start of a round.

    `live` are the instants with a live heartbeat. `superseded` are the plans that can never be
    executed, with the reason.
    """

    runner: ServiceRunner
    names: Sequence[str]
    snapshot: Snapshot
    live: frozenset[str]
    superseded: Mapping[str, str]

    @classmethod
    def load(cls, runner: ServiceRunner, names: Sequence[str]) -> _PendingWork:
        """Load the table and the heartbeats of its pending instants."""
        snapshot = load_snapshot(runner.storage)
        pending = {i.requested_at for i in snapshot.timeline.pending()}
        live = runner.writer.live_instants(pending)
        return cls(runner, names, snapshot, live, superseded_plans(snapshot))

    @property
    def plans(self) -> tuple[Instant, ...]:
        """The pending plans with the actions of these services."""
        actions = {action for name in self.names if (action := service_by_name(name).action)}
        return self.snapshot.timeline.pending(*actions) if actions else ()

    def execute(self, instant: Instant, without: Collection[str]) -> ServiceOutcome | None:
        """Execute a plan of one of the services; None if the plan is for another service."""
        by_action = [n for n in self.names if service_by_name(n).action == instant.action]
        try:
            name = self._owner(instant)
        except LakewrightError as error:
            return ServiceOutcome(by_action[0], error)
        if name is None or name not in self.names or name in without:
            return None
        if instant.requested_at in self.live:
            return ServiceOutcome(
                name, Skip(f"{instant.action} {instant.requested_at} is being executed")
            )
        if instant.requested_at in self.superseded:
            return ServiceOutcome(name, Skip(self.superseded[instant.requested_at]))
        return _try_step(self.runner, name, partial(self.runner.execute, instant.requested_at))

    def _owner(self, instant: Instant) -> str | None:
        """Return the name of the service of a plan; None if the plan no longer exists."""
        data = read_plan_bytes(self.snapshot, instant)
        return None if data is None else parse_plan(instant, data)[0].name


def _try_step(runner: ServiceRunner, name: str, do: Callable[[], Commit | Skip]) -> ServiceOutcome:
    try:
        return ServiceOutcome(name, _skip_if_rolled_back(runner, do))
    except LakewrightError as error:
        return ServiceOutcome(name, error)


def _skip_if_rolled_back(runner: ServiceRunner, do: Callable[[], Commit | Skip]) -> Commit | Skip:
    """Run or execute; Skip if another process executes the plan or has rolled it back since."""
    try:
        return do()
    except PlanInProgressError as error:
        return Skip(str(error))
    except (ConflictError, InvalidError) as error:
        at = error.facts.get("instant")
        existing = {instant.requested_at for instant in load_snapshot(runner.storage).timeline}
        if not isinstance(at, str) or at in existing:
            raise
        return Skip(f"the plan of {at} was rolled back concurrently")
