"""The names of the file groups of a bucket index: eight digits, then the rest of a random id."""

from __future__ import annotations

from collections.abc import Sequence

# An id at random may begin with digits, one in 43; below this, one in four million.
_FEW_BUCKETS = 1_000


def bucket_of_group(file_id: str) -> int | None:
    """The bucket that a file id names, if it names one."""
    head = file_id[:8]
    digits = len(head) == 8 and head.isascii() and head.isdigit()
    return int(head) if digits and file_id[8:9] in {"", "-"} else None


def look_like_buckets(file_ids: Sequence[str]) -> bool:
    """Whether all these file groups must be those of a bucket index, by their names alone."""
    named = [bucket for each in file_ids if (bucket := bucket_of_group(each)) is not None]
    return bool(named) and len(named) == len(file_ids) and min(named) < _FEW_BUCKETS
