"""Ranges over completion times, drawn."""

from __future__ import annotations

import pytest

from lakewright.core.instant import Instant
from lakewright.read.incremental import plan_range
from lakewright.testing.drawing import at, draw

HOLLOW = """
    deltacommit |--|
    deltacommit  |--------|
    deltacommit     |--|
    """

RANGES = {
    "everything, in the order of completion": (HOLLOW, None, None, None, "0 4 1", 10),
    "a slow writer that ends after the position is not lost": (HOLLOW, 7, None, None, "1", 10),
    "a writer that is inflight blocks nobody": (
        """
    deltacommit |----
    deltacommit  |--|
    """,
        None,
        None,
        None,
        "1",
        4,
    ),
    "the beginning is not part of the range": (HOLLOW, 3, None, None, "4 1", 10),
    "the end is": (HOLLOW, 3, 7, None, "4", 7),
    "the limit counts instants and ends the range": (HOLLOW, None, None, 2, "0 4", 7),
    "nothing new keeps the checkpoint": (HOLLOW, 10, None, None, "", 10),
    "nothing at all": ("clean |-|", None, None, None, "", None),
}


@pytest.mark.parametrize(
    ("picture", "since", "until", "limit", "expected", "checkpoint"),
    RANGES.values(),
    ids=list(RANGES),
)
def test_range(
    picture: str,
    since: int | None,
    until: int | None,
    limit: int | None,
    expected: str,
    checkpoint: int | None,
) -> None:
    chosen = plan_range(
        draw(picture).completed_writes,
        since=None if since is None else at(since),
        until=None if until is None else at(until),
        limit=limit,
    )
    assert " ".join(tick(instant) for instant in chosen.instants) == expected
    assert chosen.checkpoint == (None if checkpoint is None else at(checkpoint))


def test_a_limit_moves_the_end_of_the_range() -> None:
    chosen = plan_range(draw(HOLLOW).completed_writes, limit=1)
    assert chosen.until == at(3)


def tick(instant: Instant) -> str:
    return str(int(instant.requested_at[4:]))
