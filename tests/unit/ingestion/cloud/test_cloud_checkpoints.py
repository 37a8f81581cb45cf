"""Checkpoints of cloud objects: their text, and what real Hudi's mean here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import Checkpoint, Version, checkpoint_in
from lakewright.ingestion.cloud.selection import (
    ObjectPosition,
    parse_position,
    requested_position,
    translated,
)
from lakewright.ingestion.cloud.source import CloudObjectsSource
from lakewright.model.instant import Action, Instant, State
from lakewright.storage.memory import MemoryStorage

DAY = "20260101"


def at(second: int) -> str:
    return f"{DAY}{second:06d}000"


def write(requested: int, completed: int) -> Instant:
    return Instant(at(requested), Action.COMMIT, completed_at=at(completed))


TEXTS = {
    "a commit": (at(1), ObjectPosition(at(1))),
    "a key in a commit": (f"{at(1)}#a/b.json", ObjectPosition(at(1), "a/b.json")),
    "a key with the sign that divides": (f"{at(1)}#a#b", ObjectPosition(at(1), "a#b")),
    "a time of old writers": (f"{at(1)[:14]}#a", ObjectPosition(at(1)[:14] + "999", "a")),
    "zeros are the beginning": ("00000000000000", None),
    "a zero is the beginning": ("0", None),
}


@pytest.mark.parametrize(("text", "place"), TEXTS.values(), ids=list(TEXTS))
def test_reads_a_checkpoint(text: str, place: ObjectPosition | None) -> None:
    assert parse_position(Checkpoint(text, Version.V2)) == place


WRONG = {
    "Kafka's offsets": "topic,0:12,1:7",
    "milliseconds of stage one": "1767225600000",
    "a file name": "part-1.parquet",
    "a key without a commit": "#a/b.json",
    "nothing": "",
    "Hudi's words, which are for users": f"resumeFromInstantCompletionTime:{at(1)}",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=list(WRONG))
def test_refuses_a_checkpoint_of_another_kind(text: str) -> None:
    with pytest.raises(InvalidError, match="not a checkpoint of cloud objects"):
        parse_position(Checkpoint(text, Version.V2))


def test_the_target_has_hudis_position_and_the_exact_one() -> None:
    reached = ObjectPosition(at(2), "a#b")
    checkpoint = reached.checkpoint(requested_position(reached, [write(1, 2)]))
    extra = checkpoint.as_extra()
    assert extra == {
        "deltastreamer.checkpoint.key": f"{at(1)}#a#b",
        "lakewright.ingest.position": f"{at(2)}#a#b",
    }
    assert checkpoint_in(extra) == checkpoint
    assert parse_position(checkpoint) == reached


def test_an_override_is_under_the_key_of_the_same_version() -> None:
    reached = ObjectPosition(at(2), "k")
    checkpoint = replace(reached.checkpoint(f"{at(1)}#k"), reset="from here")
    extra = checkpoint.as_extra()
    assert extra["deltastreamer.checkpoint.reset_key"] == "from here"
    assert checkpoint_in(extra) == checkpoint


def test_a_batch_of_hudi_itself_counts_alone() -> None:
    extra = {"deltastreamer.checkpoint.key": f"{at(3)}#k"}
    assert checkpoint_in(extra) == Checkpoint(f"{at(3)}#k", Version.V1)


def test_positions_of_earlier_versions_are_still_read() -> None:
    extra = {"streamer.checkpoint.key.v2": f"{at(1)}#a#b"}
    checkpoint = checkpoint_in(extra)
    assert checkpoint is not None
    assert parse_position(checkpoint) == ObjectPosition(at(1), "a#b")
    assert checkpoint.as_extra() == extra


ORDERLY = (write(1, 2), write(3, 4), write(5, 6))
# The second was requested first and completed last.
CROSSED = (write(1, 2), write(3, 9), write(4, 6), write(5, 7))
PENDING = Instant(at(3), Action.COMMIT, State.INFLIGHT)
FOR_HUDI = {
    "a whole commit": (ORDERLY, ObjectPosition(at(4)), at(3)),
    "a key in a commit": (ORDERLY, ObjectPosition(at(4), "k"), f"{at(3)}#k"),
    "nothing behind a commit that was requested before and is unread": (
        CROSSED, ObjectPosition(at(7), "k"), at(1)),
    "a key in the first of crossed commits": (
        CROSSED, ObjectPosition(at(9), "k"), f"{at(3)}#k"),
    "all of crossed commits": (CROSSED, ObjectPosition(at(9)), at(5)),
    "nothing behind a commit that is pending": (
        (write(1, 2), PENDING, write(4, 5)), ObjectPosition(at(5)), at(1)),
    "a time between commits": (ORDERLY, ObjectPosition(at(5)), at(3)),
    "a time before all commits": (ORDERLY, ObjectPosition(at(0)), f"{DAY}000000999"),
    "a key in no commit": (ORDERLY, ObjectPosition(at(5), "k"), at(3)),
}  # fmt: skip


@pytest.mark.parametrize(("instants", "reached", "text"), FOR_HUDI.values(), ids=list(FOR_HUDI))
def test_a_position_as_hudis_sources_write_it(
    instants: tuple[Instant, ...], reached: ObjectPosition, text: str
) -> None:
    assert requested_position(reached, instants) == text


@given(st.permutations(range(6)), st.integers(0, 5), st.booleans(), st.integers(0, 6))
def test_hudi_goes_on_from_it_without_a_gap(
    order: list[int], last: int, whole: bool, completed: int
) -> None:
    """Hudi reads (requested time, key) in this order; whatever it passes over was read here."""
    instants = [
        Instant(at(10 + n), Action.COMMIT, completed_at=at(20 + place))
        if place < completed
        else Instant(at(10 + n), Action.COMMIT, State.INFLIGHT)
        for n, place in enumerate(order)
    ]
    reached = ObjectPosition(at(20 + last), None if whole else "k")
    text = requested_position(reached, instants)
    requested_at, _, key = text.partition("#")
    for instant in instants:
        for event in ("a", "k", "z"):
            passed_over = (instant.requested_at, event) <= (requested_at, key or "~")
            is_read = instant.completed_at is not None and not reached.is_before(
                instant.completed_at, event
            )
            assert is_read or not passed_over


TRANSLATED = {
    "a commit": (ORDERLY, ObjectPosition(at(3)), ObjectPosition(at(4))),
    "a key in a commit": (ORDERLY, ObjectPosition(at(3), "k"), ObjectPosition(at(4), "k")),
    "commits that were requested later and completed earlier are not passed over": (
        CROSSED, ObjectPosition(at(3), "k"), ObjectPosition(at(2))),
    "a commit that completes later is read again rather than never": (
        CROSSED, ObjectPosition(at(5), "k"), ObjectPosition(at(7), "k")),
    "nothing before what was not read is the beginning": (
        CROSSED[1:], ObjectPosition(at(3)), None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("instants", "place", "expected"), TRANSLATED.values(), ids=list(TRANSLATED)
)
def test_a_place_by_requested_time_is_translated(
    instants: tuple[Instant, ...], place: ObjectPosition, expected: ObjectPosition | None
) -> None:
    assert translated(place, instants) == expected


def test_a_commit_that_is_not_there_cannot_be_translated() -> None:
    with pytest.raises(InvalidError, match="does not have"):
        translated(ObjectPosition(at(8)), ORDERLY)


OVERRIDES = {
    "a completion time in Hudi's words": (
        f"resumeFromInstantCompletionTime:{at(1)}", Checkpoint(at(1), Version.V2)),
    "a requested time in Hudi's words": (
        f"resumeFromInstantRequestTime: {at(1)}#a:b", Checkpoint(f"{at(1)}#a:b", Version.V1)),
    "a place as it is": (f"{at(1)}#a:b", Checkpoint(f"{at(1)}#a:b", Version.V2)),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), OVERRIDES.values(), ids=list(OVERRIDES))
def test_users_say_where_to_go_on(text: str, expected: Checkpoint) -> None:
    source = CloudObjectsSource(MemoryStorage.fresh(), {})
    resumed = source.resume_from(text)
    assert (resumed.text, resumed.version, resumed.reset) == (expected.text, expected.version, text)


def test_a_start_that_is_no_checkpoint_of_cloud_objects_is_refused() -> None:
    with pytest.raises(InvalidError, match="not a checkpoint of cloud objects"):
        CloudObjectsSource(MemoryStorage.fresh(), {}).resume_from("resumeFromInstantTime:7")


@pytest.mark.parametrize("key", ["x ", " ", "\n", "a#b "])
def test_a_key_may_have_blanks_at_its_end(key: str) -> None:
    place = ObjectPosition("20260101000000000", key)
    assert parse_position(place.checkpoint()) == place


def test_two_that_completed_in_the_same_millisecond_are_both_read() -> None:
    at = [f"2026010100000{number:04}" for number in range(10)]
    writes = [Instant(at[n], Action.COMMIT, completed_at=at[9]) for n in (5, 6)]
    place = translated(ObjectPosition(at[5], "k"), writes)
    assert place is None or place.is_before(at[9], "a")
