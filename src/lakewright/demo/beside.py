"""A clustering that steps aside, executed in a thread while a batch is ingested."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from statistics import median

import lakewright as lw
from lakewright.demo.events import Batch
from lakewright.demo.judge import has_announced, left_of
from lakewright.demo.stage import SEVERAL_WRITERS, Stage
from lakewright.demo.story import Clustering
from lakewright.model.instant import Action

STEPS_ASIDE = {
    "hoodie.table.service.plan.cancellable": "true",
    "hoodie.clustering.plan.strategy.sort.columns": "city,at",
    **SEVERAL_WRITERS,
}
# In what part of an ingest the clustering begins: before its workers announce files, and too late
# to be done before they do.
_BEGINS_AFTER = 0.4
_PATIENCE_S = 60.0
_POLL_S = 0.02


def cluster_beside(stage: Stage, batch: Batch) -> None:
    """Execute a cancellable clustering in a thread while a batch is ingested."""
    table = stage.table
    stage.update(doing="clustering: planning, cancellable")
    plan = table.schedule("clustering", STEPS_ASIDE)
    if isinstance(plan, lw.Skip):
        stage.update(f"clustering: {plan}")
        stage.bring(batch)
        return
    planned = table.snapshot().plan_of(plan.requested_at, Action.CLUSTERING)
    groups = 0 if planned is None else len(planned.file_groups)
    is_last = batch.number == stage.story.recipe.batches
    rest = (
        None if is_last else median(each.took_s for each in stage.story.rounds[1:]) * _BEGINS_AFTER
    )
    executor = Executor(table, plan, stage.story.path, rest)
    executor.start()
    winner = stage.bring(batch)
    executor.join()
    told = Clustering(plan.requested_at, groups)
    if executor.gave_way is not None:
        back = [each for each in table.rollbacks() if each.target.requested_at == plan.requested_at]
        told = replace(
            told,
            winner=winner,
            reason=str(executor.gave_way),
            files=sum(each.files for each in back),
            left=left_of(stage.story.path, plan.requested_at),
        )
    said = (
        "clustering: was quicker than the ingest, which went after it"
        if told.winner is None
        else f"clustering: gave way to commit {winner}; files taken back: {told.files}"
    )
    stage.look(said, clusterings=(*stage.story.clusterings, told))


class Executor(threading.Thread):
    """Executes a plan while a write is under way; `gave_way` is why it could not end it.

    It begins `rest` seconds after the write did, so that both are at work at the same time. Which
    of them is quicker is not certain then; with a rest of None it waits for the write to announce a
    file that the plan would replace, and is sure to lose.
    """

    def __init__(self, table: lw.Table, plan: lw.Instant, path: str, rest: float | None) -> None:
        super().__init__(name="clustering")
        self._table, self._plan, self._path, self._rest = table, plan, path, rest
        self.gave_way: lw.ConflictError | None = None
        self.failed: lw.LakewrightError | None = None

    def run(self) -> None:
        """Wait for the write, then execute."""
        end = time.monotonic() + _PATIENCE_S
        while not self._is_time() and time.monotonic() < end:
            time.sleep(_POLL_S)
        time.sleep(self._rest or 0.0)
        try:
            self._table.execute(self._plan, SEVERAL_WRITERS)
        except lw.ConflictError as error:
            self.gave_way = error
        except lw.LakewrightError as error:
            self.failed = error

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end; an error other than a conflict is raised here."""
        super().join(timeout)
        if self.failed is not None:
            raise self.failed

    def _is_time(self) -> bool:
        beside = [
            each
            for each in self._table.timeline()
            if each.action == "deltacommit" and each.requested_at > self._plan.requested_at
        ]
        if self._rest is not None:
            return bool(beside)
        return any(i.is_completed or has_announced(self._path, i.requested_at) for i in beside)
