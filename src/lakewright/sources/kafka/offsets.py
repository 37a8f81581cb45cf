"""Offsets of a topic: as checkpoints, as Spark's options, and how far a batch goes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from lakewright.errors import InvalidError


@dataclass(frozen=True)
class Offsets:
    """Of each partition the offset of the next message to read.

    As a text in Hudi's form: the topic, then partition and offset of each, as in `t,0:10,1:20`.
    """

    topic: str
    next: Mapping[int, int]

    @classmethod
    def parse(cls, text: str) -> Offsets:
        """Read a checkpoint; the inverse of `str`."""
        # A topic's name has neither commas nor colons.
        topic, *parts = text.strip().split(",")
        pairs = [part.split(":") for part in parts]
        right = all(len(pair) == 2 and all(map(_is_number, pair)) for pair in pairs)
        numbers = {int(pair[0]): int(pair[1]) for pair in pairs} if right else {}
        if not topic or ":" in topic or not numbers or len(numbers) < len(pairs):
            raise InvalidError(
                "the checkpoint is no topic's, such as topic,0:10,1:20", checkpoint=text
            )
        return cls(topic, numbers)

    def __str__(self) -> str:
        pairs = [f"{partition}:{offset}" for partition, offset in sorted(self.next.items())]
        return ",".join([self.topic, *pairs])

    def as_option(self) -> str:
        """What Spark's connector takes for `startingOffsets` and `endingOffsets`."""
        by_name = {str(partition): offset for partition, offset in sorted(self.next.items())}
        return json.dumps({self.topic: by_name})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


@dataclass(frozen=True)
class OffsetRange:
    """The messages of a batch: from `start` on, up to and without `end`; `waiting` are left."""

    start: Offsets
    end: Offsets
    waiting: int = 0

    @property
    def count(self) -> int:
        """How many messages there are, or were before Kafka threw some away."""
        return _distance(self.start.next, self.end.next)


def next_range(
    after: Offsets | None,
    first: Mapping[int, int],
    last: Mapping[int, int],
    *,
    topic: str,
    from_latest: bool,
    most: int,
) -> OffsetRange:
    """Decide what a batch reads of a topic that has messages from `first` up to `last`.

    Without a checkpoint it begins at the end or at the beginning. A partition that the checkpoint
    does not know is new: all of it is read.

    Raises:
        InvalidError: the checkpoint is of another topic, or behind the topic's end.
    """
    if after is not None:
        _check(after, last, topic)
    known = after.next if after is not None else (last if from_latest else {})
    start = {partition: known.get(partition, first.get(partition, 0)) for partition in last}
    end = _shared(start, last, most)
    waiting = _distance(end, last)
    return OffsetRange(Offsets(topic, start), Offsets(topic, end), waiting)


def lost(after: Offsets, first: Mapping[int, int]) -> dict[int, int]:
    """How many messages of each partition Kafka has thrown away that were not read."""
    gaps = {p: first[p] - offset for p, offset in after.next.items() if p in first}
    return {partition: gap for partition, gap in gaps.items() if gap > 0}


def _check(after: Offsets, last: Mapping[int, int], topic: str) -> None:
    if after.topic != topic:
        raise InvalidError("the checkpoint is of another topic", checkpoint=str(after), topic=topic)
    gone = sorted(after.next.keys() - last.keys())
    ahead = sorted(p for p, offset in after.next.items() if p in last and offset > last[p])
    if gone or ahead:
        raise InvalidError(
            "the topic is not the one that the checkpoint was made for, or was made anew: it ends "
            "before the checkpoint",
            checkpoint=str(after),
            topic=str(Offsets(topic, last)),
        )


def _shared(start: Mapping[int, int], last: Mapping[int, int], most: int) -> dict[int, int]:
    """Where each partition ends, so that all have about the same share of `most` messages."""
    left = {partition: last[partition] - start[partition] for partition in start}
    end, budget = dict(start), most
    # Those with little go first: what they do not need the others share.
    for done, partition in enumerate(sorted(left, key=lambda p: (left[p], p))):
        share = -(-budget // (len(left) - done))
        taken = min(left[partition], share, budget)
        end[partition] += taken
        budget -= taken
    return end


def _distance(start: Mapping[int, int], end: Mapping[int, int]) -> int:
    return sum(end[partition] - offset for partition, offset in start.items())
