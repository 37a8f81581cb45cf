"""What Lakewright and real Hudi are both told about their tables."""

from __future__ import annotations

from bench.plan import Kind

TABLE_TYPES = {
    Kind.COW: "COPY_ON_WRITE",
    Kind.MOR: "MERGE_ON_READ",
    Kind.BUCKET: "MERGE_ON_READ",
    Kind.TINY: "COPY_ON_WRITE",
    Kind.TINY_NOT_DURABLE: "COPY_ON_WRITE",
    Kind.FEED: "COPY_ON_WRITE",
}
BUCKETS = 4
COMPACT_NOW = {"hoodie.compact.inline.max.delta.commits": "1"}
INCREMENTAL = "hoodie.table.services.incremental.enabled"
SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"


def index_options(kind: Kind) -> dict[str, str]:
    """How a key's file group is found."""
    if kind is not Kind.BUCKET:
        return {"hoodie.index.type": "SIMPLE"}
    return {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": str(BUCKETS)}
