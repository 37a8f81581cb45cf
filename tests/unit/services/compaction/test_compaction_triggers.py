"""When a compaction is due, by the number of commits and by time."""

from __future__ import annotations

import pytest

from lakewright.model.instant import Action, Instant
from lakewright.model.timeline import Timeline
from lakewright.services.compaction.service import check_compaction_trigger
from lakewright.testing.timeline_drawing import at, draw
from support.services import compaction_settings

NOW = at(40)
THREE: dict[str, object] = {"max_commits": 3}
REQUEST: dict[str, object] = {"max_commits": 2, "trigger": "num_commits_after_last_request"}

COMMITS: dict[str, tuple[str, dict[str, object], str | None]] = {
    "enough delta commits": (
        """
        deltacommit |-|
        deltacommit    |-|
        deltacommit       |-|
        """, THREE, None),
    "one that is not completed does not count": (
        """
        deltacommit |-|
        deltacommit    |-|
        deltacommit       |-
        """, THREE, "2 of 3 delta commits and no compaction yet"),
    "one that is only requested does not count": (
        """
        deltacommit |-|
        deltacommit    |-|
        deltacommit       |
        """, THREE, "2 of 3 delta commits and no compaction yet"),
    "replace commits do not count": (
        """
        deltacommit   |-|
        deltacommit      |-|
        replacecommit       |-|
        clustering             |-|
        """, THREE, "2 of 3 delta commits and no compaction yet"),
    "those before the last compaction do not count": (
        """
        deltacommit |-|
        deltacommit    |-|
        deltacommit       |-|
        compaction           |-|
        deltacommit             |-|
        """, THREE, f"1 of 3 delta commits since compaction {at(9)}"),
    "one that the compaction overlapped counts: its log files are on top": (
        """
        deltacommit |----------------|
        compaction       |-|
        deltacommit          |-|
        deltacommit              |-|
        """, THREE, None),
    "a pending compaction does not start a new count": (
        """
        deltacommit |-|
        deltacommit    |-|
        compaction        |
        deltacommit         |-|
        """, THREE, None),
    "after the last request it does": (
        """
        deltacommit |-|
        deltacommit    |-|
        compaction        |
        deltacommit         |-|
        """, REQUEST, f"1 of 2 delta commits since compaction {at(6)}"),
    "after the last request, enough": (
        """
        deltacommit |-|
        compaction     |
        deltacommit      |-|
        deltacommit         |-|
        """, REQUEST, None),
    "a completed compaction after the last pending one is the last request": (
        """
        deltacommit |-|
        compaction     |
        deltacommit      |-|
        compaction          |-|
        deltacommit            |-|
        """, REQUEST, f"1 of 2 delta commits since compaction {at(8)}"),
    "after the last request pending writes do not count either": (
        """
        compaction  |
        deltacommit   |-|
        deltacommit      |-
        """, REQUEST, f"1 of 2 delta commits since compaction {at(0)}"),
    "an empty table": ("clean |-|", THREE, "0 of 3 delta commits and no compaction yet"),
}  # fmt: skip


@pytest.mark.parametrize(("picture", "options", "expected"), COMMITS.values(), ids=list(COMMITS))
def test_by_number_of_commits(
    picture: str, options: dict[str, object], expected: str | None
) -> None:
    skip = check_compaction_trigger(draw(picture), compaction_settings(**options), NOW)
    assert (None if skip is None else skip.reason) == expected


def test_no_delta_commits_are_needed_with_a_number_of_zero() -> None:
    """As in Hudi."""
    compacted = draw("deltacommit |-|\ncompaction     |-|")
    assert check_compaction_trigger(compacted, compaction_settings(max_commits=0), NOW) is None


def test_by_default_five_delta_commits() -> None:
    few = draw("\n".join(f"deltacommit {' ' * 3 * n}|-|" for n in range(4)))
    enough = draw("\n".join(f"deltacommit {' ' * 3 * n}|-|" for n in range(5)))
    assert str(check_compaction_trigger(few, compaction_settings(), NOW)).startswith(
        "4 of 5 delta commits"
    )
    assert check_compaction_trigger(enough, compaction_settings(), NOW) is None


def at_minute(minute: int) -> str:
    return f"202601010{minute // 60}{minute % 60:02d}00000"


def minutes(*actions: str) -> Timeline:
    """Instants such as `deltacommit@5`, each completed in the minute it began."""
    made = []
    for text in actions:
        action, _, minute = text.partition("@")
        begun = at_minute(int(minute))
        made.append(Instant(begun, Action(action), completed_at=begun[:-1] + "1"))
    return Timeline.from_instants(made)


TWO_EACH = ("commit@10", "deltacommit@20", "deltacommit@30")
ONE = ("commit@10", "deltacommit@20")
SINCE = f"since compaction {at_minute(10)}"
FEW = f"1 of 2 delta commits {SINCE}"
EARLY = f"1800 of 3600 seconds {SINCE}"
TIMES: dict[str, tuple[str, tuple[str, ...], int, str | None]] = {
    "an hour after the last compaction": ("TIME_ELAPSED", ONE, 70, None),
    "half an hour after it": ("TIME_ELAPSED", ONE, 40, EARLY),
    "without a compaction the first delta commit counts": (
        "TIME_ELAPSED", ("deltacommit@0", "deltacommit@50"), 59,
        f"3540 of 3600 seconds since the first delta commit {at_minute(0)}"),
    "an hour after the first delta commit": ("TIME_ELAPSED", ("deltacommit@0",), 60, None),
    "an empty table has no time": ("TIME_ELAPSED", (), 60, "nothing was written yet"),
    "a clock that was set back is no time elapsed": (
        "TIME_ELAPSED", ("commit@50", "deltacommit@55"), 40,
        f"-600 of 3600 seconds since compaction {at_minute(50)}"),
    "both are needed: enough commits alone": ("NUM_AND_TIME", TWO_EACH, 40, EARLY),
    "both are needed: enough time alone": ("NUM_AND_TIME", ONE, 70, FEW),
    "both are needed and there": ("NUM_AND_TIME", TWO_EACH, 70, None),
    "one is needed: enough commits": ("NUM_OR_TIME", TWO_EACH, 40, None),
    "one is needed: enough time": ("NUM_OR_TIME", ONE, 70, None),
    "one is needed and none is there": ("NUM_OR_TIME", ONE, 40, f"{FEW}, and {EARLY}"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("trigger", "actions", "minute", "expected"), TIMES.values(), ids=list(TIMES)
)
def test_by_time(trigger: str, actions: tuple[str, ...], minute: int, expected: str | None) -> None:
    settings = compaction_settings(trigger=trigger, max_commits=2)
    skip = check_compaction_trigger(minutes(*actions), settings, at_minute(minute))
    assert (None if skip is None else skip.reason) == expected


def test_the_first_instant_of_a_bootstrapped_table_is_long_past() -> None:
    timeline = Timeline.from_instants(
        [Instant("00000000000002", Action.COMMIT, completed_at=at_minute(0))]
    )
    assert (
        check_compaction_trigger(
            timeline, compaction_settings(trigger="TIME_ELAPSED"), at_minute(1)
        )
        is None
    )
