"""Why a plan left partitions out: kept with the plan, so that anybody can ask later."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from lakewright.core.plans import MISSING_REASONS


@dataclass
class Left:
    """The partitions that a plan does not schedule completely, each with the first reason met."""

    reasons: dict[str, str] = field(default_factory=dict)

    def because(self, partition: str, reason: str) -> None:
        """Note that something in a partition is left; an earlier reason stands."""
        self.reasons.setdefault(partition, reason)

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions, sorted."""
        return tuple(sorted(self.reasons))

    def extra(self) -> dict[str, str]:
        """What is stored in the plan, for `missing_reasons`; nothing if nothing is left."""
        if not self.reasons:
            return {}
        by_reason: dict[str, list[str]] = {}
        for partition, reason in sorted(self.reasons.items()):
            by_reason.setdefault(reason, []).append(partition)
        return {MISSING_REASONS: json.dumps(by_reason, separators=(",", ":"))}
