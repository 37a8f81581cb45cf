"""Services round after round, beside the writers of a table, until somebody says stop.

A round first executes the plans that wait on the timeline, whoever made them, and then runs each
service. What may pass by itself is tried again, less and less often; what will not pass by itself
takes its service out of the loop.
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

# A request to stop is noticed after this long.
_GLANCE_S = 0.5
_MOST_RESTS = 15


@dataclass(frozen=True, slots=True)
class ServiceOutcome:
    """What a round has done for a service, why it did nothing, or why it could not."""

    service: str
    outcome: Commit | Skip | LakewrightError

    @property
    def error(self) -> LakewrightError | None:
        """Why it could not, if so."""
        return self.outcome if isinstance(self.outcome, LakewrightError) else None

    @property
    def is_final(self) -> bool:
        """Whether the service would fail again however often it is tried."""
        passing = (ConflictError, UnavailableError)
        return self.error is not None and not isinstance(self.error, passing)


@dataclass(frozen=True, slots=True)
class MaintenanceRound:
    """All steps of one round, in order; rounds are counted from 1."""

    number: int
    steps: tuple[ServiceOutcome, ...] = ()

    @property
    def errors(self) -> tuple[LakewrightError, ...]:
        """What went wrong."""
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
    """Run services in rounds, `interval_s` apart, until `stop` says so between two steps.

    A conflict, or storage that does not answer, is reported, and tried again after a rest that
    doubles each time. A service with any other error is reported and left out from then on.

    Raises:
        LakewrightError: the last service that was still in the loop had to be left out.
    """
    if interval_s <= 0:
        raise InvalidError("the pause between two rounds must be above 0", seconds=interval_s)
    if not names:
        raise InvalidError("no service to run was named")
    course = _Backoff([service_by_name(name).name for name in names])
    number = 0
    while not stop():
        number += 1
        resting = course.resting()
        steps = (*resting, *run_round(runner, course.at_work(), stop))
        if steps:
            report(MaintenanceRound(number, steps))
        course.note(steps)
        pause(interval_s, clock, stop)


def run_round(
    runner: ServiceRunner, names: Sequence[str], stop: Callable[[], bool] = lambda: False
) -> Iterator[ServiceOutcome]:
    """Execute the waiting plans of some services, then run each; errors are outcomes."""
    services = list(dict.fromkeys(service_by_name(name).name for name in names))
    try:
        look = _PendingWork.at(runner, services)
    except LakewrightError as error:
        yield from (ServiceOutcome(name, error) for name in services)
        return
    lost: set[str] = set()
    for instant in look.waiting:
        if stop():
            return
        step = look.execute(instant, without=lost)
        if step is not None:
            lost |= {step.service} if step.is_final else set()
            yield step
    for name in services:
        if stop():
            return
        if name not in lost:
            yield _attempt(runner, name, partial(runner.run, name))


def pause(seconds: float, clock: Clock, stop: Callable[[], bool]) -> None:
    """Wait, unless or until `stop` says so."""
    deadline = clock.monotonic_ms() + round(seconds * 1000)
    while not stop() and (left_ms := deadline - clock.monotonic_ms()) > 0:
        clock.sleep(min(left_ms / 1000, _GLANCE_S))


@dataclass
class _Backoff:
    """Who takes part in the rounds: services leave it for good, or rest for some rounds."""

    names: list[str]
    failures: dict[str, int] = field(default_factory=dict)
    rests: dict[str, int] = field(default_factory=dict)

    def at_work(self) -> list[str]:
        """Those whose turn it is."""
        return [name for name in self.names if name not in self.rests]

    def resting(self) -> tuple[ServiceOutcome, ...]:
        """One round less for those that rest; told as steps."""
        steps = []
        for name, left in list(self.rests.items()):
            if left:
                self.rests[name] = left - 1
                steps.append(
                    ServiceOutcome(name, Skip(f"rests after {self.failures[name]} failures"))
                )
            else:
                del self.rests[name]
        return tuple(steps)

    def note(self, steps: Sequence[ServiceOutcome]) -> None:
        """Remember who failed; raises the error of the last one that takes part."""
        for name in self.at_work():
            failed = [step for step in steps if step.service == name and step.error is not None]
            final = [step.error for step in failed if step.is_final]
            if final:
                self.names.remove(name)
            elif failed:
                self.failures[name] = self.failures.get(name, 0) + 1
                self.rests[name] = min(2 ** (self.failures[name] - 1) - 1, _MOST_RESTS)
            else:
                self.failures.pop(name, None)
            if final and final[0] is not None and not self.names:
                raise final[0]


@dataclass(frozen=True)
class _PendingWork:
    """The plans that wait when a round begins.

    `living` are being executed; `void` can never be, and tells why.
    """

    runner: ServiceRunner
    names: Sequence[str]
    snapshot: Snapshot
    living: frozenset[str]
    void: Mapping[str, str]

    @classmethod
    def at(cls, runner: ServiceRunner, names: Sequence[str]) -> _PendingWork:
        """Look at the table now."""
        snapshot = load_snapshot(runner.storage)
        begun = {i.requested_at for i in snapshot.timeline.pending()}
        living = runner.writer.live_instants(begun)
        return cls(runner, names, snapshot, living, superseded_plans(snapshot))

    @property
    def waiting(self) -> tuple[Instant, ...]:
        """The plans of the actions of these services."""
        actions = {action for name in self.names if (action := service_by_name(name).action)}
        return self.snapshot.timeline.pending(*actions) if actions else ()

    def execute(self, instant: Instant, without: Collection[str]) -> ServiceOutcome | None:
        """Execute a plan of one of the services; None for one of another service."""
        by_action = [n for n in self.names if service_by_name(n).action == instant.action]
        try:
            name = self._owner(instant)
        except LakewrightError as error:
            return ServiceOutcome(by_action[0], error)
        if name is None or name not in self.names or name in without:
            return None
        if instant.requested_at in self.living:
            return ServiceOutcome(
                name, Skip(f"{instant.action} {instant.requested_at} is being executed")
            )
        if instant.requested_at in self.void:
            return ServiceOutcome(name, Skip(self.void[instant.requested_at]))
        return _attempt(self.runner, name, partial(self.runner.execute, instant.requested_at))

    def _owner(self, instant: Instant) -> str | None:
        """The name of the service that a plan is for; None if the plan is gone."""
        data = read_plan_bytes(self.snapshot, instant)
        return None if data is None else parse_plan(instant, data)[0].name


def _attempt(runner: ServiceRunner, name: str, do: Callable[[], Commit | Skip]) -> ServiceOutcome:
    try:
        return ServiceOutcome(name, _unless_gone(runner, do))
    except LakewrightError as error:
        return ServiceOutcome(name, error)


def _unless_gone(runner: ServiceRunner, do: Callable[[], Commit | Skip]) -> Commit | Skip:
    """Do something with a plan; that somebody has it, or took it back meanwhile, is no error."""
    try:
        return do()
    except PlanInProgressError as error:
        return Skip(str(error))
    except (ConflictError, InvalidError) as error:
        at = error.facts.get("instant")
        there = {instant.requested_at for instant in load_snapshot(runner.storage).timeline}
        if not isinstance(at, str) or at in there:
            raise
        return Skip(f"the plan of {at} was taken back meanwhile")
