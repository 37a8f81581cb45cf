"""The partitions panel: one row per partition, with search, sorting and pagination. Pure."""

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

MAX_ROWS = 500


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """Counts and sizes of the files of one partition that a query reads now.

    `written_at` is the completion time of the newest write of rows to the partition. Instants of
    table services do not count, as far as the active timeline identifies them.
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
    """Which rows to return: a search text in the path, a sort order, an offset and a limit."""

    search: str = ""
    sort: str = "partition"
    descending: bool = False
    offset: int = 0
    limit: int = 50

    def checked(self) -> Page:
        """Return the page itself; InvalidError if the order, offset or limit is invalid."""
        if self.sort not in SORTS:
            raise InvalidError("there is no such order", sort=self.sort, known=sorted(SORTS))
        if self.offset < 0 or not 0 < self.limit <= MAX_ROWS:
            raise InvalidError(
                f"a page has 1 to {MAX_ROWS} rows, from 0 on", offset=self.offset, limit=self.limit
            )
        return self


@dataclass(frozen=True, slots=True)
class PartitionRowWithTtl:
    """A row with its compaction debt and its TTL decision."""

    row: PartitionRow
    debt: PartitionDebt | None = None
    decision: TtlDecision | None = None

    @property
    def expires_at(self) -> str:
        """The time at which it expires; a text after all times if it never does."""
        expires_at = self.decision.expires_at if self.decision is not None else None
        return expires_at or "9"


SORTS: dict[str, Callable[[PartitionRowWithTtl], Any]] = {
    "partition": lambda entry: entry.row.partition,
    "bytes": lambda entry: entry.row.bytes,
    "groups": lambda entry: entry.row.groups,
    "log_bytes": lambda entry: (entry.row.log_bytes, entry.row.log_files),
    "written_at": lambda entry: entry.row.written_at,
    "expires_at": lambda entry: entry.expires_at,
}


def partition_rows(snapshot: Snapshot, files: FilesByPartition) -> list[PartitionRow]:
    """The rows of partitions with these files; partitions without a visible file are left out."""
    view = snapshot.with_completion_times(snapshot.view(), files)
    by_partition: dict[str, list[FileGroup]] = {}
    for group in snapshot.groups(view, files):
        by_partition.setdefault(group.partition, []).append(group)
    plans = snapshot.timeline.plans
    return [_row(path, groups, view, plans) for path, groups in by_partition.items()]


def _row(
    partition: str, groups: list[FileGroup], view: TimelineView, plans: Mapping[str, str]
) -> PartitionRow:
    files = log_files = log_bytes = size = 0
    instants: set[str] = set()
    for group in groups:
        for file_slice in group.slices:
            size += file_slice.size
            files += len(file_slice.logs) + (file_slice.base is not None)
            instants.update(log.instant for log in file_slice.logs)
            instants.update((file_slice.base.instant,) if file_slice.base is not None else ())
        latest = group.latest_merged_slice()
        log_files += len(latest.logs)
        log_bytes += latest.log_size
    writes = [at for at in instants if at not in plans] or list(instants)
    written_at = max((view.completion(at) or at for at in writes), default="")
    return PartitionRow(partition, len(groups), files, size, log_files, log_bytes, written_at)


def page_of(
    rows: Iterable[PartitionRowWithTtl], page: Page
) -> tuple[int, list[PartitionRowWithTtl]]:
    """Return the number of rows that match and the rows of one page."""
    search = page.search.strip().lower()
    matching = [row for row in rows if not search or search in row.row.partition.lower()]
    # Rows with equal sort keys stay in ascending order of path, also if the order is descending.
    if page.sort != "partition":
        matching.sort(key=SORTS["partition"])
    matching.sort(key=SORTS[page.sort], reverse=page.descending)
    return len(matching), matching[page.offset : page.offset + page.limit]


def totals_document(rows: Iterable[PartitionRow]) -> Document:
    """The sums over all partitions."""
    summed = list(rows)
    return {
        "partitions": len(summed),
        "groups": sum(row.groups for row in summed),
        "files": sum(row.files for row in summed),
        "bytes": sum(row.bytes for row in summed),
        "log_files": sum(row.log_files for row in summed),
        "log_bytes": sum(row.log_bytes for row in summed),
        "partitions_with_logs": sum(bool(row.log_files) for row in summed),
    }


def row_document(row: PartitionRowWithTtl, time_ms: Callable[[str | None], int | None]) -> Document:
    """The JSON document of a row."""
    debt, decision = row.debt, row.decision
    document = asdict(row.row) | {"written_ms": time_ms(row.row.written_at)}
    if debt is not None:
        document |= {"debt_reason": debt.reason, "debt_since_ms": time_ms(debt.oldest)}
    if decision is not None and decision.policy is not None:
        policy = decision.policy
        document |= {
            "policy": f"{policy.spec}: {policy.value} {policy.units}",
            "expires_ms": time_ms(decision.expires_at),
            "expired": decision.expired,
            "blocked_by": decision.blocked_by or None,
            "rows_before_ms": time_ms(decision.rows_before),
        }
    return document


def group_document(group: FileGroup, time_ms: Callable[[str | None], int | None]) -> Document:
    """A file group with its file slices, newest first."""
    return {
        "file_id": group.file_id,
        "bytes": sum(file_slice.size for file_slice in group.slices),
        "slices": [
            {
                "base_instant": file_slice.base_instant,
                "base_ms": time_ms(file_slice.base_instant),
                "base": None
                if file_slice.base is None
                else {"name": file_slice.base.name, "bytes": file_slice.base.size},
                "logs": [
                    {"name": log.name, "bytes": log.size, "instant": log.instant}
                    for log in file_slice.logs
                ],
                "bytes": file_slice.size,
            }
            for file_slice in reversed(group.slices)
        ],
    }
