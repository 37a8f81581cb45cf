"""What tests of chains of reads have in common: how writers get along, and services at once."""

from __future__ import annotations

OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
NON_BLOCKING = {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"}
BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
SERVICES = {
    "compaction": {"hoodie.compact.inline.max.delta.commits": "1"},
    "logcompaction": {"hoodie.log.compaction.blocks.threshold": "2"},
    "clustering": {"hoodie.clustering.inline.max.commits": "1"},
    "clean": {"hoodie.clean.commits.retained": "1"},
    "archive": {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    },
}
KEYS = [f"k{n}" for n in range(4)]
LATE = [0, 0, 0, 5, 50]
