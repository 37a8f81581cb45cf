"""How a test has processes write to a table, and what it must find there afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from writer_process import LOCK_FILE, STEP, slept_file, traces_file

from lakewright.errors import ConflictError
from lakewright.model.file_group import parse_data_file
from lakewright.model.instant import Instant, State, parse_instant
from lakewright.storage.base import Storage, VersionedStorage
from lakewright.storage.local import LocalStorage
from lakewright.table.failed_writes import delete_orphan_files
from lakewright.table.heartbeat import FOLDER as HEARTBEATS
from lakewright.table.locks.storage_lock import PATH as STORAGE_LOCK
from lakewright.table.locks.storage_lock import format_lock_file, parse_lock_file
from lakewright.table.options import HeartbeatSettings
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.processes import send_request
from support.processes import wait_until
from support.tables import Row

Key = tuple[str, str]

_DAY_S = 86_400
_LONG_AFTER_MS = 10**15


@dataclass(frozen=True)
class Step:
    """One write of a process: an upsert, or a delete that competes by its ordering."""

    name: str
    rows: Sequence[Row]
    operation: str = "UPSERT"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "rows": list(self.rows), "operation": self.operation}


@dataclass(frozen=True)
class Fate:
    """A signal that a process sends to itself at a call to storage."""

    signal: str
    nth: int = 0
    pattern: str = ""
    after: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "signal": self.signal, "nth": self.nth, "pattern": self.pattern, "after": self.after
        }  # fmt: skip


@dataclass(frozen=True)
class Traces:
    """What shows others that a process is alive: its heartbeats, and the names of its locks."""

    heartbeats: frozenset[str]
    owners: frozenset[str]


@dataclass
class Process:
    """One writer process, running or ended."""

    crew: Crew
    pid: int
    journal_file: Path
    storage: Storage

    def wait(self) -> str:
        """How it ended: done, failed or the name of a signal; or that it is stopped."""
        return str(self.crew._ask(wait=self.pid))

    def send(self, name: str) -> None:
        os.kill(self.pid, signal.Signals[name])

    def kill(self) -> None:
        """Kill it, and let others see at once that it is dead."""
        self.send("SIGKILL")
        assert self.wait() == "SIGKILL"
        let_age(self.storage, self.traces)

    def oversleep(self) -> None:
        """Let a process that is stopped have been stopped for a day."""
        slept_file(self.journal_file).write_text(str(_DAY_S * 1000))
        let_age(self.storage, self.traces)

    @property
    def traces(self) -> Traces:
        """Its own alone: a heartbeat that it has deleted may be another's by now."""
        heartbeats: set[str] = set()
        owners: set[str] = set()
        for line in _lines(traces_file(self.journal_file)):
            if line["call"] == "delete":
                heartbeats.discard(line["path"])
            elif "owner" in line:
                owners.add(line["owner"])
            else:
                heartbeats.add(line["path"])
        return Traces(frozenset(heartbeats), frozenset(owners))

    @property
    def journal(self) -> list[dict[str, Any]]:
        """What it reported."""
        return _lines(self.journal_file)

    @property
    def commits(self) -> list[dict[str, Any]]:
        return [line for line in self.journal if "completed_at" in line]

    def wait_for_commits(self, number: int) -> None:
        wait_until(lambda: len(self.commits) >= number, lambda: self.errors)

    @property
    def conflicts(self) -> list[dict[str, Any]]:
        return [line for line in self.journal if "conflict" in line]

    @property
    def errors(self) -> list[str]:
        return [f"{line['error']}: {line['message']}" for line in self.journal if "error" in line]


