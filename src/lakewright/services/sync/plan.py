"""What a catalog must be told, from what it knows and what a table is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakewright.errors import ConflictError
from lakewright.services.sync.catalog import (
    HUDI,
    LAST_COMPLETION,
    LAST_REQUEST,
    PROVIDER,
    Registered,
    Values,
)

_SCHEMA = "spark.sql.sources.schema"
# What catalogs themselves keep among a table's properties.
_OURS = ("lakewright.", "spark.sql.", LAST_REQUEST, LAST_COMPLETION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A table as it is: what should be registered.

    `present` and `gone` are its partitions that are told, by values with locations; `whole` says
    that `present` are all there are.
    """

    table: Registered
    present: Mapping[Values, str]
    gone: frozenset[Values] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a catalog is told, in this order; empty where it knows all already."""

    create: Registered | None = None
    alter: Registered | None = None
    add: tuple[tuple[Values, str], ...] = ()
    move: tuple[tuple[Values, str], ...] = ()
    drop: tuple[Values, ...] = ()

    def __bool__(self) -> bool:
        return any((self.create, self.alter, self.add, self.move, self.drop))


def plan_sync(
    known: Registered | None, partitions: Mapping[Values, str], wanted: Wanted
) -> Changes:
    """The changes that make a catalog know a table as it is.

    `partitions` are those that the catalog has of the ones in question: of all, if the table's
    partitions are `whole`.
    """
    present = wanted.present
    add = tuple((v, at) for v, at in sorted(present.items()) if v not in partitions)
    move = tuple(
        (v, at) for v, at in sorted(present.items()) if _plain(partitions.get(v, at)) != _plain(at)
    )
    gone = partitions.keys() - present.keys()
    drop = tuple(sorted(gone if wanted.whole else gone & wanted.gone))
    if known is None:
        return Changes(create=wanted.table, add=add)
    merged = _merged(known, wanted.table)
    return Changes(alter=merged if merged != known else None, add=add, move=move, drop=drop)


def require_same(name: object, known: Registered, wanted: Registered) -> None:
    """Refuse to take a name that stands for something else."""
    if _plain(known.location) != _plain(wanted.location):
        raise ConflictError(
            "the catalog has another table of this name: drop it there, or give another name",
            table=str(name),
            location=known.location,
            wanted=wanted.location,
        )
    before = [column for column, _ in known.partition_columns]
    after = [column for column, _ in wanted.partition_columns]
    if before != after:
        raise ConflictError(
            "the table is registered with other partition columns, which no catalog can change: "
            "drop it there (its files stay), then sync again",
            table=str(name),
            registered=before,
            wanted=after,
        )


def trusted_position(known: Registered | None) -> str | None:
    """The completion time up to which a catalog knows a table; None if that cannot be told."""
    if known is None or known.properties.get(PROVIDER) != HUDI:
        return None
    return known.properties.get(LAST_COMPLETION) or None


def _merged(known: Registered, wanted: Registered) -> Registered:
    """What is registered, with what is wanted; properties of others stay, ours that ended go."""
    kept = {
        key: value
        for key, value in known.properties.items()
        if not key.startswith(_OURS) or key == "spark.sql.create.version"
    }
    return replace(
        known,
        columns=wanted.columns,
        # The type of a partition column is what it was when it was registered.
        properties={**kept, **wanted.properties},
        serde={**known.serde, **wanted.serde},
    )


def _plain(location: str) -> str:
    """A location, however its scheme is written: `file:/a` is `file:///a`, `s3a` is `s3`."""
    scheme, colon, rest = location.rstrip("/").partition(":")
    if not colon:
        return location.rstrip("/")
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
    rest = "/" + rest.lstrip("/") if scheme == "file" else rest
    return rest if scheme == "file" else f"{scheme}:{rest}"
