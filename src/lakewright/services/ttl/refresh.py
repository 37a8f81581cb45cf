"""Fills in the line `lastUpdateTime` of all partitions, once, before TTL is first used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from lakewright.services.ttl.look import Ages, live_partitions
from lakewright.services.ttl.plan import Known
from lakewright.storage.base import Storage, at_once
from lakewright.table.last_update import renew_last_update
from lakewright.table.snapshot import Snapshot

Progress = Callable[[int, int], None]

_AT_ONCE = 512


def update_partitions(snapshot: Snapshot, progress: Progress | None = None) -> int:
    """Write the line where it is missing or older than the last write; gives to how many.

    `progress` is told how many partitions are done, and how many there are. May be repeated after
    a crash: it goes on with those that lack the line.
    """
    ages = Ages.of(snapshot, live_partitions(snapshot))
    unsure = [p for p in ages.lives if _is_unsure(ages.known(p))]
    ages = ages.with_history(unsure) if unsure else ages
    times = [(p, _time(ages.known(p))) for p in ages.lives]
    done = 0
    renewed = 0
    for start in range(0, len(times), _AT_ONCE):
        part = times[start : start + _AT_ONCE]
        renewed += sum(at_once(partial(_renew, snapshot.storage), part))
        done += len(part)
        if progress is not None:
            progress(done, len(times))
    return renewed


def _is_unsure(known: Known) -> bool:
    return known.updated is None or known.bound > known.updated.at


def _time(known: Known) -> str:
    """The last write; of a partition that nothing tells of, what its files show."""
    return known.updated.at if known.updated is not None else known.bound


def _renew(storage: Storage, item: tuple[str, str]) -> bool:
    partition, time = item
    return bool(time) and renew_last_update(storage, partition, time)
