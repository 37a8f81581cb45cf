"""A Hive metastore over Thrift, without Hive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lakewright.catalog.base import (
    INPUT,
    INPUT_REALTIME,
    OUTPUT,
    SERDE,
    CatalogTable,
    TableName,
    Values,
)
from lakewright.errors import InvalidError, LakewrightError, UnavailableError
from lakewright.utils.optional_imports import imported

_EXTRA = "hive"
_PORT = 9083
_TIMEOUT_MS = 60_000
_NO_LIMIT = -1

Result = TypeVar("Result")


@contextmanager
def hive_catalog(uris: Sequence[str]) -> Iterator[HiveCatalog]:
    """Connect to the metastore at the first address that answers."""
    thrift = imported("pymetastore.hive_metastore.ThriftHiveMetastore", _EXTRA)
    types = imported("pymetastore.hive_metastore.ttypes", _EXTRA)
    sockets = imported("thrift.transport.TSocket", _EXTRA)
    transports = imported("thrift.transport.TTransport", _EXTRA)
    protocols = imported("thrift.protocol.TBinaryProtocol", _EXTRA)
    failures = {}
    for uri in uris:
        host, port = _address(uri)
        socket = sockets.TSocket(host, port)
        socket.setTimeout(_TIMEOUT_MS)
        transport = transports.TBufferedTransport(socket)
        try:
            transport.open()
        except transports.TTransportException as error:
            failures[uri] = str(error)
            continue
        try:
            client = thrift.Client(protocols.TBinaryProtocol(transport))
            yield HiveCatalog(client, types, transports.TTransportException)
        finally:
            transport.close()
        return
    raise UnavailableError("no Hive metastore answers", tried=failures)


def _address(uri: str) -> tuple[str, int]:
    parts = urlsplit(uri if "://" in uri else f"thrift://{uri}")
    if parts.scheme != "thrift" or not parts.hostname:
        raise InvalidError("an address such as thrift://host:9083 expected", uri=uri)
    return parts.hostname, parts.port or _PORT


class HiveCatalog:
    """See `MetaCatalog`."""

    kind = "hms"

    def __init__(self, client: Any, kinds: Any, broken: type[Exception]) -> None:
        self._client = client
        self._types = kinds
        self._connection_error = broken

    def ensure_database(self, database: str, *, create: bool) -> None:
        """See `MetaCatalog`."""
        missing = self._types.NoSuchObjectException
        if self._call(lambda: self._client.get_database(database), missing) is not None:
            return
        if not create:
            raise InvalidError("the metastore has no such database", database=database)
        definition = self._types.Database(name=database, parameters={})
        self._call(
            lambda: self._client.create_database(definition), self._types.AlreadyExistsException
        )

    def load(self, name: TableName) -> CatalogTable | None:
        """See `MetaCatalog`."""
        table = self._get(name)
        if table is None:
            return None
        return CatalogTable(
            location=table.sd.location or "",
            columns=tuple((column.name, column.type) for column in table.sd.cols),
            partition_columns=tuple((key.name, key.type) for key in table.partitionKeys or ()),
            properties=dict(table.parameters or {}),
            serde=dict(table.sd.serdeInfo.parameters or {}),
        )

    def create(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        definition = self._types.Table(
            dbName=name.database,
            tableName=name.table,
            owner="",
            createTime=0,
            lastAccessTime=0,
            retention=0,
            sd=self._storage(table, table.location),
            partitionKeys=self._fields(table.partition_columns),
            parameters=dict(table.properties),
            tableType="EXTERNAL_TABLE",
        )
        self._call(
            lambda: self._client.create_table(definition), self._types.AlreadyExistsException
        )

    def alter(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        registered = self._get(name)
        if registered is None:
            raise UnavailableError(
                "the table was concurrently dropped from the catalog", table=name
            )
        fields = self._fields(table.columns)
        # Each partition has its own columns, which query engines use.
        cascade = fields != registered.sd.cols and bool(registered.partitionKeys)
        registered.sd.cols = fields
        registered.sd.serdeInfo.parameters = dict(table.serde)
        registered.parameters = dict(table.properties)
        names = name.database, name.table
        self._call(lambda: self._client.alter_table_with_cascade(*names, registered, cascade))

    def partitions(
        self, name: TableName, requested: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """See `MetaCatalog`."""
        names = name.database, name.table
        if requested is None:
            partitions = self._call(lambda: self._client.get_partitions(*names, _NO_LIMIT)) or []
        else:
            keys = [key.name for key in self._required(name).partitionKeys]
            partition_names = [partition_name(keys, values) for values in sorted(requested)]
            partitions = (
                self._call(lambda: self._client.get_partitions_by_names(*names, partition_names))
                or []
            )
        return {tuple(partition.values): partition.sd.location for partition in partitions}

    def add(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        request = self._types.AddPartitionsRequest(
            dbName=name.database,
            tblName=name.table,
            parts=self._partitions(name, table, new),
            ifNotExists=True,
            needResult=False,
        )
        self._call(lambda: self._client.add_partitions_req(request))

    def move(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        parts = self._partitions(name, table, new)
        self._call(lambda: self._client.alter_partitions(name.database, name.table, parts))

    def drop(self, name: TableName, dropped: Sequence[Values]) -> None:
        """See `MetaCatalog`."""
        for values in dropped:
            arguments = (name.database, name.table, list(values), False)
            self._drop_one(arguments)

    def _drop_one(self, arguments: tuple[str, str, list[str], bool]) -> None:
        missing = self._types.NoSuchObjectException
        self._call(lambda: self._client.drop_partition(*arguments), missing)

    def _get(self, name: TableName) -> Any:
        missing = self._types.NoSuchObjectException
        return self._call(lambda: self._client.get_table(name.database, name.table), missing)

    def _required(self, name: TableName) -> Any:
        table = self._get(name)
        if table is None:
            raise UnavailableError(
                "the table was concurrently dropped from the catalog", table=name
            )
        return table

    def _partitions(
        self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]
    ) -> list[Any]:
        return [
            self._types.Partition(
                values=list(values),
                dbName=name.database,
                tableName=name.table,
                createTime=0,
                lastAccessTime=0,
                sd=self._storage(table, location),
                parameters={},
            )
            for values, location in new
        ]

    def _storage(self, table: CatalogTable, location: str) -> Any:
        return self._types.StorageDescriptor(
            cols=self._fields(table.columns),
            location=location,
            inputFormat=INPUT_REALTIME if table.realtime else INPUT,
            outputFormat=OUTPUT,
            compressed=False,
            numBuckets=-1,
            serdeInfo=self._types.SerDeInfo(
                name="", serializationLib=SERDE, parameters=dict(table.serde)
            ),
            bucketCols=[],
            sortCols=[],
            parameters={},
        )

    def _fields(self, columns: Iterable[tuple[str, str]]) -> list[Any]:
        return [self._types.FieldSchema(name=name, type=kind) for name, kind in columns]

    def _call(
        self, call: Callable[[], Result], ignored: type[Exception] | None = None
    ) -> Result | None:
        """Return the result of a call; None for an exception of the type `ignored`."""
        try:
            return call()
        except self._connection_error as error:
            raise UnavailableError("the metastore does not answer", reason=str(error)) from error
        except self._types.MetaException as error:
            raise _rejection(error) from error
        except (
            self._types.NoSuchObjectException,
            self._types.AlreadyExistsException,
            self._types.InvalidObjectException,
            self._types.InvalidOperationException,
        ) as error:
            if ignored is not None and isinstance(error, ignored):
                return None
            raise _rejection(error) from error


def _rejection(error: Any) -> LakewrightError:
    return InvalidError("the Hive metastore refuses", reason=error.message or str(error))


_ESCAPED = frozenset("\"#%'*/:=?\\{[]^" + "\x7f")


def partition_name(keys: Sequence[str], values: Values) -> str:
    """Return the name of a partition in a metastore.

    >>> partition_name(["city", "day"], ("a b", "2026/01/02"))
    'city=a b/day=2026%2F01%2F02'
    """
    return "/".join(
        f"{_escaped(key.lower())}={_escaped(value)}"
        for key, value in zip(keys, values, strict=True)
    )


def _escaped(text: str) -> str:
    return "".join(
        f"%{ord(char):02X}" if char in _ESCAPED or ord(char) < 32 else char for char in text
    )
