"""A clock that is ahead would take out what is young: it is compared with the storage's own."""

from __future__ import annotations

from lakewright.clock import Clock
from lakewright.errors import UnavailableError
from lakewright.storage.base import Storage

# In the folder for what helps readers and writers, which real ones pass over file by file.
_PROBE = ".hoodie/.aux/lakewright_clock"
_MOST_AHEAD_MS = 3_600_000


def require_sane_clock(storage: Storage, clock: Clock) -> None:
    """UnavailableError if this machine's clock is an hour ahead of that of a storage with its own.

    On a disk of this machine nothing can be told.
    """
    if not storage.keeps_time:
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
