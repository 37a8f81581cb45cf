"""Reading ahead."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from lakewright.utils.concurrent import ahead


def numbers(made: list[int], ended: list[bool], last: int = 5) -> Generator[int, None, None]:
    try:
        for number in range(last):
            made.append(number)
            yield number
        if last < 0:
            raise ValueError("no numbers")
    finally:
        ended.append(True)


def test_items_come_in_order_and_one_is_made_ahead() -> None:
    made: list[int] = []
    ended: list[bool] = []
    items = ahead(numbers(made, ended))
    assert next(items) == 0
    assert list(items) == [1, 2, 3, 4]
    assert made == [0, 1, 2, 3, 4]
    assert ended == [True]


def test_a_consumer_that_stops_early_ends_the_producer() -> None:
    made: list[int] = []
    ended: list[bool] = []
    before = threading.active_count()
    items = ahead(numbers(made, ended))
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert len(made) <= 2
    assert ended == [True]
    assert threading.active_count() == before


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="no numbers"):
        list(ahead(numbers([], [], -1)))
