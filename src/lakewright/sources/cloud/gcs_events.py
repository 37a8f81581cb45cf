"""Notifications of GCS, from a subscription of Pub/Sub."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from lakewright.clock import Clock
from lakewright.settings import settings_from
from lakewright.sources.cloud.events import EventsSource, Pull, quarantine_of
from lakewright.sources.cloud.notifications import GCS_SCHEMA, read_gcs
from lakewright.sources.cloud.queues import PubSubQueue, Queue
from lakewright.sources.cloud.settings import PUBSUB_KEYS, HoldingSettings, PubSubSettings


class GcsEventsSource(EventsSource):
    """Objects that were put into GCS, as it tells a topic of Pub/Sub."""

    name: ClassVar[str] = "gcs-events"
    keys: ClassVar[frozenset[str]] = PUBSUB_KEYS
    schema = GCS_SCHEMA

    @classmethod
    def from_options(
        cls, options: Mapping[str, str], *, queue: Queue | None = None, clock: Clock | None = None
    ) -> Self:
        """The source that options describe; another `queue` may take the place of Pub/Sub."""
        settings = settings_from(PubSubSettings, options)
        holding = settings_from(HoldingSettings, options)
        return cls(
            queue or PubSubQueue(settings),
            Pull(settings.per_batch, settings.per_request, settings.most_s),
            read_gcs,
            bad=holding.bad_messages,
            quarantine=quarantine_of(holding, options, cls.name, clock),
            clock=clock,
        )
