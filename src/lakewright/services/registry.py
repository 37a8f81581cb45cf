"""The services there are, by name; open to those that users add."""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.errors import InvalidError
from lakewright.model.instant import Action
from lakewright.model.plans import SERVICE_KEY
from lakewright.options import ADDED_OPTIONS
from lakewright.services.archiving.service import Archiving
from lakewright.services.base import AnyTableService, plan_codec
from lakewright.services.cleaning.service import Cleaning
from lakewright.services.clustering.service import Clustering
from lakewright.services.compaction.service import Compaction
from lakewright.services.log_compaction import LogCompaction
from lakewright.services.ttl.service import PartitionTtl

_OWN: tuple[AnyTableService, ...] = (
    Compaction(),
    LogCompaction(),
    Clustering(),
    Cleaning(),
    Archiving(),
    PartitionTtl(),
)
_SERVICES: dict[str, AnyTableService] = {service.name: service for service in _OWN}


def register(service: AnyTableService) -> None:
    """Add a service, or put another in the place of one that was added; own ones stay."""
    if service.action:
        plan_codec(service.action)
    if any(service.name == own.name for own in _OWN):
        raise InvalidError("a service of this name is built in", service=service.name)
    _SERVICES[service.name] = service
    ADDED_OPTIONS[f"service {service.name}"] = frozenset(service.keys)


def unregister(name: str) -> None:
    """Take an added service out again."""
    if any(name == own.name for own in _OWN):
        raise InvalidError("a service of this name is built in", service=name)
    _SERVICES.pop(name, None)
    ADDED_OPTIONS.pop(f"service {name}", None)


def services() -> tuple[AnyTableService, ...]:
    """All services."""
    return tuple(_SERVICES.values())


def service_keys() -> frozenset[str]:
    """The options that some service reads."""
    return frozenset().union(*(service.keys for service in services()))


def service_by_name(name: str) -> AnyTableService:
    """The service that people call by a name."""
    found = _SERVICES.get(name.strip().lower())
    if found is None:
        raise InvalidError("there is no such service", service=name, known=sorted(_SERVICES))
    return found


def service_of_plan(action: Action, extra: Mapping[str, str]) -> AnyTableService:
    """Who executes a plan: the service that made it, else the one that the action names."""
    name = extra.get(SERVICE_KEY)
    if name is not None and name in _SERVICES:
        return _SERVICES[name]
    found = next((service for service in _OWN if service.action == action), None)
    if found is None:
        raise InvalidError("no service executes plans of this action", action=action)
    return found
