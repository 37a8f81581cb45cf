"""A job of the page that starts Spark imports nothing from its folder and shows no secret."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from lakewright.clock import SystemClock
from lakewright.storage.local import LocalStorage
from lakewright.ui.jobs import Jobs
from lakewright.ui.table_view import TableView
from support.tables import WrittenTable, row

pytestmark = pytest.mark.thorough

SECRETS = {"spark.hadoop.fs.s3a.secret.key": "SUPERSECRET", "fs.s3a.access.key": "AKIAHIDDEN"}


def test_a_compaction_in_a_hostile_folder_with_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage.at(str(tmp_path / "table"), {})
    table = WrittenTable(storage=storage, options={"hoodie.compact.inline": "false"})
    table.create("MERGE_ON_READ")
    for ts in range(1, 7):
        table.upsert([row("k", ts, f"v{ts}")])
    folder = tmp_path / "downloads"
    folder.mkdir()
    for name in ("typer", "numpy", "pyarrow", "pyspark", "lakewright", "fastavro"):
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'RUN')!r}, 'w')\nraise SystemExit(3)"
        )
    monkeypatch.chdir(folder)
    # A Java that records how it was called, and continues as the real one.
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    real = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{tmp_path}/arguments"\nexec "{real}" "$@"\n'
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))

    jobs = Jobs(SystemClock(), master="local[1]")
    jobs.run(0, TableView.at(storage.root, SECRETS), "compaction")
    for thread in threading.enumerate():
        if getattr(thread, "_target", None) == jobs._wait:
            thread.join()
    (job,) = jobs.jobs_of(0)
    assert (job["state"], job["error"]) == ("done", None)
    assert [step["result"] for step in job["steps"]] == ["done"]
    assert not (tmp_path / "RUN").exists()
    arguments = (tmp_path / "arguments").read_text("utf-8")
    assert "org.apache.spark.deploy.SparkSubmit" in arguments
    for secret in SECRETS.values():
        assert secret not in arguments + json.dumps(job)
    assert table.rows(optimized=True) == table.rows()
