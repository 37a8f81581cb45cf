"""The registry of table services, by name: the built-in ones and those that users add."""

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

_BUILT_IN: tuple[AnyTableService, ...] = (
    Compaction(),
    LogCompaction(),
    Clustering(),
    Cleaning(),
    Archiving(),
    PartitionTtl(),
)
_SERVICES: dict[str, AnyTableService] = {service.name: service for service in _BUILT_IN}


def register(service: AnyTableService) -> None:
    """Add a service, or replace one that was added; a built-in service cannot be replaced."""
    if service.action:
        plan_codec(service.action)
    if any(service.name == built_in.name for built_in in _BUILT_IN):
        raise InvalidError("a service of this name is built in", service=service.name)
    _SERVICES[service.name] = service
    ADDED_OPTIONS[f"service {service.name}"] = frozenset(service.keys)


def unregister(name: str) -> None:
    """Remove a service that was added."""
    if any(name == built_in.name for built_in in _BUILT_IN):
        raise InvalidError("a service of this name is built in", service=name)
    _SERVICES.pop(name, None)
    ADDED_OPTIONS.pop(f"service {name}", None)


def services() -> tuple[AnyTableService, ...]:
    """Return all services, the built-in ones first."""
    return tuple(_SERVICES.values())


def service_keys() -> frozenset[str]:
    """Return the keys of the options that any service reads."""
    return frozenset().union(*(service.keys for service in services()))


def service_by_name(name: str) -> AnyTableService:
    """Return the service with a name, in any case; InvalidError if there is none."""
    service = _SERVICES.get(name.strip().lower())
    if service is None:
        raise InvalidError("there is no such service", service=name, known=sorted(_SERVICES))
    return service


def service_of_plan(action: Action, extra: Mapping[str, str]) -> AnyTableService:
    """Return the service that executes a plan: the one that made it, else that of the action."""
    name = extra.get(SERVICE_KEY)
    if name is not None and name in _SERVICES:
        return _SERVICES[name]
    built_in = next((service for service in _BUILT_IN if service.action == action), None)
    if built_in is None:
        raise InvalidError("no service executes plans of this action", action=action)
    return built_in
