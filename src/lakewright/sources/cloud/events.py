"""Stage one of cloud events: from a queue of notifications to the rows of an events table.

Messages are deleted when their events are committed, not before: a crash has them come again, and
the same events are written once more. An events table with a key holds them once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from lakewright.clock import Clock, SystemClock
from lakewright.errors import CorruptError, InvalidError
from lakewright.sources.checkpoints import Checkpoint
from lakewright.sources.cloud.notifications import Notification, Row
from lakewright.sources.cloud.quarantine import Held, Quarantine
from lakewright.sources.cloud.queues import Message, Queue
from lakewright.sources.cloud.settings import HoldingSettings, OnBad
from lakewright.sources.source import Batch, Source
from lakewright.storage.locate import storage_for, storage_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Pull:
    """How many messages a batch takes, and for how long it goes on asking."""

    per_batch: int
    per_request: int
    most_s: int | None = None


class EventsSource(Source):
    """Notifications of a store, from a queue."""

    schema: ClassVar[pa.Schema]

    def __init__(
        self,
        queue: Queue,
        pull: Pull,
        read: Callable[[str, Mapping[str, str]], Notification],
        *,
        bad: OnBad = OnBad.ERROR,
        quarantine: Quarantine | None = None,
        clock: Clock | None = None,
    ) -> None:
        if bad is OnBad.QUARANTINE and quarantine is None:
            raise InvalidError(
                "a quarantine needs a table", option="lakewright.source.quarantine.path"
            )
        self._queue = queue
        self._pull = pull
        self._read = read
        self._bad = bad
        self._quarantine = quarantine
        self._clock = clock or SystemClock()

    def next_batch(self, spark: SparkSession, after: Checkpoint | None) -> Batch:
        """The events that are in the queue now; without any the checkpoint stays as it is.

        The checkpoint is the time of the latest event, in milliseconds: it only tells people how
        far things are, the queue itself knows what was taken.
        """
        before = _milliseconds_of(after)
        messages = take(self._queue, self._pull, self._clock)
        told = [(message, self._read(message.body, message.attributes)) for message in messages]
        self._put_aside([(message, note.problem) for message, note in told if note.problem])
        # What tells of nothing, or is put aside, is done with.
        self._queue.delete([message.receipt for message, note in told if not note.rows])
        rows: list[Row] = [row for _, note in told for row in note.rows]
        if not rows:
            return Batch(None, after)
        receipts = [message.receipt for message, note in told if note.rows]
        newest = max(note.newest_ms for _, note in told)
        facts = {
            "messages": len(messages),
            "events": len(rows),
            "lag_ms": max(0, self._clock.now_ms() - newest),
        }
        frame = spark.createDataFrame(pa.Table.from_pylist(rows, self.schema))
        checkpoint = Checkpoint(str(max(before, newest)))
        return Batch(frame, checkpoint, facts, partial(self._queue.delete, receipts))

    def _put_aside(self, bad: Sequence[tuple[Message, str]]) -> None:
        """Do what is to be done with messages that are no events."""
        if not bad:
            return
        message, problem = bad[0]
        if self._bad is OnBad.ERROR:
            raise CorruptError(
                "a message in the queue is no event; it may be passed over",
                reason=problem,
                id=message.id,
                body=message.body[:_SHOWN],
                option="lakewright.source.bad.messages",
            )
        if self._quarantine is not None and self._bad is OnBad.QUARANTINE:
            self._quarantine.put([Held(m.id, why, m.body, len(m.body)) for m, why in bad])
            return
        warnings.warn(
            f"{len(bad)} messages that are no events were deleted: {problem}: "
            f"{message.body[:_SHOWN]}",
            RuntimeWarning,
            stacklevel=3,
        )


def take(queue: Queue, pull: Pull, clock: Clock) -> list[Message]:
    """Take messages until there are enough, or no more; only the first request waits for some.

    One that comes twice counts once, by its latest receipt.
    """
    taken: dict[str, Message] = {}
    began = clock.monotonic_ms()
    while len(taken) < pull.per_batch:
        if pull.most_s is not None and clock.monotonic_ms() - began >= pull.most_s * 1000:
            break
        most = min(pull.per_request, pull.per_batch - len(taken))
        found = queue.receive(most, wait=not taken)
        known = len(taken)
        taken |= {message.id: message for message in found}
        if len(taken) == known:
            break
    return list(taken.values())


def quarantine_of(
    settings: HoldingSettings, options: Mapping[str, str], source: str, clock: Clock | None
) -> Quarantine | None:
    """The quarantine table that options name."""
    if settings.quarantine is None:
        return None
    storage = storage_for(settings.quarantine, storage_options(options))
    return Quarantine(storage, clock or SystemClock(), source)


def _milliseconds_of(after: Checkpoint | None) -> int:
    """The time that a checkpoint of an events source is."""
    if after is None:
        return 0
    if not after.text.isdigit():
        raise InvalidError(
            "not a checkpoint of an events source, which is a time in milliseconds: was another "
            "source read into the target before?",
            checkpoint=after.text,
        )
    return int(after.text)
