"""Statements on a table that another writer changes at the same time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakewright.errors import ConflictError, after_commit
from lakewright.sql import dispatch
from lakewright.sql.parser import Truncate
from lakewright.sql.session import RETRIES, ChangedError, Session, retry_on_change

SESSION = cast(Session, SimpleNamespace(spark=SimpleNamespace(conf={})))


def test_truncate_runs_again_on_the_table_as_it_is_then(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots: list[Any] = []

    def truncate(target: Any, change: Truncate) -> None:
        if target == 1:
            raise ChangedError("another writer changed the table")

    def load_target() -> Any:
        snapshots.append(len(snapshots) + 1)
        return snapshots[-1]

    monkeypatch.setattr(dispatch, "run_truncate", truncate)
    assert dispatch._commit_change(SESSION, load_target, Truncate(()), "") is None
    assert snapshots == [1, 2]


def test_a_statement_that_has_committed_is_not_run_again() -> None:
    session = cast(Session, SimpleNamespace(spark=SimpleNamespace(conf={RETRIES: "3"})))
    runs: list[Any] = []

    def run(target: Any) -> None:
        runs.append(target)
        conflict = ConflictError("another process cleans")
        raise after_commit(conflict, "20260101000000000", "the clean after it")

    with pytest.raises(ConflictError, match="do not repeat it"):
        retry_on_change(session, lambda: cast(Any, "target"), run)
    assert runs == ["target"]
