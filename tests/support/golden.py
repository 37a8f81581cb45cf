"""Tables made by real Hudi, each with what real Hudi reads from it (see golden/CATALOG.md)."""

from __future__ import annotations

import base64
import json
import zipfile
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from lakewright.storage.base import Storage
from support.soak import SOAK

_FOLDER = Path(__file__).parents[1] / "golden"

NAMES = sorted(path.stem for path in _FOLDER.glob("*.zip"))


@dataclass(frozen=True)
class Query:
    """A query of a table, and its rows."""

    kind: str  # snapshot, read_optimized, as_of, changes
    rows: tuple[str, ...] | None  # None: real Hudi answers with an error
    as_of: str | None = None
    since: str | None = None
    until: str | None = None

    def __str__(self) -> str:
        bounds = [part for part in (self.as_of, self.since, self.until) if part]
        return " ".join([self.kind, *bounds])


@dataclass
class GoldenTables:
    """Unpacks tables below a folder."""

    folder: Path
    _unpacked: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Path:
        if name not in self._unpacked:
            with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive:
                archive.extractall(self.folder)
            self._unpacked.add(name)
        return self.folder / name


def upload(table: Path, storage: Storage) -> Storage:
    """Copy a table to a storage, without Hadoop's checksum files."""
    for path in sorted(table.rglob("*")):
        if path.is_file() and not path.name.endswith(".crc"):
            storage.create(path.relative_to(table).as_posix(), path.read_bytes())
    return storage


def queries(name: str) -> list[Query]:
    """Every query whose rows by real Hudi are recorded."""
    expected: dict[str, Any] = json.loads((_FOLDER / f"{name}.expected.json").read_text())
    result = [Query("snapshot", tuple(expected["snapshot"]))]
    if "read_optimized" in expected:
        result.append(Query("read_optimized", tuple(expected["read_optimized"])))
    for item in expected.get("as_of", []):
        result.append(Query("as_of", _rows(item), as_of=item["instant"]))
    for item in expected.get("incremental", []):
        result.append(Query("changes", _rows(item), since=item["after"], until=item.get("until")))
    return result


def some_queries(name: str) -> list[Query]:
    """All queries in a soak run, else one of each kind, from the middle of the history."""
    every = [query for query in queries(name) if query.rows is not None]
    if SOAK:
        return every
    kinds = [list(alike) for _, alike in groupby(every, lambda query: query.kind)]
    return [alike[len(alike) // 2] for alike in kinds]


def _rows(item: dict[str, Any]) -> tuple[str, ...] | None:
    return tuple(item["rows"]) if "rows" in item else None


def as_json(row: dict[str, Any]) -> str:
    """A row as Spark writes it as JSON, with sorted keys and without meta columns."""
    plain = {k: _plain(v) for k, v in row.items() if not k.startswith("_hoodie") and v is not None}
    return json.dumps(plain, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) for item in value):  # a map, as Arrow returns it
            return {key: _plain(item) for key, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime):
        text = value.isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
