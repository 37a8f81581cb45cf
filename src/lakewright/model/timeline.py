"""The timeline: what has happened to a table, as an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lakewright.model.instant import (
    Action,
    Instant,
    InstantTime,
    State,
    latest_states,
)


@dataclass(frozen=True)
class Timeline:
    """The instants of the active timeline, oldest request first, one for each action.

    History (archived instants) is not here: `start` tells where the active part begins. `plans`
    names, by requested time, the services among the completed writes: `compaction`,
    `logcompaction` or `clustering`, which the completed word alone does not tell. `bare` are the
    requested times of completed writes of whose beginning nothing is there.
    """

    instants: tuple[Instant, ...] = ()
    plans: Mapping[InstantTime, Action] = field(default_factory=dict, compare=False, repr=False)
    bare: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @classmethod
    def of(cls, instants: Iterable[Instant]) -> Timeline:
        """A timeline from instants in any order and any number of states for each action."""
        known = list(instants)
        plans = {i.requested_at: i.action for i in known if i.action.is_rewrite}
        begun = {i.requested_at for i in known if i.is_write and not i.is_completed}
        done = {i.requested_at for i in known if i.is_write and i.is_completed}
        return cls(tuple(latest_states(known)), plans, frozenset(done - begun))

    def with_completed(self, completed: Instant, action: Action) -> Timeline:
        """The timeline with one more completed write, which was pending as `action`."""
        plans = {completed.requested_at: action} if action.is_rewrite else {}
        instants = latest_states([*self.instants, completed])
        return Timeline(tuple(instants), {**self.plans, **plans})

    def __iter__(self) -> Iterator[Instant]:
        return iter(self.instants)

    def __len__(self) -> int:
        return len(self.instants)

    @cached_property
    def by_time(self) -> dict[str, Instant]:
        """The write instants by requested time."""
        return {instant.requested_at: instant for instant in self.instants if instant.is_write}

    @cached_property
    def completed_writes(self) -> tuple[Instant, ...]:
        """Completed commits, delta commits and replace commits, oldest request first."""
        return tuple(i for i in self.instants if i.is_write and i.is_completed)

    @cached_property
    def by_completion(self) -> tuple[Instant, ...]:
        """The completed writes in the order in which they completed."""
        return tuple(sorted(self.completed_writes, key=lambda i: (i.completed_at or "", i)))

    @cached_property
    def savepointed(self) -> frozenset[str]:
        """Requested times of the instants that a savepoint holds."""
        return frozenset(
            i.requested_at for i in self.instants if i.action == "savepoint" and i.is_completed
        )

    @cached_property
    def writes_without_savepoint(self) -> tuple[Instant, ...]:
        """The completed writes that no savepoint holds: only these keep the beginning in place."""
        return tuple(i for i in self.completed_writes if i.requested_at not in self.savepointed)

    @cached_property
    def start(self) -> str | None:
        """The requested time where the active timeline begins; None while there is no write.

        A savepoint keeps its commit on the active timeline while archiving goes on behind it, so a
        saved commit does not mark the beginning. Pending writes do: nothing is archived past them.
        """
        writes = [i.requested_at for i in self.instants if i.is_write]
        return next((at for at in writes if at not in self.savepointed), min(writes, default=None))

    def pending(self, *actions: Action) -> tuple[Instant, ...]:
        """The requested and inflight instants, all or those of the given actions."""
        return tuple(
            i
            for i in self.instants
            if i.state is not State.COMPLETED and (not actions or i.action in actions)
        )

    def completed(self, *actions: Action) -> tuple[Instant, ...]:
        """The completed instants, all or those of the given actions."""
        return tuple(
            i for i in self.instants if i.is_completed and (not actions or i.action in actions)
        )

    def completed_services(self, action: Action) -> tuple[Instant, ...]:
        """The completed executions of one kind of plan, by the word that it is pending under."""
        done = self.completed(action.completed_as)
        return tuple(i for i in done if self.plans.get(i.requested_at) == action)

    def is_archived(self, requested_at: InstantTime) -> bool:
        """Whether an instant lies before the active timeline and so counts as completed.

        Readers decide it by name alone: what is not on the active timeline and older than its
        beginning was completed and archived.
        """
        return (
            self.start is not None
            and requested_at < self.start
            and requested_at not in self.by_time
        )

    def is_committed(self, requested_at: InstantTime) -> bool:
        """Whether files that carry this instant belong to the table."""
        instant = self.by_time.get(requested_at)
        return instant.is_completed if instant is not None else self.is_archived(requested_at)