@dataclass
class Crew:
    """Starts processes that write; see writer_process.py."""

    host: subprocess.Popen[str]
    folder: Path
    started: int = 0

    def start(
        self,
        storage: Storage,
        steps: Iterable[Step],
        options: Mapping[str, str],
        *,
        fate: Fate | None = None,
        client: Mapping[str, str] | None = None,
        calls: Path | None = None,
    ) -> Process:
        """A process that takes these steps, with the options of a write; `client`: of storage."""
        job = {"steps": [step.as_json() for step in steps], "fate": _fate_of(fate, calls)}
        return self._start(storage, options, client, job)

    def start_execution(
        self,
        storage: Storage,
        plan: str,
        options: Mapping[str, str],
        *,
        fate: Fate | None = None,
        client: Mapping[str, str] | None = None,
        calls: Path | None = None,
    ) -> Process:
        """A process that executes the plan of a table service."""
        job = {"execute": plan, "fate": _fate_of(fate, calls)}
        return self._start(storage, options, client, job)

    def start_role(
        self,
        storage: Storage,
        role: str,
        options: Mapping[str, str],
        *,
        seed: int,
        client: Mapping[str, str] | None = None,
    ) -> Process:
        """A process that does the same thing until it is killed; see roles.py."""
        return self._start(storage, options, client, {"role": role, "seed": seed})

    def start_saving(
        self, storage: Storage, specs: Sequence[str], options: Mapping[str, str]
    ) -> Process:
        """A process that saves a policy for each spec."""
        return self._start(storage, options, None, {"specs": specs})

    def _start(
        self,
        storage: Storage,
        options: Mapping[str, str],
        client: Mapping[str, str] | None,
        job: Mapping[str, Any],
    ) -> Process:
        self.started += 1
        journal = self.folder / f"journal-{self.started}.jsonl"
        common = {
            "table": storage.root,
            "storage": dict(client or {}),
            "options": dict(options),
            "journal": str(journal),
        }
        return Process(self, int(self._ask(job={**common, **job})), journal, storage)

    def _ask(self, **request: object) -> Any:
        answer = send_request(self.host, request)
        assert answer is not None, "the host of the writers went away"
        return answer


def _fate_of(fate: Fate | None, calls: Path | None) -> dict[str, Any]:
    return (fate.as_json() if fate else {}) | ({"calls": str(calls)} if calls else {})


@contextmanager
def mustered(folder: Path) -> Iterator[Crew]:
    """A crew until the block ends."""
    program = Path(__file__).with_name("writer_process.py")
    tests = str(program.parents[1])
    # What the library warns of when it could not tidy up must not go unseen.
    command = [sys.executable, "-W", "error::RuntimeWarning", str(program)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.getenv("PYTHONPATH", "")])},
    ) as host:
        yield Crew(host, folder)


@dataclass
class Model:
    """What a table must hold after some steps, taken one after the other.

    A table that merges on read remembers the ordering of a delete: an upsert that comes later and
    is older does not bring the row back.
    """

    remembers_deletes: bool = False
    versions: dict[Key, Row | None] = field(default_factory=dict)
    orderings: dict[Key, int] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        for row in step.rows:
            key = (row["day"], row["id"])
            if row["ts"] < self.orderings.get(key, -1):
                continue
            if step.operation == "UPSERT":
                self.versions[key], self.orderings[key] = row, row["ts"]
            elif self.remembers_deletes:
                self.versions[key], self.orderings[key] = None, row["ts"]
            else:
                self.versions.pop(key, None)
                self.orderings.pop(key, None)

    @property
    def rows(self) -> list[Row]:
        return sorted((row for row in self.versions.values() if row is not None), key=str)


def steps_on(storage: Storage) -> dict[str, Instant]:
    """The steps on the timeline by name, in the order in which they completed.

    A write that is no step of a process goes by its instant.
    """
    snapshot = load_snapshot(storage)
    writes = sorted(
        (*snapshot.archived, *snapshot.timeline.completed_writes),
        key=lambda instant: instant.completed_at or "",
    )
    commits = zip(writes, snapshot.commits(writes), strict=True)
    names = [commit.extra.get(STEP, instant.requested_at) for instant, commit in commits]
    assert len(set(names)) == len(names), "a step is on the timeline twice"
    return dict(zip(names, writes, strict=True))


