"""Reading ahead."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from lakewright.utils.concurrent import ahead, map_ahead


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


def test_results_come_in_order_and_few_items_are_ahead() -> None:
    begun: list[int] = []
    returned: list[int] = []
    ahead_of_caller: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        return -item

    for result in map_ahead(work, range(20), lambda item: 1, most=4, max_size=100):
        returned.append(result)
        ahead_of_caller.append(len(begun) - len(returned))
    assert returned == [-item for item in range(20)]
    assert max(ahead_of_caller) <= 3


def test_large_items_wait_for_one_another() -> None:
    begun: list[int] = []
    sizes = [5, 5, 5, 50, 5]
    results = map_ahead(begun.append, range(5), sizes.__getitem__, most=4, max_size=10)
    seen = [len(begun) for _ in results]
    # An item that is larger than all that may be ahead is worked on alone.
    assert [most for most in seen if most > 4] == [5]
    assert seen[0] <= 3
    assert list(map_ahead(lambda item: item, [7], lambda item: 99, most=4, max_size=1)) == [7]


def test_what_a_caller_that_stops_has_begun_does_not_depend_on_threads() -> None:
    begun: list[int] = []
    results = map_ahead(begun.append, range(20), lambda item: 1, most=4, max_size=100)
    next(results)
    next(results)
    results.close()
    assert sorted(begun) == [0, 1, 2, 3, 4]


def test_the_first_error_is_raised_in_its_place() -> None:
    def work(item: int) -> int:
        if item == 2:
            raise ValueError("two")
        return item

    results = map_ahead(work, range(5), lambda item: 1, most=2, max_size=100)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="two"):
        next(results)
