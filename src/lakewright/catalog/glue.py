"""The catalog of AWS Glue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from lakewright.catalog.base import (
    INPUT,
    INPUT_REALTIME,
    OUTPUT,
    SERDE,
    CatalogTable,
    TableName,
    Values,
)
from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.utils.optional_imports import imported

_EXTRA = "glue"
# The most that one call takes.
_MOST_ADDED = 100
_MOST_DROPPED = 25
_MOST_ASKED = 1000
_MISSING = "EntityNotFoundException"
_THERE = "AlreadyExistsException"
_PASSING = {
    "InternalServiceException",
    "OperationTimeoutException",
    "ThrottlingException",
    "ConcurrentModificationException",
}
_KEPT_BY_UPDATE = ("Description", "Owner", "Retention", "TableType")

Item = TypeVar("Item")


def glue_catalog(region: str | None, endpoint: str | None) -> GlueCatalog:
    """The catalog of an account in a region, with the credentials that boto3 finds."""
    boto3 = imported("boto3", _EXTRA)
    errors = imported("botocore.exceptions", _EXTRA)
    try:
        client = boto3.client("glue", region_name=region, endpoint_url=endpoint)
    except errors.BotoCoreError as error:
        raise InvalidError("AWS Glue cannot be asked", reason=str(error)) from error
    return GlueCatalog(client, errors)


class GlueCatalog:
    """See `MetaCatalog`."""

    kind = "glue"

    def __init__(self, client: Any, errors: Any) -> None:
        self._client = client
        self._errors = errors

    def ensure_database(self, database: str, *, create: bool) -> None:
        """See `MetaCatalog`."""
        if self._ask(lambda: self._client.get_database(Name=database), _MISSING) is not None:
            return
        if not create:
            raise InvalidError("Glue has no such database", database=database)
        told = {"Name": database}
        self._ask(lambda: self._client.create_database(DatabaseInput=told), _THERE)

    def load(self, name: TableName) -> CatalogTable | None:
        """See `MetaCatalog`."""
        found = self._get(name)
        if found is None:
            return None
        storage = found.get("StorageDescriptor", {})
        return CatalogTable(
            location=storage.get("Location", ""),
            columns=_pairs(storage.get("Columns", ())),
            partition_columns=_pairs(found.get("PartitionKeys", ())),
            properties=dict(found.get("Parameters", {})),
            serde=dict(storage.get("SerdeInfo", {}).get("Parameters", {})),
        )

    def create(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        told = {"TableType": "EXTERNAL_TABLE", **_table_input(name, table)}
        self._ask(
            lambda: self._client.create_table(DatabaseName=name.database, TableInput=told), _THERE
        )

    def alter(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        found = self._get(name) or {}
        kept = {key: found[key] for key in _KEPT_BY_UPDATE if key in found}
        told = {**kept, **_table_input(name, table)}
        self._ask(lambda: self._client.update_table(DatabaseName=name.database, TableInput=told))

    def partitions(
        self, name: TableName, wanted: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """See `MetaCatalog`."""
        found = self._all(name) if wanted is None else self._some(name, wanted)
        return {tuple(each["Values"]): each["StorageDescriptor"]["Location"] for each in found}

    def _all(self, name: TableName) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("get_partitions")
        where = {"DatabaseName": name.database, "TableName": name.table}
        told = {**where, "ExcludeColumnSchema": True}
        found: list[dict[str, Any]] = self._asked(
            lambda: [p for page in pages.paginate(**told) for p in page["Partitions"]]
        )
        return found

    def _some(self, name: TableName, wanted: Iterable[Values]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for some in _batches(sorted(wanted), _MOST_ASKED):
            keys = [{"Values": list(values)} for values in some]
            found += self._batch("batch_get_partition", name, PartitionsToGet=keys)["Partitions"]
        return found

    def add(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        for some in _batches(new, _MOST_ADDED):
            told = [_partition_input(table, values, location) for values, location in some]
            answer = self._batch("batch_create_partition", name, PartitionInputList=told)
            self._require(answer, _THERE)

    def move(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        for some in _batches(new, _MOST_ADDED):
            told = [
                {
                    "PartitionValueList": list(values),
                    "PartitionInput": _partition_input(table, values, location),
                }
                for values, location in some
            ]
            self._require(self._batch("batch_update_partition", name, Entries=told), None)

    def drop(self, name: TableName, gone: Sequence[Values]) -> None:
        """See `MetaCatalog`."""
        for some in _batches(gone, _MOST_DROPPED):
            told = [{"Values": list(values)} for values in some]
            answer = self._batch("batch_delete_partition", name, PartitionsToDelete=told)
            self._require(answer, _MISSING)

    def _get(self, name: TableName) -> dict[str, Any] | None:
        found = self._ask(
            lambda: self._client.get_table(DatabaseName=name.database, Name=name.table), _MISSING
        )
        table: dict[str, Any] | None = found["Table"] if found is not None else None
        return table

    def _batch(self, call: str, name: TableName, **told: Any) -> Any:
        where = {"DatabaseName": name.database, "TableName": name.table}
        return self._asked(lambda: getattr(self._client, call)(**where, **told))

    def _require(self, answer: Any, fine: str | None) -> None:
        """A call for many fails for some of them without an error of its own."""
        for each in answer.get("Errors", ()):
            detail = each.get("ErrorDetail") or each.get("PartitionError") or {}
            if detail.get("ErrorCode") != fine:
                raise _translate_error(
                    detail.get("ErrorCode", ""), detail.get("ErrorMessage", str(each))
                )

    def _asked(self, ask: Callable[[], Any]) -> Any:
        return self._ask(ask)

    def _ask(self, ask: Callable[[], Any], nothing: str | None = None) -> Any:
        """What Glue answers; None for the one error that says that there is none."""
        try:
            return ask()
        except self._errors.ClientError as error:
            detail = error.response.get("Error", {})
            if nothing is not None and detail.get("Code") == nothing:
                return None
            raise _translate_error(
                detail.get("Code", ""), detail.get("Message", str(error))
            ) from error
        except self._errors.BotoCoreError as error:
            raise UnavailableError("AWS Glue does not answer", reason=str(error)) from error


def _translate_error(code: str, message: str) -> LakewrightError:
    if code == "ConcurrentModificationException":
        return ConflictError("somebody else changes the table in Glue", reason=message)
    if code in _PASSING:
        return UnavailableError("AWS Glue does not answer", code=code, reason=message)
    return InvalidError("AWS Glue refuses", code=code, reason=message)


def _pairs(columns: Iterable[dict[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((column["Name"], column.get("Type", "")) for column in columns)


def _columns(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"Name": name, "Type": kind} for name, kind in pairs]


def _storage(table: CatalogTable, location: str) -> dict[str, Any]:
    return {
        "Columns": _columns(table.columns),
        "Location": location,
        "InputFormat": INPUT_REALTIME if table.realtime else INPUT,
        "OutputFormat": OUTPUT,
        "SerdeInfo": {"SerializationLibrary": SERDE, "Parameters": dict(table.serde)},
    }


def _table_input(name: TableName, table: CatalogTable) -> dict[str, Any]:
    return {
        "Name": name.table,
        "StorageDescriptor": _storage(table, table.location),
        "PartitionKeys": _columns(table.partition_columns),
        "Parameters": dict(table.properties),
    }


def _partition_input(table: CatalogTable, values: Values, location: str) -> dict[str, Any]:
    return {"Values": list(values), "StorageDescriptor": _storage(table, location)}


def _batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while some := list(islice(left, size)):
        yield some
