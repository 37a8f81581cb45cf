"""A Hive metastore, over Thrift, without Hive."""

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
_ALL = -1

Result = TypeVar("Result")


@contextmanager
def hive_catalog(uris: Sequence[str]) -> Iterator[HiveCatalog]:
    """The metastore at the first address that answers."""
    thrift = imported("pymetastore.hive_metastore.ThriftHiveMetastore", _EXTRA)
    kinds = imported("pymetastore.hive_metastore.ttypes", _EXTRA)
    sockets = imported("thrift.transport.TSocket", _EXTRA)
    transports = imported("thrift.transport.TTransport", _EXTRA)
    protocols = imported("thrift.protocol.TBinaryProtocol", _EXTRA)
    troubles = {}
    for uri in uris:
        host, port = _address(uri)
        socket = sockets.TSocket(host, port)
        socket.setTimeout(_TIMEOUT_MS)
        transport = transports.TBufferedTransport(socket)
        try:
            transport.open()
        except transports.TTransportException as error:
            troubles[uri] = str(error)
            continue
        try:
            client = thrift.Client(protocols.TBinaryProtocol(transport))
            yield HiveCatalog(client, kinds, transports.TTransportException)
        finally:
            transport.close()
        return
    raise UnavailableError("no Hive metastore answers", tried=troubles)


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
        self._kinds = kinds
        self._broken = broken

    def ensure_database(self, database: str, *, create: bool) -> None:
        """See `MetaCatalog`."""
        missing = self._kinds.NoSuchObjectException
        if self._ask(lambda: self._client.get_database(database), missing) is not None:
            return
        if not create:
            raise InvalidError("the metastore has no such database", database=database)
        made = self._kinds.Database(name=database, parameters={})
        self._ask(lambda: self._client.create_database(made), self._kinds.AlreadyExistsException)

    def load(self, name: TableName) -> CatalogTable | None:
        """See `MetaCatalog`."""
        found = self._get(name)
        if found is None:
            return None
        return CatalogTable(
            location=found.sd.location or "",
            columns=tuple((column.name, column.type) for column in found.sd.cols),
            partition_columns=tuple((key.name, key.type) for key in found.partitionKeys or ()),
            properties=dict(found.parameters or {}),
            serde=dict(found.sd.serdeInfo.parameters or {}),
        )

    def create(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        made = self._kinds.Table(
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
        self._ask(lambda: self._client.create_table(made), self._kinds.AlreadyExistsException)

    def alter(self, name: TableName, table: CatalogTable) -> None:
        """See `MetaCatalog`."""
        found = self._get(name)
        if found is None:
            raise UnavailableError("the table was dropped from the catalog meanwhile", table=name)
        fields = self._fields(table.columns)
        # Partitions have columns of their own, which engines go by.
        cascade = fields != found.sd.cols and bool(found.partitionKeys)
        found.sd.cols = fields
        found.sd.serdeInfo.parameters = dict(table.serde)
        found.parameters = dict(table.properties)
        where = name.database, name.table
        self._ask(lambda: self._client.alter_table_with_cascade(*where, found, cascade))

    def partitions(
        self, name: TableName, wanted: Iterable[Values] | None = None
    ) -> dict[Values, str]:
        """See `MetaCatalog`."""
        where = name.database, name.table
        if wanted is None:
            found = self._ask(lambda: self._client.get_partitions(*where, _ALL)) or []
        else:
            keys = [key.name for key in self._required(name).partitionKeys]
            names = [partition_name(keys, values) for values in sorted(wanted)]
            found = self._ask(lambda: self._client.get_partitions_by_names(*where, names)) or []
        return {tuple(each.values): each.sd.location for each in found}

    def add(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        request = self._kinds.AddPartitionsRequest(
            dbName=name.database,
            tblName=name.table,
            parts=self._partitions(name, table, new),
            ifNotExists=True,
            needResult=False,
        )
        self._ask(lambda: self._client.add_partitions_req(request))

    def move(self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]) -> None:
        """See `MetaCatalog`."""
        parts = self._partitions(name, table, new)
        self._ask(lambda: self._client.alter_partitions(name.database, name.table, parts))

    def drop(self, name: TableName, gone: Sequence[Values]) -> None:
        """See `MetaCatalog`."""
        for values in gone:
            told = (name.database, name.table, list(values), False)
            self._drop_one(told)

    def _drop_one(self, told: tuple[str, str, list[str], bool]) -> None:
        missing = self._kinds.NoSuchObjectException
        self._ask(lambda: self._client.drop_partition(*told), missing)

    def _get(self, name: TableName) -> Any:
        missing = self._kinds.NoSuchObjectException
        return self._ask(lambda: self._client.get_table(name.database, name.table), missing)

    def _required(self, name: TableName) -> Any:
        found = self._get(name)
        if found is None:
            raise UnavailableError("the table was dropped from the catalog meanwhile", table=name)
        return found

    def _partitions(
        self, name: TableName, table: CatalogTable, new: Sequence[tuple[Values, str]]
    ) -> list[Any]:
        return [
            self._kinds.Partition(
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
        return self._kinds.StorageDescriptor(
            cols=self._fields(table.columns),
            location=location,
            inputFormat=INPUT_REALTIME if table.realtime else INPUT,
            outputFormat=OUTPUT,
            compressed=False,
            numBuckets=-1,
            serdeInfo=self._kinds.SerDeInfo(
                name="", serializationLib=SERDE, parameters=dict(table.serde)
            ),
            bucketCols=[],
            sortCols=[],
            parameters={},
        )

    def _fields(self, columns: Iterable[tuple[str, str]]) -> list[Any]:
        return [self._kinds.FieldSchema(name=name, type=kind) for name, kind in columns]

    def _ask(
        self, ask: Callable[[], Result], nothing: type[Exception] | None = None
    ) -> Result | None:
        """What the metastore answers; None for the one exception that says that there is none."""
        try:
            return ask()
        except self._broken as error:
            raise UnavailableError("the metastore does not answer", reason=str(error)) from error
        except self._kinds.MetaException as error:
            raise _refused(error) from error
        except (
            self._kinds.NoSuchObjectException,
            self._kinds.AlreadyExistsException,
            self._kinds.InvalidObjectException,
            self._kinds.InvalidOperationException,
        ) as error:
            if nothing is not None and isinstance(error, nothing):
                return None
            raise _refused(error) from error


def _refused(error: Any) -> LakewrightError:
    return InvalidError("the Hive metastore refuses", reason=error.message or str(error))


_ESCAPED = frozenset("\"#%'*/:=?\\{[]^" + "\x7f")


def partition_name(keys: Sequence[str], values: Values) -> str:
    """The name by which a metastore finds a partition.

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
