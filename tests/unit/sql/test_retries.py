"""Statements on a table that another writer changes at the same time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakewright.sql import dispatch
from lakewright.sql.parser import Truncate
from lakewright.sql.session import ChangedError, Session

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
