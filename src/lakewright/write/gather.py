"""Rows in a worker: those of one partition gathered, on disk if they are many; and cut up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa

# A worker shares its machine with others, and merging needs as much again.
_MOST_BYTES = 256 << 20


def pieces(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Rows in pieces of about so many bytes, at least one row each."""
    step = max(1, int(len(rows) * most_bytes / max(rows.nbytes, 1)))
    for start in range(0, len(rows), step):
        yield rows.slice(start, step)


@dataclass
class GatheredRows:
    """Tables put together; beyond a limit they lie in a file that is mapped into memory."""

    most_bytes: int = _MOST_BYTES
    _waiting: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _file: IO[bytes] | None = None
    _writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows of the same schema as all before."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self.most_bytes:
            self._spill()

    def table(self) -> pa.Table:
        """All rows; to be called once, when there will be no more."""
        if self._file is None:
            return pa.concat_tables(self._waiting)
        self._spill()
        assert self._writer is not None
        self._writer.close()
        self._file.flush()
        with pa.memory_map(self._file.name) as mapped:
            return pa.ipc.open_stream(mapped).read_all()

    def close(self) -> None:
        """Give the disk back; rows that were given out stay readable while they are held."""
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting).unify_dictionaries()
        self._waiting, self._bytes = [], 0
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="lakewright-", suffix=".arrow")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        assert self._writer is not None
        self._writer.write_table(rows)
