"""How a test asks real Apache Hudi, which runs in a process and an environment of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakewright.testing.processes import send_request
from support.spark import lean_hadoop

Row = dict[str, Any]

_PARALLELISM = (
    "hoodie.upsert.shuffle.parallelism",
    "hoodie.insert.shuffle.parallelism",
    "hoodie.bulkinsert.shuffle.parallelism",
    "hoodie.delete.shuffle.parallelism",
    "hoodie.simple.index.parallelism",
    "hoodie.bloom.index.parallelism",
    "hoodie.finalize.write.parallelism",
    "hoodie.markers.delete.parallelism",
    "hoodie.file.listing.parallelism",
    "hoodie.clean.parallelism",
    "hoodie.rollback.parallelism",
    "hoodie.metadata.index.column.stats.parallelism",
)
# By default every log file is opened with 16 MiB, which must be made zero.
_SMALL_BUFFERS = {"hoodie.memory.dfs.buffer.max.size": str(1 << 16)}
# Servers and tasks that a few rows do not need; what is written is the same.
_QUICK = {
    **dict.fromkeys(_PARALLELISM, "2"),
    **_SMALL_BUFFERS,
    "hoodie.index.bloom.num_entries": "1000",
    "hoodie.embed.timeline.server": "false",
}


class RealHudiError(Exception):
    """Real Hudi, or the Spark around it, refused."""


@dataclass(frozen=True)
class RealHudi:
    """A running Spark 3.5 with Hudi's own bundle; see judge.py for what it does."""

    process: subprocess.Popen[str]
    log: Path

    def sql(self, statement: str, settings: Mapping[str, str] | None = None) -> list[Row]:
        """The rows that a SQL statement returns, with some settings of the session."""
        return self._ask(sql=statement, settings={**_QUICK, **(settings or {})})

    def columns(self, statement: str) -> list[str]:
        """The names of the columns that a SQL statement returns."""
        answers: list[Any] = self._ask(columns_of=statement)
        names: list[str] = answers[0]
        return names

    def job(self, file: str | Path, path: str | Path) -> dict[str, list[list[Any]]]:
        """What `job` of a Python file returns, run on a path."""
        answers: list[Any] = self._ask(job=str(file), path=str(path))
        results: dict[str, list[list[Any]]] = answers[0]
        return results

    def read(
        self,
        path: str | Path,
        options: Mapping[str, str] | None = None,
        columns: Sequence[str] = (),
    ) -> list[Row]:
        """The rows of a table, with Hudi's own columns, or with some expressions instead."""
        settings = {**_SMALL_BUFFERS, **(options or {})}
        return self._ask(read=str(path), options=settings, columns=list(columns))

    def read_all(self, path: str | Path, options: Iterable[Mapping[str, str]]) -> list[list[Row]]:
        """The rows of a table, once for each set of options."""
        reads = [
            {"read": str(path), "options": {**_SMALL_BUFFERS, **read_options}}
            for read_options in options
        ]
        answers: list[Any] = self._ask(all=reads)
        return answers

    def write(
        self,
        path: str | Path,
        rows: Iterable[Row],
        schema: str,
        options: Mapping[str, str],
        mode: str = "append",
    ) -> None:
        """Write rows, given as JSON would have them, in the types of a DDL schema."""
        settings = {**_QUICK, **options}
        self._ask(write=str(path), rows=list(rows), schema=schema, options=settings, mode=mode)

    def _ask(self, **request: object) -> list[Row]:
        answer = send_request(self.process, request)
        if answer is None:
            raise RealHudiError(f"real Hudi went away:\n{self.log.read_text()[-4000:]}")
        if "error" in answer:
            raise RealHudiError(answer["error"])
        rows: list[Row] = answer["rows"]
        return rows


@contextmanager
def running(folder: Path) -> Iterator[RealHudi]:
    """Real Hudi until the block ends; the environment names its Python, Java and bundle."""
    python = os.environ["LAKEWRIGHT_INTEROP_PYTHON"]
    environment = {
        **os.environ,
        "JAVA_HOME": os.environ["LAKEWRIGHT_INTEROP_JAVA_HOME"],
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }
    judge = Path(__file__).with_name("judge.py")
    log = folder / "judge.log"
    jar, defaults = os.environ["LAKEWRIGHT_HUDI_JAR"], lean_hadoop(folder / "lean")
    command = [python, str(judge), jar, str(folder), defaults]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env=environment,
        ) as process,
    ):
        # Leaving the block closes the input, upon which the judge stops its session and ends.
        yield RealHudi(process, log)
