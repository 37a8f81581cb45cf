"""How far a source was read: what commits keep of it, and what users say instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import (
    INITIAL,
    Checkpoint,
    TimelinePosition,
    Version,
    checkpoint_in,
    parse_override,
    position_of,
    resumed,
    translated,
)
from lakewright.model.instant import Action, Instant
from lakewright.scan.planner import EARLIEST
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.table_builder import TableBuilder
from lakewright.testing.timeline_drawing import draw
from support.tables import BUILT_SCHEMA

V1, V1_RESET = "deltastreamer.checkpoint.key", "deltastreamer.checkpoint.reset_key"
V2, V2_RESET = "streamer.checkpoint.key.v2", "streamer.checkpoint.reset.key.v2"
TIME = "20250110120000000"

KEPT: dict[str, tuple[dict[str, str], Checkpoint | None]] = {
    "the first version": ({V1: "t,0:5"}, Checkpoint("t,0:5", Version.V1)),
    "the first version with an override of the user": (
        {V1: "7", V1_RESET: "5"}, Checkpoint("7", Version.V1, "5")),
    "the second version": ({V2: TIME}, Checkpoint(TIME, Version.V2)),
    "the second version with an override of the user": (
        {V2: TIME, V2_RESET: "x"}, Checkpoint(TIME, Version.V2, "x")),
    "of both the second counts": ({V1: "1", V2: "2"}, Checkpoint("2", Version.V2)),
    "an override for the other one does not": (
        {V1_RESET: "1", V2: "2"}, Checkpoint("2", Version.V2)),
    "an empty one is none": ({V1: "", V2: ""}, None),
    "behind an empty one there may be another": ({V1: "1", V2: ""}, Checkpoint("1", Version.V1)),
    "none": ({"schema": "{}"}, None),
}  # fmt: skip


@pytest.mark.parametrize(("extra", "expected"), KEPT.values(), ids=list(KEPT))
def test_what_a_commit_keeps(extra: dict[str, str], expected: Checkpoint | None) -> None:
    assert checkpoint_in(extra) == expected
    if expected is not None:
        assert checkpoint_in(expected.as_extra()) == expected
        assert expected.as_extra().items() <= extra.items()


GOOD = {
    "by requested time": (f"resumeFromInstantRequestTime:{TIME}", TIME, Version.V1),
    "by completion time": (f"resumeFromInstantCompletionTime:{TIME}", TIME, Version.V2),
    "with blanks around both parts": (
        f" resumeFromInstantCompletionTime :  {TIME} ", TIME, Version.V2),
    "from the beginning": (f"resumeFromInstantRequestTime:{INITIAL}", INITIAL, Version.V1),
    "from the beginning, in short": ("resumeFromInstantCompletionTime:000", "000", Version.V2),
}  # fmt: skip


@pytest.mark.parametrize(("text", "value", "version"), GOOD.values(), ids=list(GOOD))
def test_an_override_in_hudis_words(text: str, value: str, version: Version) -> None:
    assert parse_override(text) == Checkpoint(value, version, reset=text)


BAD = {
    "a bare time": TIME,
    "another word": f"resumeFrom:{TIME}",
    "the word in another case": f"resumefrominstantrequesttime:{TIME}",
    "the word alone": "resumeFromInstantRequestTime",
    "no time": "resumeFromInstantRequestTime:",
    "a blank for a time": "resumeFromInstantRequestTime: ",
    "three parts": f"resumeFromInstantRequestTime:{TIME}:{TIME}",
    "a colon at the end": f"resumeFromInstantRequestTime:{TIME}:",
    "a date": "resumeFromInstantCompletionTime:2025-01-10",
    "nothing": "",
}


@pytest.mark.parametrize("text", BAD.values(), ids=list(BAD))
def test_any_other_override_is_refused_in_hudis_words(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_override(text)
    assert str(caught.value) == (
        f"Illegal checkpoint key override `{text}`. Valid format is either "
        "`resumeFromInstantRequestTime:<checkpoint value>` or "
        "`resumeFromInstantCompletionTime:<checkpoint value>`"
    )


OVERRIDE = f"resumeFromInstantCompletionTime:{TIME}"
LATER = Checkpoint("20260101000000000", Version.V2)
OVERRIDDEN = Checkpoint(TIME, Version.V2, OVERRIDE)
AFTER_OVERRIDE = Checkpoint("20260101000000000", Version.V2, OVERRIDE)
RESUMED: dict[str, tuple[Checkpoint | None, str | None, Checkpoint | None]] = {
    "nothing was read, no override": (None, None, None),
    "what was read counts": (LATER, None, LATER),
    "an override counts more": (LATER, OVERRIDE, OVERRIDDEN),
    "an override counts where nothing was read": (None, OVERRIDE, OVERRIDDEN),
    "the same as last time is ignored": (AFTER_OVERRIDE, OVERRIDE, AFTER_OVERRIDE),
    "something else than last time is not": (
        AFTER_OVERRIDE, f"resumeFromInstantRequestTime:{TIME}",
        Checkpoint(TIME, Version.V1, f"resumeFromInstantRequestTime:{TIME}")),
    "the override of last time is forgotten where none is given": (AFTER_OVERRIDE, None, LATER),
}  # fmt: skip


@pytest.mark.parametrize(("last", "override", "expected"), RESUMED.values(), ids=list(RESUMED))
def test_where_to_go_on(
    last: Checkpoint | None, override: str | None, expected: Checkpoint | None
) -> None:
    assert resumed(last, override) == expected


def test_other_sources_read_an_override_in_their_own_way() -> None:
    checkpoint = resumed(LATER, "t,0:5", Checkpoint)
    assert checkpoint == Checkpoint("t,0:5", Version.V1, "t,0:5")


# Requested at the tick where a bar begins, completed where it ends.
IN_ORDER = """
    commit |-|
    commit    |-|
    commit       |-|
    """
CROSSED = """
    commit |--------|
    commit  |-|
    commit      |-----------|
    commit       |-|
    """


def tick(number: int) -> str:
    return draw("commit " + " " * number + "|-|").instants[0].requested_at


def ended(picture: str, begin: int) -> str:
    at = next(i for i in draw(picture).completed_writes if i.requested_at == tick(begin))
    return at.completed_at or ""


def test_a_requested_time_is_translated() -> None:
    position = translated(tick(3), draw(IN_ORDER).completed_writes)
    assert position == TimelinePosition(ended(IN_ORDER, 3))


UNREAD = {
    "those requested later that completed first are unread": (0, [1, 5, 6]),
    "those requested earlier that completed later are read once more": (1, [0, 5, 6]),
    "so are all of them": (6, [0, 5]),
    "only those requested later remain where all others completed first": (5, [6]),
}


@pytest.mark.parametrize(("begin", "unread"), UNREAD.values(), ids=list(UNREAD))
def test_what_is_unread_where_writes_overlap(begin: int, unread: list[int]) -> None:
    instants = draw(CROSSED).completed_writes
    position = translated(tick(begin), instants)
    remaining = {
        i.requested_at
        for i in instants
        if (i.completed_at or "") > position.begin and i.requested_at not in position.already_read
    }
    assert remaining == {tick(number) for number in unread}


@given(
    writes=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 20)),
        min_size=1,
        unique_by=lambda tick_and_length: tick_and_length[0],
    ),
    chosen=st.integers(0, 19),
)
def test_a_translated_checkpoint_passes_over_no_write(
    writes: list[tuple[int, int]], chosen: int
) -> None:
    instants = [
        Instant(str(100 + begin), Action.COMMIT, completed_at=str(100 + begin + length))
        for begin, length in writes
    ]
    reached = instants[chosen % len(instants)]
    position = translated(reached.requested_at, instants)
    for instant in instants:
        behind = instant.requested_at <= reached.requested_at and not _after(instant, reached)
        unread = (
            instant.completed_at or ""
        ) > position.begin and instant.requested_at not in position.already_read
        assert unread == (not behind)
        # A reader that goes on behind `through` by completion times alone has read all of them.
        assert behind <= ((instant.completed_at or "") <= max(position.begin, position.through))


def _after(one: Instant, other: Instant) -> bool:
    return (one.completed_at or "") > (other.completed_at or "")


def test_positions_on_a_table() -> None:
    storage = MemoryStorage.fresh()
    builder = TableBuilder(storage, BUILT_SCHEMA, table_type="COPY_ON_WRITE").create()
    instant: Instant = builder.commit({}, action=Action.COMMIT)
    snapshot = load_snapshot(storage)
    by_request = position_of(Checkpoint(instant.requested_at, Version.V1), snapshot)
    assert by_request == TimelinePosition(instant.completed_at or "")
    # A completion time needs no instant that has it.
    assert position_of(Checkpoint(TIME, Version.V2), snapshot) == TimelinePosition(TIME)
    for version in Version:
        assert position_of(Checkpoint(INITIAL, version), snapshot) == TimelinePosition(EARLIEST)
    with pytest.raises(InvalidError, match=f"Unable to find completion time for {TIME}"):
        position_of(Checkpoint(TIME, Version.V1), snapshot)
