"""How the demo shows what happened: ten lines, a document, a board of any size."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from lakewright.cli.main import app
from lakewright.demo.board import board, brief, draw_bars, watching
from lakewright.demo.checks import Check, Lateness, check_with_hudi_rs, files_of_instant
from lakewright.demo.command import next_commands, program_command
from lakewright.demo.events import Recipe, Row
from lakewright.demo.scenario import has_announced
from lakewright.demo.story import (
    Bar,
    Clustering,
    Compacted,
    Consumed,
    Expired,
    Round,
    Story,
    bars,
    document,
    event_time_text,
    summary,
)
from lakewright.model.freshness import ViewFreshness
from lakewright.model.instant import Action, Instant, State
from support.golden import GoldenTables

NOON = 1_773_576_000_000
ROUNDS = (Round(0, 900, 300, 0, 4.0), Round(1, 100, 20, 30, 1.5))
STORY = Story(
    "/lake/rides",
    Recipe(date(2026, 3, 15)),
    doing="batch 3: ingesting 100 events",
    rounds=ROUNDS,
    compactions=(
        Compacted(9, 9, NOON, folded=3, left=1),
        Compacted(3, 9, NOON, folded=2, left=2),
        Compacted(2, 8, NOON, left=2, skipped="nothing happened before"),
    ),
    consumed=Consumed(350, 4, "20260315120000000"),
    expired=Expired(("2026-02-13",), 40),
    clusterings=(
        Clustering("20260315115800000", 7),
        Clustering("20260315115900000", 12, "20260315115901000", "faster", files=5),
    ),
    snapshot=ViewFreshness(NOON - 86_400_000, NOON),
    read_optimized=ViewFreshness(NOON - 3_600_000, NOON - 60_000),
    log_files=2,
    log_bytes=4096,
    bars=(Bar("deltacommit", 0, 40), Bar("clustering", 50, None), Bar("rollback", 60, 80)),
    messages=("ingest: 900 events", "compaction: 3 log files compacted"),
    lateness=Lateness(60, 7),
    checks=(Check("table", True, "280 rows"), Check("hudi-rs", None, "not installed")),
    took_s=61.7,
)
TOLD = """\
Table: 320 rides of 8 days, merge-on-read, from seed 7; 62 s in all.
Ingest: 1,000 events in 2 batches; 30 updates, 60 events late, 7 of them after newer ones.
Incremental services: planning considered 9 of 9 partitions the first time, then 3 of 9, 2 of 8.
Event time: 2 compactions of 5 log files, the last up to 2026-03-15 12:00; uncompacted log files \
with newer rows: 2.
Fast view: complete up to 2026-03-15 11:00, by the least event time of the last commit; newest row \
2026-03-15 11:59, the snapshot's 2026-03-15 12:00.
Change feed: 350 changes of 4 commits, in the order in which they completed.
TTL: deleted 2026-02-13 with 40 rows.
Clustering: 1 completed before an ingest could, then a plan of 12 file groups was preempted by \
commit 20260315115901000 of an ingest; files rolled back: 5, nothing left over.
Checks against plain Python: 1 of 1 passed (table).
Check against hudi-rs: not run (not installed).
"""


def shown(story: Story, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(board(story, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_ten_lines_summarize_it() -> None:
    assert "\n".join(summary(STORY)) + "\n" == TOLD


def test_a_story_in_which_nothing_happened_has_ten_lines_too() -> None:
    lines = summary(Story("/lake/rides", STORY.recipe))
    assert len(lines) == 10
    assert "none was preempted" in lines[7]


def test_a_failed_check_is_reported_with_its_reason() -> None:
    wrong = replace(STORY, checks=(Check("table", False, "1 row for 2"), *STORY.checks[1:]))
    assert "table WRONG (1 row for 2)" in summary(wrong)[8]
    assert not wrong.passed


def test_a_check_that_could_not_run_fails_nothing_but_no_check_at_all_does() -> None:
    assert STORY.passed
    assert not Story("/lake/rides", STORY.recipe).passed


def test_the_document_is_json_and_holds_the_lines() -> None:
    parsed = json.loads(json.dumps(document(STORY)))
    assert parsed["passed"] is True
    assert parsed["summary"] == summary(STORY)
    assert parsed["compactions"][1]["looked_at"] == 3
    assert parsed["freshness"]["read_optimized"]["completion"] == NOON - 3_600_000


def test_a_board_fits_into_the_terminal() -> None:
    for width, height in ((80, 24), (100, 30), (200, 60), (64, 24)):
        lines = shown(
            replace(STORY, bars=STORY.bars * 20, messages=STORY.messages * 20), width, height
        )
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
        assert any("timeline" in line for line in lines)
        assert any("complete up to 2026-03-15 11:00" in line for line in lines)


def test_a_small_terminal_gets_four_lines() -> None:
    for width, height in ((40, 24), (20, 5), (120, 10)):
        lines = shown(STORY, width, height)
        assert len(lines) == len(brief(STORY)) == 4
        assert max(map(len, lines)) <= width


def test_a_board_without_anything_yet() -> None:
    assert shown(Story("/lake/rides", STORY.recipe), 80, 24)


def test_bars_go_from_request_to_completion_on_one_scale() -> None:
    assert draw_bars(STORY.bars, 8) == ["####", "     ##>", "      ##"]
    assert draw_bars([Bar("clean", 5, 5)], 8) == ["#"]
    assert draw_bars([], 8) == []


def test_instants_are_shown_as_bars() -> None:
    completed = Instant(
        "20260315120000250", Action.DELTA_COMMIT, State.COMPLETED, "20260315120001000"
    )
    waiting = Instant("20260315120002000", Action.CLUSTERING, State.REQUESTED)
    assert bars([completed, waiting]) == (
        Bar("deltacommit", NOON + 250, NOON + 1000),
        Bar("clustering", NOON + 2000, None),
    )
    assert event_time_text(None) == "unknown"


def test_lines_are_printed_once_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=20)
    with watching(console) as show:
        show(STORY)
        show(STORY)
        show(replace(STORY, messages=(*STORY.messages, "ttl: deleted [2026-02-13]")))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "\n".join((*STORY.messages, "ttl: deleted [2026-02-13]\n"))


def test_a_quiet_demo_prints_nothing() -> None:
    console = Console(file=io.StringIO())
    with watching(console, quiet=True) as show:
        show(STORY)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_a_terminal_is_shown_the_board(golden: GoldenTables) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=24)
    with watching(console) as show:
        show(replace(STORY, path=str(golden["mor_pending_compaction"])))
    assert isinstance(console.file, io.StringIO)
    assert "batch 3: ingesting 100 events" in console.file.getvalue()
    assert "compaction" in console.file.getvalue()
    assert "#>" in console.file.getvalue()


def test_files_of_an_instant_are_listed_in_partitions_and_on_the_timeline(tmp_path: Path) -> None:
    for name in ("day/a_1_20260315.parquet", ".hoodie/timeline/20260315.clustering.requested"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "day/b_1_20260316.parquet").touch()
    files = files_of_instant(str(tmp_path), "20260315")
    assert files == (".hoodie/timeline/20260315.clustering.requested", "day/a_1_20260315.parquet")


def test_a_log_file_is_announced_by_its_marker(tmp_path: Path) -> None:
    assert not has_announced(str(tmp_path), "1")
    folder = tmp_path / ".hoodie" / ".temp" / "1" / "2026-03-14"
    folder.mkdir(parents=True)
    (folder / "a-0_0-1-2_1.parquet.marker.CREATE").touch()
    assert not has_announced(str(tmp_path), "1")
    (folder / ".a-0_1.log.1_0-1-2.marker.CREATE").touch()
    assert has_announced(str(tmp_path), "1")


def test_without_hudi_rs_the_check_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hudi", None)
    check = check_with_hudi_rs("/nowhere", [], [Row("a", "d", "Oslo", "finished", 1, 1)])
    assert check == Check("hudi-rs", None, "not installed: pip install hudi")


def test_commands_to_go_on_with_are_ready_to_be_pasted() -> None:
    assert next_commands("/my lake/rides")[0] == "lakewright ui '/my lake/rides'"
    python = Path("/my home/.venv/bin/python")
    main = Path("/src/lakewright/demo/__main__.py")
    assert program_command(Path("/usr/bin/lakewright"), python, Path("/")) == "lakewright"
    assert program_command(main, python, Path("/my home")) == ".venv/bin/lakewright"
    assert program_command(main, python, Path("/tmp")) == "'/my home/.venv/bin/lakewright'"


def test_too_few_rides_are_refused_before_anything_starts() -> None:
    result = CliRunner().invoke(app, ["demo", "--rides", "3"])
    assert result.exit_code == 2
    assert "too few rides" in result.output


def test_a_folder_that_is_in_use_or_cannot_be_made_is_refused_before_spark(tmp_path: Path) -> None:
    (tmp_path / "rides").mkdir()
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path)])
    assert result.exit_code == 2
    assert "a table here already" in result.output
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "choose another one" in result.output
