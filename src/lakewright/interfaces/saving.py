"""`df.write.format("hudi")`: save modes and Hudi's options, as calls on a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lakewright.clock import SystemClock
from lakewright.core.plans import Skip
from lakewright.errors import InvalidError
from lakewright.interfaces.writes import TableWriter, write_frame
from lakewright.storage.base import Storage
from lakewright.table.create import create_table
from lakewright.table.properties import PROPERTIES
from lakewright.table.snapshot import load_snapshot
from lakewright.write.commit import Commit
from lakewright.write.options import config_conflicts, spec_from_options
from lakewright.write.task import Operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPERATION = "hoodie.datasource.write.operation"
_PARTITIONS_TO_DELETE = "hoodie.datasource.write.partitions.to.delete"
_MODES = {
    "append": "append",
    "overwrite": "overwrite",
    "ignore": "ignore",
    "error": "error",
    "errorifexists": "error",
    "default": "error",
}


def save(
    storage: Storage,
    frame: DataFrame,
    options: Mapping[str, str],
    mode: str = "error",
    partition_by: Sequence[str] = (),
    *,
    extra: Mapping[str, str] | None = None,
) -> Commit | Skip:
    """Write a DataFrame as real Hudi's data source does it, creating the table if there is none."""
    chosen = _MODES.get((mode or "error").lower())
    if chosen is None:
        raise InvalidError("no such save mode", mode=mode, known=sorted(_MODES))
    told = {key.lower(): value for key, value in options.items() if key.lower() != "path"}
    operation = parse_operation(told)
    TableWriter.of(storage, told)
    exists = storage.exists(PROPERTIES)
    if exists and chosen == "error":
        raise InvalidError("there is a table already: choose a mode", path=storage.root)
    if exists and chosen == "ignore":
        return Skip("there is a table already")
    if exists and chosen == "overwrite" and not operation.replaces:
        if _is_same_table(storage, told):
            operation = Operation.INSERT_OVERWRITE_TABLE
        else:
            spec_from_options(told, partition_by=partition_by)
            _remove(storage)
            exists = False
    if not exists:
        spec = spec_from_options(told, partition_by=partition_by)
        create_table(storage, SystemClock(), spec)
    if operation is Operation.DELETE_PARTITION:
        named = told.get(_PARTITIONS_TO_DELETE, "")
        patterns = [part.strip() for part in named.split(",") if part.strip()]
        return TableWriter.of(storage, told).delete_partitions(patterns)
    return write_frame(storage, frame, operation, told, extra=extra)


def parse_operation(options: Mapping[str, str]) -> Operation:
    """The operation that the options name; upsert if they name none."""
    word = options.get(_OPERATION, "upsert").strip().upper()
    if word not in list(Operation):
        known = sorted(each.lower() for each in Operation)
        raise InvalidError("no such operation", operation=word.lower(), known=known)
    return Operation(word)


def _is_same_table(storage: Storage, options: Mapping[str, str]) -> bool:
    """Whether an overwrite keeps the table and replaces its rows, or makes another table."""
    try:
        config_conflicts(load_snapshot(storage).config, options)
    except InvalidError:
        return False
    return True


def _remove(storage: Storage) -> None:
    """Remove a table: data first, since files without timeline would belong to the next table."""
    for folder in storage.list_folders(""):
        if folder != ".hoodie":
            storage.delete_folder(folder)
    storage.delete_many(file.path for file in storage.list_files(""))
    storage.delete_folder(".hoodie")
