"""The AWS Glue catalog."""

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
# Limits of Glue for one call.
_MAX_ADDED = 100
_MAX_DROPPED = 25
_MAX_REQUESTED = 1000
_MISSING = "EntityNotFoundException"
_EXISTS = "AlreadyExistsException"
_RETRYABLE_CODES = {
    "InternalServiceException",
    "OperationTimeoutException",
    "ThrottlingException",
    "ConcurrentModificationException",
}
_RETAINED_BY_UPDATE = ("Description", "Owner", "Retention", "TableType")

Item = TypeVar("Item")


def glue_catalog(region: str | None, endpoint: str | None) -> GlueCatalog:
    """Return the catalog of an account in a region, with the credentials that boto3 finds."""
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
        if (
            self._call_or_none(lambda: self._client.get_database(Name=database), _MISSING)
            is not None
        ):
            return
        if not create:
            raise InvalidError("Glue has no such database", database=database)
        database_input = {"Name": database}
        self._call_or_none(
            lambda: self._client.create_database(DatabaseInput=database_input), _EXISTS
        )

    def load(self, name: TableName) -> CatalogTable | None:
        """See `MetaCatalog`."""
        table = self._get(name)
        if table is None:
            return None
        storage = table.get("StorageDescriptor", {})
        return CatalogTable(
            location=storage.get("Location", ""),
            columns=_pairs(storage.get("Columns", ())),
            partition_columns=_pairs(table.get("PartitionKeys", ())),
            properties=dict(table.get("Parameters", {})),
            serde=dict(storage.get("SerdeInfo", {}).get("Parameters", {})),
        )

    def create(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        table_input = {"TableType": "EXTERNAL_TABLE", **_table_input(name, table)}
        self._call_or_none(
            lambda: self._client.create_table(DatabaseName=name.database, TableInput=table_input),
            _EXISTS,
        )

    def alter(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        registered = self._get(name) or {}
        retained = {key: registered[key] for key in _RETAINED_BY_UPDATE if key in registered}
        table_input = {**retained, **_table_input(name, table)}
        self._call_or_none(
            lambda: self._client.update_table(DatabaseName=name.database, TableInput=table_input)
        )

    def partitions(
        self, name: TableName, requested: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """See `MetaCatalog`."""
        partitions = (
            self._all_partitions(name)
            if requested is None
            else self._some_partitions(name, requested)
        )
        return {
            tuple(partition["Values"]): partition["StorageDescriptor"]["Location"]
            for partition in partitions
        }

    def _all_partitions(self, name: TableName) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("get_partitions")
        table_arguments = {"DatabaseName": name.database, "TableName": name.table}
        arguments = {**table_arguments, "ExcludeColumnSchema": True}
        partitions: list[dict[str, Any]] = self._call(
            lambda: [p for page in pages.paginate(**arguments) for p in page["Partitions"]]
        )
        return partitions

    def _some_partitions(
        self, name: TableName, requested: Iterable[Values]
    ) -> list[dict[str, Any]]:
        partitions: list[dict[str, Any]] = []
        for batch in _batches(sorted(requested), _MAX_REQUESTED):
            keys = [{"Values": list(values)} for values in batch]
            while keys:
                response = self._batch("batch_get_partition", name, PartitionsToGet=keys)
                partitions += response["Partitions"]
                # Glue may leave keys for another request, but answers some of them each time.
                unprocessed = response.get("UnprocessedKeys") or []
                if len(unprocessed) >= len(keys):
                    raise UnavailableError(
                        "Glue returned none of the requested partitions: sync again",
                        table=str(name),
                        partitions=len(keys),
                    )
                keys = unprocessed
        return partitions

    def add(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        for batch in _batches(new, _MAX_ADDED):
            inputs = [_partition_input(table, values, location) for values, location in batch]
            response = self._batch("batch_create_partition", name, PartitionInputList=inputs)
            self._check_errors(response, _EXISTS)

    def move(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        for batch in _batches(new, _MAX_ADDED):
            entries = [
                {
                    "PartitionValueList": list(values),
                    "PartitionInput": _partition_input(table, values, location),
                }
                for values, location in batch
            ]
            self._check_errors(self._batch("batch_update_partition", name, Entries=entries), None)

    def drop(self, name: TableName, dropped: Sequence[Values]) -> None:
        """See `MetaCatalog`."""
        for batch in _batches(dropped, _MAX_DROPPED):
            keys = [{"Values": list(values)} for values in batch]
            response = self._batch("batch_delete_partition", name, PartitionsToDelete=keys)
            self._check_errors(response, _MISSING)

    def _get(self, name: TableName) -> dict[str, Any] | None:
        response = self._call_or_none(
            lambda: self._client.get_table(DatabaseName=name.database, Name=name.table), _MISSING
        )
        table: dict[str, Any] | None = response["Table"] if response is not None else None
        return table

    def _batch(self, call: str, name: TableName, **arguments: Any) -> Any:
        table_arguments = {"DatabaseName": name.database, "TableName": name.table}
        return self._call(lambda: getattr(self._client, call)(**table_arguments, **arguments))

    def _check_errors(self, response: Any, ignored: str | None) -> None:
        """Raise the errors of a batch call, which reports them for single items in its response."""
        for item in response.get("Errors", ()):
            detail = item.get("ErrorDetail") or item.get("PartitionError") or {}
            if detail.get("ErrorCode") != ignored:
                raise _translate_error(
                    detail.get("ErrorCode", ""), detail.get("ErrorMessage", str(item))
                )

    def _call(self, call: Callable[[], Any]) -> Any:
        return self._call_or_none(call)

    def _call_or_none(self, call: Callable[[], Any], ignored: str | None = None) -> Any:
        """Return the response of a call; None for the error code `ignored`."""
        try:
            return call()
        except self._errors.ClientError as error:
            detail = error.response.get("Error", {})
            if ignored is not None and detail.get("Code") == ignored:
                return None
            raise _translate_error(
                detail.get("Code", ""), detail.get("Message", str(error))
            ) from error
        except self._errors.BotoCoreError as error:
            raise UnavailableError("AWS Glue does not answer", reason=str(error)) from error


def _translate_error(code: str, message: str) -> LakewrightError:
    if code == "ConcurrentModificationException":
        return ConflictError("another process is changing the table in Glue", reason=message)
    if code in _RETRYABLE_CODES:
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
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
