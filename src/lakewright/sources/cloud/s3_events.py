"""Notifications of S3, from a queue of SQS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from lakewright.clock import Clock
from lakewright.settings import settings_from
from lakewright.sources.cloud.events import EventsSource, Pull, quarantine_of
from lakewright.sources.cloud.notifications import S3_SCHEMA, read_s3
from lakewright.sources.cloud.queues import Queue, SqsQueue
from lakewright.sources.cloud.settings import SQS_KEYS, HoldingSettings, SqsSettings


class S3EventsSource(EventsSource):
    """Objects that were put into S3, as it tells a queue, directly or by way of SNS."""

    name: ClassVar[str] = "s3-events"
    keys: ClassVar[frozenset[str]] = SQS_KEYS
    schema = S3_SCHEMA

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, queue: Queue | None = None, clock: Clock | None = None
    ) -> Self:
        """The source that options describe; another `queue` may take the place of SQS."""
        settings = settings_from(SqsSettings, options)
        holding = settings_from(HoldingSettings, options)
        return cls(
            queue or SqsQueue(settings, options),
            Pull(settings.per_batch, settings.per_request),
            read_s3,
            bad=holding.bad_messages,
            quarantine=quarantine_of(holding, options, cls.name, clock),
            clock=clock,
        )
