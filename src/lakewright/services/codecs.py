"""How plans and results of each action stand on the timeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lakewright.core.instant import COMPLETED_NAME
from lakewright.core.plans import CANCELLABLE, SERVICE_KEY, ClusteringPlan, RequestedReplace
from lakewright.errors import CorruptError, InvalidError
from lakewright.format.metadata import (
    format_clean,
    format_clean_plan,
    format_compaction_plan,
    format_requested_replace,
    parse_clean,
    parse_clean_plan,
    parse_compaction_plan,
    parse_requested_replace,
)


@dataclass(frozen=True, slots=True)
class PlanCodec:
    """A plan to the bytes of its requested file, and back."""

    format: Callable[[Any], bytes]
    parse: Callable[[bytes], Any]


def _format_clustering(plan: ClusteringPlan) -> bytes:
    return format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))


def _parse_clustering(data: bytes) -> ClusteringPlan:
    plan = parse_requested_replace(data).plan
    if plan is None:
        raise CorruptError("a clustering has no plan")
    return plan


_COMPACTION = PlanCodec(format_compaction_plan, parse_compaction_plan)
_PLANS = {
    "compaction": _COMPACTION,
    "logcompaction": _COMPACTION,
    "clustering": PlanCodec(_format_clustering, _parse_clustering),
    "clean": PlanCodec(format_clean_plan, parse_clean_plan),
}
PLAIN_RESULTS = {"clean": PlanCodec(format_clean, parse_clean)}


def plan_codec(action: str) -> PlanCodec:
    """How plans of an action are written."""
    if action not in _PLANS:
        raise InvalidError("no service can have this action", action=action, known=[*_PLANS])
    return _PLANS[action]


def signed(plan: Any, name: str, action: str, *, cancellable: bool = False) -> Any:
    """The plan with the name of its service, where that is another than its action.

    And with the mark of those that others need not wait for, if it is such a plan.
    """
    added = {} if name == action else {SERVICE_KEY: name}
    if cancellable and action in COMPLETED_NAME:
        added[CANCELLABLE] = "true"
    return replace(plan, extra={**plan.extra, **added}) if added else plan
