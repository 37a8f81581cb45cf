"""Which instants a consumer has not seen yet: ranges over completion times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakewright.core.instant import Instant
from lakewright.errors import InvalidError


@dataclass(frozen=True, slots=True)
class ChangeRange:
    """The instants that completed in (since, until], and where the next range begins.

    `until` is None if the range is open and takes in all that has completed.
    """

    instants: tuple[Instant, ...]
    since: str | None
    until: str | None
    checkpoint: str | None


def plan_range(
    instants: Iterable[Instant],
    *,
    since: str | None = None,
    until: str | None = None,
    limit: int | None = None,
) -> ChangeRange:
    """Choose among completed instants, active and archived, in the order of completion.

    With a limit the range ends where the last instant that fits completed.
    """
    if limit is not None and limit < 1:
        raise InvalidError("a range of changes holds at least one instant", limit=limit)
    chosen = sorted(
        (
            instant
            for instant in instants
            if instant.completed_at is not None
            and (since is None or instant.completed_at > since)
            and (until is None or instant.completed_at <= until)
        ),
        key=lambda instant: (instant.completed_at or "", instant.requested_at),
    )
    if limit is not None and len(chosen) > limit:
        chosen = chosen[:limit]
        until = chosen[-1].completed_at if chosen else since
    checkpoint = chosen[-1].completed_at if chosen else since
    return ChangeRange(tuple(chosen), since, until, checkpoint)
