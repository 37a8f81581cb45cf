"""What the race is to show: the ratios that Lakewright aims at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one ratio."""

    workload: str
    against: str
    bound: float
    at_most: bool = False

    def is_met(self, ratio: float) -> bool:
        """Does the ratio keep the bound?"""
        return ratio <= self.bound if self.at_most else ratio >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g}"


def _targets(
    workload: str,
    hudi: float | None = None,
    best_peer: float | None = None,
    limit: float | None = None,
    slope: float | None = None,
) -> tuple[Target, ...]:
    least = {"hudi": hudi, "best_peer": best_peer}
    most = {"limit": limit, "slope": slope}
    return (
        *(Target(workload, name, bound) for name, bound in least.items() if bound is not None),
        *(Target(workload, name, bound, True) for name, bound in most.items() if bound is not None),
    )


TARGETS = (
    *_targets("load", hudi=3, best_peer=1.2, limit=3),
    *_targets("upsert_spread_cow", hudi=6, best_peer=2, limit=3),
    *_targets("upsert_spread_mor", hudi=8),
    *_targets("upsert_spread_mor_bucket", hudi=8),
    *_targets("upsert_hot", hudi=4, best_peer=1.5),
    *_targets("delete", hudi=4, best_peer=1.5),
    *_targets("tiny_commit", hudi=5, best_peer=1.5, slope=1.25),
    *_targets("scan", hudi=1, best_peer=0.95, limit=1.1),
    *_targets("scan_mor", hudi=4),
    *_targets("changes", hudi=3, best_peer=1),
    *_targets("compact", hudi=5, limit=3),
    *_targets("plan_10000", hudi=20),
    Target("plan_10000", "hudi_incremental", 3),
    Target("ttl_500", "hudi_find", 10),
    Target("ttl_10000", "hudi_find", 10),
    *_targets("memory", hudi=1, best_peer=1),
)
