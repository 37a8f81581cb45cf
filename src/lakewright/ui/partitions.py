"""Partitions as rows of a table that is searched, sorted and cut into pages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lakewright.errors import InvalidError
from lakewright.model.file_group import FileGroup, TimelineView
from lakewright.services.compaction_debt import PartitionDebt
from lakewright.services.ttl.planner import TtlDecision
from lakewright.table.snapshot import FilesByPartition, Snapshot

Document = dict[str, Any]

MOST_ROWS = 500


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """What the files of one partition tell: those that a query sees now.

    `written_at` is when the newest write of rows completed there, as far as the files and the
    active timeline tell it apart from a service.
    """

    partition: str
    groups: int
    files: int
    bytes: int
    log_files: int
    log_bytes: int
    written_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which rows are wanted: those whose path contains a text, in an order, from one of them on."""

    search: str = ""
    sort: str = "partition"
    descending: bool = False
    offset: int = 0
    limit: int = 50

    def checked(self) -> Page:
        """The same, or InvalidError."""
        if self.sort not in SORTS:
            raise InvalidError("there is no such order", sort=self.sort, known=sorted(SORTS))
        if self.offset < 0 or not 0 < self.limit <= MOST_ROWS:
            raise InvalidError(
                f"a page has 1 to {MOST_ROWS} rows, from 0 on", offset=self.offset, limit=self.limit
            )
        return self


@dataclass(frozen=True, slots=True)
class PartitionRowWithTtl:
    """A row with what is due: why its log files wait, and when it expires."""

    row: PartitionRow
    debt: PartitionDebt | None = None
    decision: TtlDecision | None = None

    @property
    def expires_at(self) -> str:
        """When it expires; after all times if never."""
        told = self.decision.expires_at if self.decision is not None else None
        return told or "9"


SORTS: dict[str, Callable[[PartitionRowWithTtl], Any]] = {
    "partition": lambda each: each.row.partition,
    "bytes": lambda each: each.row.bytes,
    "groups": lambda each: each.row.groups,
    "log_bytes": lambda each: (each.row.log_bytes, each.row.log_files),
    "written_at": lambda each: each.row.written_at,
    "expires_at": lambda each: each.expires_at,
}


def partition_rows(snapshot: Snapshot, files: FilesByPartition) -> list[PartitionRow]:
    """The rows of partitions with these files, by path; those without a visible file are out."""
    view = snapshot.with_completion_times(snapshot.view(), files)
    by_partition: dict[str, list[FileGroup]] = {}
    for group in snapshot.groups(view, files):
        by_partition.setdefault(group.partition, []).append(group)
    services = snapshot.timeline.plans
    return [_row(path, groups, view, services) for path, groups in by_partition.items()]


def _row(
    partition: str, groups: list[FileGroup], view: TimelineView, services: Mapping[str, str]
) -> PartitionRow:
    files = logs = log_bytes = size = 0
    instants: set[str] = set()
    for group in groups:
        for each in group.slices:
            size += each.size
            files += len(each.logs) + (each.base is not None)
            instants.update(log.instant for log in each.logs)
            instants.update((each.base.instant,) if each.base is not None else ())
        newest = group.latest_merged_slice()
        logs += len(newest.logs)
        log_bytes += newest.log_size
    written = [at for at in instants if at not in services] or list(instants)
    newest_at = max((view.completion(at) or at for at in written), default="")
    return PartitionRow(partition, len(groups), files, size, logs, log_bytes, newest_at)


def page_of(
    rows: Iterable[PartitionRowWithTtl], page: Page
) -> tuple[int, list[PartitionRowWithTtl]]:
    """How many rows match, and those of one page."""
    wanted = page.search.strip().lower()
    found = [each for each in rows if not wanted or wanted in each.row.partition.lower()]
    # Rows that are equal stand in the order of their paths, whichever way the others go.
    if page.sort != "partition":
        found.sort(key=SORTS["partition"])
    found.sort(key=SORTS[page.sort], reverse=page.descending)
    return len(found), found[page.offset : page.offset + page.limit]


def totals_document(rows: Iterable[PartitionRow]) -> Document:
    """All partitions together."""
    known = list(rows)
    return {
        "partitions": len(known),
        "groups": sum(row.groups for row in known),
        "files": sum(row.files for row in known),
        "bytes": sum(row.bytes for row in known),
        "log_files": sum(row.log_files for row in known),
        "log_bytes": sum(row.log_bytes for row in known),
        "partitions_with_logs": sum(bool(row.log_files) for row in known),
    }


def row_document(
    judged: PartitionRowWithTtl, time_ms: Callable[[str | None], int | None]
) -> Document:
    """A row for the page."""
    debt, verdict = judged.debt, judged.decision
    document = asdict(judged.row) | {"written_ms": time_ms(judged.row.written_at)}
    if debt is not None:
        document |= {"debt_reason": debt.reason, "debt_since_ms": time_ms(debt.oldest)}
    if verdict is not None and verdict.policy is not None:
        policy = verdict.policy
        document |= {
            "policy": f"{policy.spec}: {policy.value} {policy.units}",
            "expires_ms": time_ms(verdict.expires_at),
            "expired": verdict.expired,
            "blocked_by": verdict.blocked_by or None,
            "rows_before_ms": time_ms(verdict.rows_before),
        }
    return document


def group_document(group: FileGroup, time_ms: Callable[[str | None], int | None]) -> Document:
    """A file group with its slices, the newest first."""
    return {
        "file_id": group.file_id,
        "bytes": sum(each.size for each in group.slices),
        "slices": [
            {
                "base_instant": each.base_instant,
                "base_ms": time_ms(each.base_instant),
                "base": None
                if each.base is None
                else {"name": each.base.name, "bytes": each.base.size},
                "logs": [
                    {"name": log.name, "bytes": log.size, "instant": log.instant}
                    for log in each.logs
                ],
                "bytes": each.size,
            }
            for each in reversed(group.slices)
        ],
    }
