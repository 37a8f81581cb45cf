"""The active timeline of a table, as an immutable value."""

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
    """The instants of the active timeline by requested time, one for each action.

    - Archived instants are not included: `start` is where the active timeline begins.
    - `plans` maps the requested times of table services to their pending action (`compaction`,
      `logcompaction` or `clustering`), which the action of the completed instant does not show.
    - `without_pending_files` are the requested times of completed writes without a requested or
      inflight file.
    """

    instants: tuple[Instant, ...] = ()
    plans: Mapping[InstantTime, Action] = field(default_factory=dict, compare=False, repr=False)
    without_pending_files: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @classmethod
    def from_instants(cls, instants: Iterable[Instant]) -> Timeline:
        """Return the timeline of instants in any order, each action in any number of states."""
        listed = list(instants)
        plans = {i.requested_at: i.action for i in listed if i.action.is_rewrite}
        pending = {i.requested_at for i in listed if i.is_write and not i.is_completed}
        completed = {i.requested_at for i in listed if i.is_write and i.is_completed}
        return cls(tuple(latest_states(listed)), plans, frozenset(completed - pending))

    def with_completed(self, completed: Instant, action: Action) -> Timeline:
        """Return the timeline with another completed write, whose pending action was `action`."""
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
        """The completed commits, delta commits and replace commits, by requested time."""
        return tuple(i for i in self.instants if i.is_write and i.is_completed)

    @cached_property
    def by_completion(self) -> tuple[Instant, ...]:
        """The completed writes by completion time."""
        return tuple(sorted(self.completed_writes, key=lambda i: (i.completed_at or "", i)))

    @cached_property
    def savepointed(self) -> frozenset[str]:
        """The requested times of the instants that have a savepoint."""
        return frozenset(
            i.requested_at for i in self.instants if i.action == Action.SAVEPOINT and i.is_completed
        )

    @cached_property
    def writes_without_savepoint(self) -> tuple[Instant, ...]:
        """The completed writes without a savepoint: only these determine `start`."""
        return tuple(i for i in self.completed_writes if i.requested_at not in self.savepointed)

    @cached_property
    def start(self) -> str | None:
        """The requested time at which the active timeline begins; None if there is no write.

        Commits with a savepoint do not count: they stay on the active timeline while later commits
        are archived. Pending writes do count, because archiving does not go past them.
        """
        writes = [i.requested_at for i in self.instants if i.is_write]
        return next((at for at in writes if at not in self.savepointed), min(writes, default=None))

    def pending(self, *actions: Action) -> tuple[Instant, ...]:
        """Return the pending instants, all or those of the given actions."""
        return tuple(
            i for i in self.instants if i.is_pending and (not actions or i.action in actions)
        )

    @cached_property
    def aborted(self) -> tuple[Instant, ...]:
        """The plans that another writer has cancelled for good; a clean rolls them back.

        Their files stay until then, and Hudi 1.2 sees pending plans: so archiving does not go past
        them.
        """
        return tuple(i for i in self.instants if i.state is State.ABORTED)

    def completed(self, *actions: Action) -> tuple[Instant, ...]:
        """Return the completed instants, all or those of the given actions."""
        return tuple(
            i for i in self.instants if i.is_completed and (not actions or i.action in actions)
        )

    def completed_services(self, action: Action) -> tuple[Instant, ...]:
        """Return the completed instants of a table service, given its pending action."""
        completed = self.completed(action.completed_as)
        return tuple(i for i in completed if self.plans.get(i.requested_at) == action)

    def is_archived(self, requested_at: InstantTime) -> bool:
        """Whether an instant is before the active timeline and so counts as completed.

        Like Hudi's readers, this compares times only: an instant that is older than the start of
        the active timeline, and not on it, has completed and is archived.
        """
        return (
            self.start is not None
            and requested_at < self.start
            and requested_at not in self.by_time
        )

    def is_committed(self, requested_at: InstantTime) -> bool:
        """Whether this write is committed, so that its files belong to the table."""
        instant = self.by_time.get(requested_at)
        return instant.is_completed if instant is not None else self.is_archived(requested_at)
