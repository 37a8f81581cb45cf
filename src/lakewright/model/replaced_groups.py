"""The replaced file groups of a table in little memory, for tasks that ask for some of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from lakewright.model.file_group import GroupKey

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ReplacedGroups:
    """A set of file groups, by digests of 16 bytes: that two groups share one is out of reach.

    A replace commit of a large table names some hundred thousand groups, and every task of every
    later write needs to know which of its own groups are among them.
    """

    digests: bytes = b""

    @classmethod
    def of(cls, groups: Iterable[GroupKey]) -> ReplacedGroups:
        """Return the set of these groups."""
        return cls(b"".join(sorted({_digest(group) for group in groups})))

    def __len__(self) -> int:
        return len(self.digests) // _DIGEST_BYTES

    def __contains__(self, group: object) -> bool:
        if not self.digests or not isinstance(group, tuple):
            return False
        wanted = _digest(group)
        place = bisect_left(range(len(self)), wanted, key=self._at)
        return place < len(self) and self._at(place) == wanted

    def _at(self, place: int) -> bytes:
        return self.digests[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES]


def _digest(group: GroupKey) -> bytes:
    partition, file_id = group
    # Neither has a zero byte, so no two groups have the same text.
    return blake2b(f"{partition}\0{file_id}".encode(), digest_size=_DIGEST_BYTES).digest()
