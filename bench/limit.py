"""What the machine could do at best: the same rows read and written by Arrow, without a table."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq


class Limit:
    """As many processes as there are cores, started before anything is measured."""

    def __init__(self, cores: int) -> None:
        self._pool = ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn"))
        list(self._pool.map(time.sleep, [0.2] * cores))

    def load(self, source: Sequence[str], files: int, folder: Path) -> float:
        """Seconds to read `source` and write its rows into that many files."""
        parts = [max(1, round(files / len(source)))] * len(source)
        folders = [str(folder / f"{number}") for number in range(len(source))]
        started = time.perf_counter()
        list(self._pool.map(copy, source, parts, folders))
        return time.perf_counter() - started

    def rewrite(self, source: Sequence[str], old: Sequence[str], folder: Path) -> float:
        """Seconds to read what comes in, and to read and write again every file it changes."""
        folders = [str(folder / f"{number}") for number in range(len(old))]
        started = time.perf_counter()
        incoming = self._pool.map(count, source)
        list(self._pool.map(copy, old, [1] * len(old), folders))
        list(incoming)
        return time.perf_counter() - started

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def count(file: str) -> int:
    """Read all rows of a file."""
    return int(pq.read_table(file, use_threads=False).num_rows)


def copy(file: str, parts: int, folder: str) -> None:
    """Read a file and write its rows into `parts` files."""
    rows = pq.read_table(file, use_threads=False)
    Path(folder).mkdir(parents=True, exist_ok=True)
    part_rows = -(-rows.num_rows // parts)
    for part in range(parts):
        target = Path(folder) / f"{part}.parquet"
        piece = rows.slice(part * part_rows, part_rows)
        pq.write_table(piece, target, compression="zstd", compression_level=1)