def assert_well_formed(storage: Storage) -> None:
    """Every time is given once, everything that began has completed, and can be read."""
    files = storage.list_files(".hoodie/timeline")
    names = [file.name for file in files if file.name != ".keep"]
    instants = [instant for name in names if (instant := parse_instant(name))]
    assert len(instants) == len(names)
    completed = [i for i in instants if i.is_completed]
    ended = [i.completed_at or "" for i in completed]
    times = [i.requested_at for i in completed] + ended
    assert len(set(times)) == len(times)
    assert all((i.completed_at or "") > i.requested_at for i in completed)
    for state in (State.REQUESTED, State.INFLIGHT):
        begun = [i.requested_at for i in instants if i.state is state]
        assert sorted(begun) == sorted(i.requested_at for i in completed)
    snapshot = load_snapshot(storage)
    assert all(c.operation for c in snapshot.commits(snapshot.timeline.completed_writes))


def assert_no_orphans(storage: Storage) -> None:
    """The data files are those that completed writes list, no more and no fewer."""
    files, listed = _data_files(storage)
    assert files == listed


def assert_nothing_strange(storage: Storage) -> None:
    """Every data file is listed by a completed write; a clean may have deleted others."""
    files, listed = _data_files(storage)
    assert not set(files) - set(listed)


def _data_files(storage: Storage) -> tuple[list[str], list[str]]:
    """Those that are there, and those that completed writes list."""
    snapshot = load_snapshot(storage)
    commits = snapshot.commits((*snapshot.archived, *snapshot.timeline.completed_writes))
    listed = sorted(stat.path or "" for commit in commits for stat in commit.write_stats())
    paths = [f.path for f in storage.list_tree("") if not f.path.startswith(".hoodie/")]
    return sorted(p for p in paths if parse_data_file(p.rpartition("/")[2])), listed


def let_age(storage: Storage, traces: Traces | None = None) -> None:
    """Let heartbeats and locks look as they do after a day: those of one process, or all."""
    for file in storage.list_files(HEARTBEATS):
        if traces is None or file.path in traces.heartbeats:
            _age(storage, file.path)
    if _is_owned(storage, LOCK_FILE, traces):
        _age(storage, LOCK_FILE)
    if _is_owned(storage, STORAGE_LOCK, traces):
        assert isinstance(storage, VersionedStorage)
        data, version = storage.read_versioned(STORAGE_LOCK)
        # It may have been given up right before the death, and another process has it by now.
        if traces is None or json.loads(data)["owner"] in traces.owners:
            old = replace(parse_lock_file(data), valid_until_ms=0)
            with suppress(ConflictError):
                storage.replace_if(STORAGE_LOCK, format_lock_file(old), version)


def _age(storage: Storage, path: str) -> None:
    """An object cannot be made older; a heartbeat that is not there is no sign of life either."""
    if not isinstance(storage, LocalStorage):
        storage.delete(path)
        return
    file = Path(storage.folder, path)
    # Another process may have just rolled back what it belongs to.
    with suppress(FileNotFoundError):
        then = file.stat().st_mtime - _DAY_S
        os.utime(file, (then, then))


def _is_owned(storage: Storage, lock: str, traces: Traces | None) -> bool:
    if not storage.exists(lock):
        return False
    return traces is None or json.loads(storage.read(lock))["owner"] in traces.owners


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def sweep_markers(storage: Storage) -> None:
    """What a writer does long after all tasks of the killed have ended."""
    delete_orphan_files(load_snapshot(storage), HeartbeatSettings(), _LONG_AFTER_MS)


def assert_tidy(storage: Storage) -> None:
    """No writer left a marker, a heartbeat, a lock or a temporary file."""
    sweep_markers(storage)
    for folder in (".hoodie/.temp", ".hoodie/.heartbeat"):
        remaining = [file.path for file in storage.list_tree(folder)]
        assert not remaining, remaining
    assert not storage.exists(LOCK_FILE)
    if storage.exists(STORAGE_LOCK):
        assert parse_lock_file(storage.read(STORAGE_LOCK)).expired
    if isinstance(storage, LocalStorage):
        assert not [*Path(storage.folder).rglob(".lw-*")]
