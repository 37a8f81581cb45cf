"""Which partitions writers have preempted cancellable plans in, and how often in a row.

An execution that completes without some of its file groups records their partitions in its commit.
A plan that was preempted as a whole is rolled back, and the rollback names the write that preempted
it: the partitions are those of that write.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from lakewright.model.instant import Action, Instant, parse_instant
from lakewright.model.plans import PREEMPTED
from lakewright.table.rollback import load_rollback
from lakewright.table.snapshot import Snapshot

_MAX_ROLLBACKS = 50


def preempted_partitions(snapshot: Snapshot, action: Action) -> dict[str, int]:
    """Return how often plans of an action were preempted in a partition since the last success.

    Reads the last commit of the action, and the rollbacks since with the writes they name.
    """
    completed = snapshot.timeline.completed_services(action)
    last = max(completed, key=lambda i: i.completed_at or "", default=None)
    counts = Counter(parse_preempted(snapshot.commits([last])[0].extra) if last is not None else {})
    since = (last.completed_at or "") if last is not None else ""
    writes = {i.requested_at: i for i in snapshot.timeline.completed_writes}
    rollbacks = [
        i for i in snapshot.timeline.completed(Action.ROLLBACK) if (i.completed_at or "") > since
    ]
    causes: list[Instant] = []
    for rollback in rollbacks[-_MAX_ROLLBACKS:]:
        metadata = load_rollback(snapshot, rollback)
        targets = {target.action for target in metadata.instants}
        named = parse_instant(metadata.caused_by or "")
        cause = writes.get(named.requested_at) if named is not None else None
        if cause is not None and targets & {action, action.completed_as}:
            causes.append(cause)
    for commit in snapshot.commits(causes):
        counts.update(commit.stats.keys())
    return dict(counts)


def parse_preempted(extra: Mapping[str, str]) -> dict[str, int]:
    """Return what a commit records; nothing where it records nothing, or is damaged."""
    try:
        return {str(p): int(count) for p, count in json.loads(extra.get(PREEMPTED, "{}")).items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def format_preempted(
    before: Mapping[str, int], planned: Iterable[str], preempted: Iterable[str]
) -> dict[str, str]:
    """Return the extra metadata of an execution that was preempted in some partitions.

    The counts `before` of partitions that it had not planned stay as they are.
    """
    done = set(planned)
    counts = {partition: count for partition, count in before.items() if partition not in done}
    counts |= {partition: before.get(partition, 0) + 1 for partition in preempted}
    return {PREEMPTED: json.dumps(counts, sort_keys=True, separators=(",", ":"))} if counts else {}
