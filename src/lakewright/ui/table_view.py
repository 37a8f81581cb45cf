"""A table that is served: what each panel of the page asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lakewright.client.documents import plan_document, service_document
from lakewright.client.service_client import (
    cancel_plan,
    service_runner,
    with_optimistic_concurrency,
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
from lakewright.table.options import HeartbeatSettings
from lakewright.ui.documents import (
    Document,
    cut,
    freshness_history,
    instant_details,
    plans_document,
    properties_document,
    timeline_document,
    times_of,
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

_MOST_GROUPS = 200


class NotFoundError(InvalidError):
    """What was asked for is not there."""


@dataclass(frozen=True)
class TableView:
    """One table, by the address and options that the server was started with."""

    path: str
    options: Mapping[str, str]
    watch: SnapshotCache

    @classmethod
    def at(cls, path: str, options: Mapping[str, str]) -> TableView:
        """The table at a path; it is looked at when somebody asks."""
        return cls(
            path, options, SnapshotCache(service_runner(path, with_optimistic_concurrency(options)))
        )

    def summary(self) -> Document:
        """What the list of tables shows."""
        seen = self.watch.snapshot()
        config, timeline = seen.snapshot.config, seen.snapshot.timeline
        time_ms = times_of(seen.snapshot)
        last = timeline.by_completion[-1] if timeline.by_completion else None
        return {
            "name": config.name,
            "path": self.path,
            "type": config.table_type.value,
            "format_version": config.version,
            "record_key": list(config.record_key_fields),
            "partition_by": list(config.partition_fields),
            "ordering": list(config.ordering_fields),
            "version": seen.version,
            "instants": len(timeline),
            "pending": len(timeline.pending()),
            "last_write_ms": time_ms(last.completed_at) if last is not None else None,
        }

    def pulse(self) -> Document:
        """Whether anything is different; all that is asked for while nothing happens."""
        seen = self.watch.snapshot()
        return {
            "version": seen.version,
            "now_ms": self._now_ms(),
            "pending": len(seen.snapshot.timeline.pending()),
        }

    def timeline(self, *, archived: bool) -> Document:
        """The timeline."""
        seen = self.watch.snapshot()
        found = self.watch.derived(
            f"timeline {archived}",
            seen.version,
            lambda: timeline_document(seen.snapshot, archived=archived),
        )
        return {**found, "now_ms": self._now_ms(), "version": seen.version}

    def instant(self, at: str, action: str) -> Document:
        """One instant."""
        found = instant_details(self.watch.snapshot().snapshot, at, action)
        if found is None:
            raise NotFoundError("the timeline has no such instant", instant=at, action=action)
        return found

    def properties(self) -> Document:
        """The table's properties."""
        return {"properties": properties_document(self.watch.snapshot().snapshot.config.properties)}

    def partitions(self, page: Page) -> Document:
        """One page of the partitions, and all of them together."""
        page = page.checked()
        seen = self.watch.listing()
        judged = self.watch.derived("judged", seen.version, lambda: self._rows_with_ttl(seen))
        total, rows = page_of(judged, page)
        debts = self._debts(seen, [each.row.partition for each in rows])
        rows = [replace(each, debt=debts.get(each.row.partition)) for each in rows]
        time_ms = times_of(seen.snapshot)
        totals = self.watch.derived(
            "totals", seen.version, lambda: totals_document(seen.rows.values())
        )
        return {
            "version": seen.version,
            "totals": totals,
            "ttl": self._ttl_document(seen, judged),
            "matching": total,
            "offset": page.offset,
            "rows": [row_document(each, time_ms) for each in rows],
        }

    def groups(self, partition: str, offset: int) -> Document:
        """The file groups of a partition, by its path among those that were listed."""
        seen = self.watch.listing()
        if partition not in seen.rows:
            raise NotFoundError("the table has no such partition", partition=partition)
        snapshot = seen.snapshot
        found = snapshot.groups(snapshot.view(), snapshot.files([partition]))
        time_ms = times_of(snapshot)
        shown = found[max(0, offset) :][:_MOST_GROUPS]
        return {
            "partition": partition,
            "total": len(found),
            "offset": max(0, offset),
            "groups": [group_document(each, time_ms) for each in shown],
        }

    def freshness(self) -> Document:
        """Completion and freshness, now and over time."""
        seen = self.watch.snapshot()
        tolerance = settings_from(FreshnessSettings, self._options).future_tolerance_ms
        until = self._now_ms() + tolerance

        def made() -> Document:
            found = compute_freshness(seen.snapshot, future_from_ms=until)
            document = freshness_document(found, partitions=False)
            return {**document, "history": freshness_history(seen.snapshot)}

        return self.watch.derived("freshness", seen.version, made)

    def plans(self) -> Document:
        """What is pending; heartbeats are asked for only if anything is."""
        snapshot = self.watch.snapshot().snapshot
        waiting = snapshot.timeline.pending()
        beats = last_heartbeats(snapshot.storage) if waiting else {}
        settings = settings_from(HeartbeatSettings, self._options)
        now_ms = self._now_ms()
        return {**plans_document(snapshot, beats, settings, now_ms), "now_ms": now_ms}

    def services(self) -> Document:
        """The services there are."""
        has_logs = self.watch.snapshot().snapshot.config.table_type is TableType.MERGE_ON_READ
        of_logs = ("compaction", "logcompaction")
        known = [each for each in services() if has_logs or each.name not in of_logs]
        return {"services": [service_document(each) for each in known]}

    def preview(self, name: str) -> Document:
        """What a service would do now, and why not more."""
        plan = self.watch.runner.preview(known_service(name))
        return {"service": name, **cut(plan_document(plan))}

    def cancel(self, instant: str, user: str, reason: str) -> Document:
        """Take a cancellable plan back, or ask who executes it to stop."""
        return cancel_plan(self.path, self.options, instant, user=user, reason=reason, wait_s=0.0)

    @property
    def _options(self) -> Mapping[str, str]:
        return self.watch.runner.options

    def _now_ms(self) -> int:
        return self.watch.runner.clock.now_ms()

    def _rows_with_ttl(self, seen: CachedListing) -> list[PartitionRowWithTtl]:
        verdicts = self._ttl_decisions(seen)
        return [
            PartitionRowWithTtl(row, decision=verdicts.get(path)) for path, row in seen.rows.items()
        ]

    def _debts(self, seen: CachedListing, partitions: Iterable[str]) -> dict[str, PartitionDebt]:
        """Why the log files of some partitions wait."""
        if seen.snapshot.config.table_type is not TableType.MERGE_ON_READ:
            return {}
        few = replace(seen.snapshot, listing=seen.snapshot.files(partitions))
        owed = load_debt(self.watch.runner.planning_context(few))
        return {each.partition: each for each in owed.partitions}

    def _ttl_decisions(self, seen: CachedListing) -> dict[str, TtlDecision]:
        """What becomes of partitions by the policies, as if TTL were on; nothing without any."""
        config = seen.snapshot.config
        told = {ENABLED: "true", **self._options}
        if not config.partition_fields or not active_policies(
            ttl_settings(config.properties, told)
        ):
            return {}
        sight = replace(self.watch.runner.planning_context(seen.snapshot), options=told)
        return {each.partition: each for each in explain(sight)}

    def _ttl_document(self, seen: CachedListing, judged: list[PartitionRowWithTtl]) -> Document:
        settings = ttl_settings(seen.snapshot.config.properties, self._options)
        return {
            "enabled": bool(settings.enabled),
            "policies": [policy.document() for policy in settings.policies],
            "expired": sum(1 for each in judged if each.decision and each.decision.expired),
        }


def known_service(name: str) -> str:
    """The name of a service; NotFoundError tells which there are."""
    try:
        return service_by_name(name).name
    except InvalidError as error:
        raise NotFoundError(error.message, **error.facts) from error
