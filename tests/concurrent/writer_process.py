"""Writers that are processes of their own, which can be killed and stopped like any other.

Started as a program, this reads requests from its input, a line of JSON each, and answers each with
a line. `{"job": {...}}` forks a process that does the job, and returns its id; `{"wait": id}`
returns how that process ended, or that it stopped. The slow imports run once, many of them with the
first write.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from roles import Role

from lakewright.client.ttl import TableTtl
from lakewright.client.write_client import WriteClient
from lakewright.clock import SystemClock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import ConflictError, LakewrightError
from lakewright.storage.base import Storage
from lakewright.storage.factory import storage_for
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.locks.storage_lock import PATH as STORAGE_LOCK
from lakewright.testing.storage import _Wrapped
from lakewright.write.task import Operation
from support.tables import SCHEMA, Row, WrittenTable, row

Result = TypeVar("Result")

STEP = "step"
LOCK_FILE = ".hoodie/lock"
AT_ONCE = {"hoodie.compact.inline.max.delta.commits": "1"}


def traces_file(journal: Path) -> Path:
    """Where a process writes down its heartbeats and locks."""
    return journal.with_suffix(".traces")


def slept_file(journal: Path) -> Path:
    """Where a test says for how many milliseconds a process has been stopped."""
    return journal.with_suffix(".slept")


class StoppableClock(SystemClock):
    """The machine's clock, for a process that a test stops for as long as it says.

    Only the steady clock goes on: what the process left on storage is made older instead.
    """

    def __init__(self, slept: Path) -> None:
        self._slept = slept

    def monotonic_ms(self) -> int:
        slept = int(self._slept.read_text()) if self._slept.exists() else 0
        return super().monotonic_ms() + slept


class FatefulStorage(_Wrapped):
    """Sends a signal to its own process at the call that `fate` names.

    The call is the `nth` whose method and path fit `pattern`; `after` says whether it still
    happens. Calls are written to `calls`, if that is set, so that a test can choose among them.
    Heartbeats and locks are written to `traces` before they appear.
    """

    __slots__ = ("_fate", "_lock", "_remaining", "_traces")

    def __init__(self, inner: Storage, fate: Mapping[str, Any], traces: Path) -> None:
        super().__init__(inner)
        self._fate = fate
        self._traces = str(traces)
        self._remaining = int(fate.get("nth", 0))
        self._lock = threading.Lock()

    def _call(self, method: Callable[..., Result], *arguments: Any) -> Result:
        call = f"{method.__name__} {arguments[0]}"
        if "calls" in self._fate:
            _append(self._fate["calls"], {"call": call})
        self._trace(method.__name__, *arguments)
        if not self._is_due(call):
            return method(*arguments)
        if not self._fate["after"]:
            self._strike()
            return method(*arguments)
        result = method(*arguments)
        self._strike()
        return result

    def _trace(self, call: str, path: str, *data: Any) -> None:
        if call in ("create", "replace_if") and path in (LOCK_FILE, STORAGE_LOCK):
            _append(self._traces, {"call": call, "owner": json.loads(data[0])["owner"]})
        elif call in ("replace", "delete") and path.startswith(HEARTBEATS):
            _append(self._traces, {"call": call, "path": path})

    def _is_due(self, call: str) -> bool:
        if "signal" not in self._fate or not re.search(self._fate["pattern"], call):
            return False
        with self._lock:
            self._remaining -= 1
            return self._remaining == -1

    def _strike(self) -> None:
        os.kill(os.getpid(), signal.Signals[self._fate["signal"]])


def do_job(job: Mapping[str, Any]) -> None:
    """Do the steps of a job, each until it has no conflict, and keep a journal of it."""
    journal = Path(job["journal"])
    clock = StoppableClock(slept_file(journal))
    fate = job.get("fate", {})
    storage = FatefulStorage(storage_for(job["table"], job["storage"]), fate, traces_file(journal))
    if "role" in job:
        note = partial(_append, job["journal"])
        chance = random.Random(job["seed"])
        Role(storage, job["options"], clock, chance, note).play(job["role"])
    if "specs" in job:
        _save_policies(job, TableTtl.for_table(storage, job["options"], clock))
        return
    writer = replace(WriteClient.create(storage, job["options"], clock), engine=LocalEngine)
    if "execute" in job:
        commit = writer.services.execute(job["execute"])
        _append(job["journal"], {"instant": commit.instant, "completed_at": commit.completed_at})
        return
    for step in job["steps"]:
        while not _committed(writer, step, job["journal"]):
            pass


def _committed(writer: WriteClient, step: Mapping[str, Any], journal: str) -> bool:
    rows: list[Row] = step["rows"]
    table = ArrowRows(pa.Table.from_pylist(rows, SCHEMA))
    operation = Operation(step["operation"])
    ordered = operation is Operation.DELETE
    name = {STEP: step["name"]}
    try:
        commit = writer.write(operation, table, ordered=ordered, extra=name)
    except ConflictError as error:
        _append(journal, {**name, "conflict": str(error), "instant": error.facts.get("instant")})
        return False
    _append(journal, {**name, "instant": commit.instant, "completed_at": commit.completed_at})
    return True


def _save_policies(job: Mapping[str, Any], ttl: TableTtl) -> None:
    for value, spec in enumerate(job["specs"], 1):
        ttl.save({"spec": spec, "units": "DAYS", "value": value})
        _append(job["journal"], {"saved": spec})


def _append(path: str, line: Mapping[str, Any]) -> None:
    """One write of the kernel: a killed process has written a whole line or none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(descriptor)


def _child(job: Mapping[str, Any]) -> None:
    """The life of a forked process; it never returns."""
    status = 1
    try:
        do_job(job)
        status = 0
    except LakewrightError as error:
        _append(job["journal"], {"error": type(error).__name__, "message": str(error)})
    except BaseException:
        _append(job["journal"], {"error": "unforeseen", "message": traceback.format_exc()})
    finally:
        os._exit(status)


def _status(pid: int) -> str:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return "stopped"
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return "done" if os.WEXITSTATUS(status) == 0 else "failed"


def main() -> None:
    """Serve until the input ends."""
    table = WrittenTable(options=AT_ONCE).create("MERGE_ON_READ")
    for ts in range(2):
        table.upsert([row("a", ts)])
    # Not `for line in stdin`: a forked process must not find requests that were read ahead.
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "wait" in request:
            print(json.dumps(_status(request["wait"])), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _child(request["job"])
        print(json.dumps(pid), flush=True)


if __name__ == "__main__":
    main()
