"""A served table: the documents that the panels of the page request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lakewright.client.documents import plan_document, service_document
from lakewright.client.service_client import (
    cancel_plan,
    service_runner,
)
from lakewright.errors import InvalidError
from lakewright.model.table_config import TableType
from lakewright.model.ttl import ENABLED, active_policies, ttl_settings
from lakewright.options import settings_from
from lakewright.services.compaction_debt import PartitionDebt, load_debt
from lakewright.services.registry import service_by_name, services
from lakewright.services.ttl.planner import TtlDecision
from lakewright.services.ttl.service import explain
from lakewright.table.freshness import compute_freshness
from lakewright.table.freshness_options import FreshnessSettings
from lakewright.table.freshness_report import freshness_document
from lakewright.table.heartbeat import last_heartbeats
from lakewright.table.options import HeartbeatSettings, with_optimistic_concurrency
from lakewright.ui.documents import (
    Document,
    freshness_history,
    instant_details,
    plans_document,
    properties_document,
    timeline_document,
    times_of,
    truncate_lists,
)
from lakewright.ui.partitions import (
    Page,
    PartitionRowWithTtl,
    group_document,
    page_of,
    row_document,
    totals_document,
)
from lakewright.ui.snapshot_cache import CachedListing, SnapshotCache

_MAX_GROUPS = 200


class NotFoundError(InvalidError):
    """The requested table, instant, partition, service or job does not exist."""


@dataclass(frozen=True)
class TableView:
    """One table, with the path and the options that the server was started with."""

    path: str
    options: Mapping[str, str]
    watch: SnapshotCache

    @classmethod
    def at(cls, path: str, options: Mapping[str, str]) -> TableView:
        """The view of the table at a path; the table is read at the first request."""
        return cls(
            path, options, SnapshotCache(service_runner(path, with_optimistic_concurrency(options)))
        )

    def summary(self) -> Document:
        """The entry of the table in the list of tables."""
        cached = self.watch.snapshot()
        config, timeline = cached.snapshot.config, cached.snapshot.timeline
        time_ms = times_of(cached.snapshot)
        last = timeline.by_completion[-1] if timeline.by_completion else None
        return {
            "name": config.name,
            "path": self.path,
            "type": config.table_type.value,
            "format_version": config.version,
            "record_key": list(config.record_key_fields),
            "partition_by": list(config.partition_fields),
            "ordering": list(config.ordering_fields),
            "version": cached.version,
            "instants": len(timeline),
            "pending": len(timeline.pending()),
            "last_write_ms": time_ms(last.completed_at) if last is not None else None,
        }

    def pulse(self) -> Document:
        """The version of the table; the page polls only this while the version is the same."""
        cached = self.watch.snapshot()
        return {
            "version": cached.version,
            "now_ms": self._now_ms(),
            "pending": len(cached.snapshot.timeline.pending()),
        }

    def timeline(self, *, archived: bool) -> Document:
        """The active timeline, and the archived timeline if requested."""
        cached = self.watch.snapshot()
        document = self.watch.derived(
            f"timeline {archived}",
            cached.version,
            lambda: timeline_document(cached.snapshot, archived=archived),
        )
        return {**document, "now_ms": self._now_ms(), "version": cached.version}

    def instant(self, at: str, action: str) -> Document:
        """The details of one instant."""
        details = instant_details(self.watch.snapshot().snapshot, at, action)
        if details is None:
            raise NotFoundError("the timeline has no such instant", instant=at, action=action)
        return details

    def properties(self) -> Document:
        """The table properties."""
        return {"properties": properties_document(self.watch.snapshot().snapshot.config.properties)}

    def partitions(self, page: Page) -> Document:
        """One page of the partitions, and the totals of all partitions."""
        page = page.checked()
        listing = self.watch.listing()
        all_rows = self.watch.derived(
            "judged", listing.version, lambda: self._rows_with_ttl(listing)
        )
        matching, rows = page_of(all_rows, page)
        debts = self._debts(listing, [row.row.partition for row in rows])
        rows = [replace(row, debt=debts.get(row.row.partition)) for row in rows]
        time_ms = times_of(listing.snapshot)
        totals = self.watch.derived(
            "totals", listing.version, lambda: totals_document(listing.rows.values())
        )
        return {
            "version": listing.version,
            "totals": totals,
            "ttl": self._ttl_document(listing, all_rows),
            "matching": matching,
            "offset": page.offset,
            "rows": [row_document(row, time_ms) for row in rows],
        }

    def groups(self, partition: str, offset: int) -> Document:
        """The file groups of a listed partition, from an offset on."""
        listing = self.watch.listing()
        if partition not in listing.rows:
            raise NotFoundError("the table has no such partition", partition=partition)
        snapshot = listing.snapshot
        groups = snapshot.groups(snapshot.view(), snapshot.files([partition]))
        time_ms = times_of(snapshot)
        shown = groups[max(0, offset) :][:_MAX_GROUPS]
        return {
            "partition": partition,
            "total": len(groups),
            "offset": max(0, offset),
            "groups": [group_document(group, time_ms) for group in shown],
        }

    def freshness(self) -> Document:
        """Completion and freshness, now and over time."""
        cached = self.watch.snapshot()
        tolerance = settings_from(FreshnessSettings, self._options).future_tolerance_ms
        future_from_ms = self._now_ms() + tolerance

        def compute() -> Document:
            freshness = compute_freshness(
                cached.snapshot, future_from_ms=future_from_ms, options=self._options
            )
            document = freshness_document(freshness, partitions=False)
            return {**document, "history": freshness_history(cached.snapshot)}

        return self.watch.derived("freshness", cached.version, compute)

    def plans(self) -> Document:
        """The pending instants and recent rollbacks; reads heartbeats only if any are pending."""
        snapshot = self.watch.snapshot().snapshot
        pending = snapshot.timeline.pending()
        heartbeats = last_heartbeats(snapshot.storage) if pending else {}
        settings = settings_from(HeartbeatSettings, self._options)
        now_ms = self._now_ms()
        return {**plans_document(snapshot, heartbeats, settings, now_ms), "now_ms": now_ms}

    def services(self) -> Document:
        """The table services that apply to the type of the table."""
        has_logs = self.watch.snapshot().snapshot.config.table_type is TableType.MERGE_ON_READ
        log_services = ("compaction", "logcompaction")
        applicable = [
            service for service in services() if has_logs or service.name not in log_services
        ]
        return {"services": [service_document(service) for service in applicable]}

    def preview(self, name: str) -> Document:
        """The plan that a service would schedule now, with the partitions that it skips."""
        plan = self.watch.runner.preview(require_service(name))
        return {"service": name, **truncate_lists(plan_document(plan))}

    def cancel(self, instant: str, user: str, reason: str) -> Document:
        """Roll back a cancellable plan, or request a running executor to stop."""
        return cancel_plan(self.path, self.options, instant, user=user, reason=reason, wait_s=0.0)

    @property
    def _options(self) -> Mapping[str, str]:
        return self.watch.runner.options

    def _now_ms(self) -> int:
        return self.watch.runner.clock.now_ms()

    def _rows_with_ttl(self, listing: CachedListing) -> list[PartitionRowWithTtl]:
        decisions = self._ttl_decisions(listing)
        return [
            PartitionRowWithTtl(row, decision=decisions.get(path))
            for path, row in listing.rows.items()
        ]

    def _debts(self, listing: CachedListing, partitions: Iterable[str]) -> dict[str, PartitionDebt]:
        """The compaction debt of some partitions."""
        if listing.snapshot.config.table_type is not TableType.MERGE_ON_READ:
            return {}
        limited = replace(listing.snapshot, listing=listing.snapshot.files(partitions))
        debt = load_debt(self.watch.runner.planning_context(limited))
        return {partition_debt.partition: partition_debt for partition_debt in debt.partitions}

    def _ttl_decisions(self, listing: CachedListing) -> dict[str, TtlDecision]:
        """The TTL decisions by partition as if TTL were enabled; empty without active policies."""
        config = listing.snapshot.config
        options = {ENABLED: "true", **self._options}
        if not config.partition_fields or not active_policies(
            ttl_settings(config.properties, options)
        ):
            return {}
        context = replace(self.watch.runner.planning_context(listing.snapshot), options=options)
        return {decision.partition: decision for decision in explain(context)}

    def _ttl_document(self, listing: CachedListing, rows: list[PartitionRowWithTtl]) -> Document:
        settings = ttl_settings(listing.snapshot.config.properties, self._options)
        return {
            "enabled": bool(settings.enabled),
            "policies": [policy.document() for policy in settings.policies],
            "expired": sum(1 for row in rows if row.decision and row.decision.expired),
        }


def require_service(name: str) -> str:
    """Return the name of a service; NotFoundError lists the known ones."""
    try:
        return service_by_name(name).name
    except InvalidError as error:
        raise NotFoundError(error.message, **error.facts) from error
