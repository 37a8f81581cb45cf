"""The process of one system: requests come in and answers go out, each a line of JSON.

Runs in the environment of its system. One Spark session lives from the first request to the last.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bench.plan import AGED_FIELD, LAKEWRIGHT, Do, Kind
from bench.systems.base import (
    COLUMNS,
    TWO_COLUMNS,
    System,
    scan_all,
    scan_two,
    start_session,
    table_folder,
    total_rows,
)

Request = dict[str, Any]
Answer = dict[str, Any]
CHANGES = {"last": 1, "ten": 10}
SCANS = {"all": (scan_all, COLUMNS), "two": (scan_two, TWO_COLUMNS)}


class Worker:
    """Does what it is asked with the tables of one system."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._folder = Path(config["folder"])
        self._cores: int = config["cores"]
        module = importlib.import_module(f"bench.systems.{config['system']}")
        settings = module.session_settings(config["jars"], self._cores, self._folder)
        self._spark: SparkSession = start_session(
            settings, self._cores, config["memory"], self._folder
        )
        self._system: System = module.Racer(self._spark, self._folder)
        self._loading: list[float] = []
        self._schema = self._spark.read.parquet(config["sample"]).schema
        self._verbs: dict[str, Callable[[Request], Answer]] = {
            "versions": self._versions,
            "warm_up": self._warm_up,
            "sum": self._sum,
            Do.LOAD: self._load,
            Do.UPSERT: self._upsert,
            Do.DELETE: self._delete,
            Do.COMMITS: self._commits,
            Do.SCAN: self._scan,
            Do.CHANGES: self._changes,
            Do.COMPACT: lambda request: self._service(request, self._system.compact),
            Do.CLUSTER: lambda request: self._service(request, self._system.cluster),
            Do.MAKE_MANY: self._make_many,
            Do.PLAN: self._plan,
            Do.MAKE_AGED: self._make_aged,
            Do.TTL: self._ttl,
            Do.CHECK: self._check,
            Do.KEEP: self._keep,
            Do.RESTORE: self._restore,
            Do.LIMIT_LOAD: self._limit_load,
            Do.LIMIT_REWRITE: self._limit_rewrite,
            Do.LIMIT_SCAN: self._limit_scan,
        }

    def answer(self, request: Request) -> Answer:
        """Do it; what is measured begins with as little garbage as may be."""
        if request.get("counted"):
            gc.collect()
            self._jvm().System.gc()
        return self._verbs[request["do"]](request)

    def stop(self) -> None:
        """End the session."""
        self._spark.stop()

    def _jvm(self) -> Any:
        return self._spark.sparkContext._jvm

    def _versions(self, request: Request) -> Answer:
        java = self._jvm().System.getProperty("java.version")
        return {"spark": self._spark.version, "python": platform.python_version(), "java": java}

    def _warm_up(self, request: Request) -> Answer:
        """Every verb on small tables, so that no class is loaded while time is taken."""
        for kind in (Kind.COW, Kind.MOR):
            base_request: Request = {"kind": kind, "partitions": [], "optimized": False, "count": 1}
            self._load({**base_request, "files": request["files"]})
            # The second time they are all updates, for which log files are written.
            for commit in [*request["commits"], *request["commits"]]:
                self._upsert({**base_request, "files": [commit]})
            self._scan(base_request)
            if kind in request["serves"]:
                (self._system.cluster if kind is Kind.COW else self._system.compact)(kind)
            if kind is Kind.COW:
                self._delete({**base_request, "files": request["commits"][:1]})
                _total(self._read(base_request, COLUMNS))
            self._drop(table_folder(self._folder, kind))
        return {}

    def _load(self, request: Request) -> Answer:
        self._drop(table_folder(self._folder, request["kind"]))
        with timed() as seconds:
            self._system.load(Kind(request["kind"]), self._rows(request["files"]))
        return {"seconds": seconds}

    def _upsert(self, request: Request) -> Answer:
        with timed() as seconds:
            rows = self._rows(request["files"])
            self._system.upsert(Kind(request["kind"]), rows, request["partitions"])
        return {"seconds": seconds}

    def _delete(self, request: Request) -> Answer:
        with timed() as seconds:
            self._system.delete(Kind(request["kind"]), self._rows(request["files"]))
        return {"seconds": seconds}

    def _commits(self, request: Request) -> Answer:
        answers = [self._upsert({**request, "files": [file]}) for file in request["files"]]
        return {"seconds": [second for answer in answers for second in answer["seconds"]]}

    def _service(self, request: Request, serve: Callable[[Kind], None]) -> Answer:
        with timed() as seconds:
            serve(Kind(request["kind"]))
        return {"seconds": seconds}

    def _make_many(self, request: Request) -> Answer:
        """Make a table of many partitions for any system that plans on Hudi's format."""
        folder = self._folder.parent / request["system"]
        many_partitions = importlib.import_module("bench.many")
        many_partitions.make_table(
            _many_partitions_table(folder, request["count"]), request["count"]
        )
        return {}

    def _plan(self, request: Request) -> Answer:
        """Schedule, with incremental planning and without; what is scheduled is taken back."""
        table = _many_partitions_table(self._folder, request["count"])
        parts: dict[str, list[float]] = {}
        for name in ("incremental", "all"):
            timeline = table / ".hoodie" / "timeline"
            files_before = set(timeline.iterdir())
            self._system.forget()
            with timed() as seconds:
                self._system.schedule(table, incremental=name == "incremental")
            parts[name] = seconds
            added = set(timeline.iterdir()) - files_before
            if not any(file.name.endswith(".compaction.requested") for file in added):
                raise RuntimeError("no compaction was scheduled")
            for file in added:
                file.unlink()
        return {"seconds": parts[self._system.plans], **parts}

    def _make_aged(self, request: Request) -> Answer:
        """Put a table there for the load test of TTL, for any system on Hudi's format."""
        copy = self._copy_of(f"{Kind.AGED}_{request['count']}")
        aged = importlib.import_module("bench.aged")
        if request["system"] == LAKEWRIGHT or not copy.exists():
            self._drop(copy)
            rows = self._rows(request["files"]).where(f"{AGED_FIELD} <= {request['count']}")
            with timed() as self._loading:
                aged.load(str(copy), rows)
        table = table_folder(self._folder.parent / request["system"], Kind.AGED)
        self._drop(table)
        shutil.copytree(copy, table)
        return {}

    def _ttl(self, request: Request) -> Answer:
        """The load test, job by job; each must be about as many partitions as it should."""
        count = request["count"]
        parts = {"load": self._loading} if request["system"] == LAKEWRIGHT else {}
        self._system.forget()
        table = table_folder(self._folder, Kind.AGED)
        for name, job in self._system.ttl(table, count):
            with timed() as seconds:
                partitions = job()
            if partitions != (count if name == "update" else count // 2):
                raise RuntimeError(f"{name} was about {partitions} partitions of {count}")
            parts[name] = seconds
            print(f"ttl of {count} partitions, {name}: {seconds[0]:.2f} s", file=sys.stderr)
        remaining = {Path(file).parent for file in _base_files(table)}
        if len(remaining) != count // 2:
            raise RuntimeError(f"{len(remaining)} partitions of {count} still have files")
        return {"seconds": parts["run"], **parts}

    def _sum(self, request: Request) -> Answer:
        return _total(self._rows(request["files"]).where(request.get("where") or "true"))

    def _scan(self, request: Request) -> Answer:
        return self._scans(request, lambda columns: self._read(request, columns))

    def _scans(self, request: Request, frame: Callable[[Sequence[str]], DataFrame]) -> Answer:
        parts: dict[str, list[float]] = {name: [] for name in SCANS}
        for _ in range(request["count"]):
            for name, (query, columns) in SCANS.items():
                with timed() as seconds:
                    query(frame(columns))
                parts[name] += seconds
        return {"seconds": [sum(pair) for pair in zip(*parts.values(), strict=True)], **parts}

    def _changes(self, request: Request) -> Answer:
        """Read what the last commit changed, and the last ten; where to begin is known before."""
        kind = Kind(request["kind"])
        since = {name: self._system.position(kind, back) for name, back in CHANGES.items()}
        parts: dict[str, list[float]] = {name: [] for name in CHANGES}
        for _ in range(request["count"]):
            for name, position in since.items():
                with timed() as seconds:
                    scan_all(self._system.changes(kind, position))
                parts[name] += seconds
        return {"seconds": [sum(pair) for pair in zip(*parts.values(), strict=True)], **parts}

    def _check(self, request: Request) -> Answer:
        kind = Kind(request["kind"])
        if kind is not Kind.FEED:
            return _total(self._read(request, COLUMNS))
        totals = [
            total_rows(self._system.changes(kind, self._system.position(kind, back)))
            for back in CHANGES.values()
        ]
        return {"rows": sum(f[0] for f in totals), "checksum": sum(f[1] for f in totals)}

    def _keep(self, request: Request) -> Answer:
        shutil.copytree(table_folder(self._folder, request["kind"]), self._copy_of(request["kind"]))
        return {}

    def _restore(self, request: Request) -> Answer:
        table = table_folder(self._folder, request["kind"])
        self._drop(table)
        shutil.copytree(self._copy_of(request["kind"]), table)
        return {}

    def _limit_load(self, request: Request) -> Answer:
        files = len(_base_files(table_folder(self._folder, request["kind"])))
        with self._limit() as (limit, folder):
            return {"seconds": [limit.load(request["files"], files, folder)]}

    def _limit_rewrite(self, request: Request) -> Answer:
        copy = self._copy_of(request["kind"])
        folders = [copy / name for name in request["partitions"]] or [copy]
        old = [file for folder in folders for file in _base_files(folder)]
        with self._limit() as (limit, folder):
            return {"seconds": [limit.rewrite(request["files"], old, folder)]}

    def _limit_scan(self, request: Request) -> Answer:
        files = self._read(request, COLUMNS).inputFiles()
        return self._scans(request, lambda columns: self._rows(files))

    def _rows(self, files: Sequence[str]) -> DataFrame:
        return self._spark.read.schema(self._schema).parquet(*files)

    def _read(self, request: Request, columns: Sequence[str]) -> DataFrame:
        optimized = request["optimized"]
        return self._system.read(Kind(request["kind"]), optimized=optimized, columns=columns)

    @contextmanager
    def _limit(self) -> Iterator[tuple[Any, Path]]:
        """The limit and a folder for it, gone afterwards: its memory would be counted as ours."""
        folder = self._folder / "scratch"
        # Arrow is in the environment of Lakewright alone.
        limit = importlib.import_module("bench.limit").Limit(self._cores)
        try:
            yield limit, folder
        finally:
            limit.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _copy_of(self, kind: str) -> Path:
        return self._folder / "kept" / kind

    def _drop(self, table: Path) -> None:
        if table.exists():
            shutil.rmtree(table)
        self._system.forget()


@contextmanager
def timed() -> Iterator[list[float]]:
    """A list that holds the seconds of the block once it has ended."""
    seconds: list[float] = []
    started = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - started)


def _many_partitions_table(folder: Path, count: int) -> Path:
    return table_folder(folder, f"{Kind.MANY}_{count}")


def _total(frame: DataFrame) -> Answer:
    rows, checksum = total_rows(frame)
    return {"rows": rows, "checksum": checksum}


def _base_files(folder: Path) -> list[str]:
    """The parquet files of a table, without those that are hidden or the table's own."""
    return [
        str(file)
        for file in sorted(folder.rglob("*.parquet"))
        if not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    ]


def main() -> None:
    """Answer until the input ends."""
    # Spark prints on standard output too: keep the real one for answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    config = json.loads(sys.argv[1])
    # Compilers, collectors and Python workers share the cores of the race, on big machines too.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: config["cores"]])
    worker = Worker(config)
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except (PySparkException, Py4JError, OSError, RuntimeError, ValueError) as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    worker.stop()


if __name__ == "__main__":
    main()
