"""Roles that a process plays on a table until it is killed: it writes, plans, executes, cleans."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakewright.client.write_client import WriteClient
from lakewright.clock import Clock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.model.instant import REWRITES, Instant
from lakewright.storage.base import Storage
from lakewright.table.snapshot import load_snapshot
from lakewright.write.task import Operation
from support.tables import SCHEMA, row

DAY = "2026-01-01"
KEYS = 4
# Which services are planned: an option of these processes, not of the library.
SERVICES = "test.services"
CANCELLABLE = "hoodie.table.service.plan.cancellable"
Note = Callable[[Mapping[str, Any]], None]


@dataclass
class Role:
    """One process; `note` writes to its journal."""

    storage: Storage
    options: Mapping[str, str]
    clock: Clock
    chance: random.Random
    note: Note

    def play(self, name: str) -> None:
        """Do the same thing again and again, as long as the test runs."""
        parent = os.getppid()
        while os.getppid() == parent:
            try:
                getattr(self, name)()
            except (ConflictError, InvalidError, UnavailableError) as error:
                self.note({"failed": f"{type(error).__name__}: {error}"})

    def _writer(self, **more: str) -> WriteClient:
        options = {key: value for key, value in self.options.items() if key != SERVICES}
        made = WriteClient.create(self.storage, {**options, **more}, self.clock)
        return replace(made, engine=LocalEngine)

    def ingest(self) -> None:
        """Renew a row; its ordering is the time, so that later writes win."""
        at = self.clock.now_ms()
        key = f"k{self.chance.randrange(KEYS)}"
        rows = pa.Table.from_pylist([row(key, at, "renewed", DAY)], SCHEMA)
        self.note({"tries": key, "ts": at})
        self._writer().write(Operation.UPSERT, ArrowRows(rows))
        self.note({"wrote": key, "ts": at})

    def plan(self) -> None:
        """Schedule a service, of one kind or the other."""
        options = {CANCELLABLE: self.chance.choice(("true", "false"))}
        name = self.chance.choice(self.options[SERVICES].split(","))
        outcome = self._writer(**options).services.schedule(name)
        self.note({"planned": str(outcome), "cancellable": options[CANCELLABLE]})
        self.clock.sleep(self.chance.uniform(0, 0.3))

    def execute(self) -> None:
        """Execute a plan that waits, or is being executed."""
        waiting = load_snapshot(self.storage).timeline.pending(*REWRITES)
        if not waiting:
            self.clock.sleep(0.05)
            return
        chosen: Instant = self.chance.choice(waiting)
        commit = self._writer().services.execute(chosen.requested_at)
        self.note({"executed": commit.instant, "completed_at": commit.completed_at})

    def clean(self) -> None:
        """Clean, and with it roll back plans without an executor."""
        outcome = self._writer().services.run("clean")
        self.note({"cleaned": str(outcome)[:200]})
        self.clock.sleep(self.chance.uniform(0, 0.5))

    def cancel(self) -> None:
        """Cancel a plan, being executed or not."""
        waiting = load_snapshot(self.storage).timeline.pending(*REWRITES)
        if waiting:
            chosen = self.chance.choice(waiting)
            self.note({"cancelled": str(self._writer().services.cancel(chosen.requested_at))})
        self.clock.sleep(self.chance.uniform(0, 1))
