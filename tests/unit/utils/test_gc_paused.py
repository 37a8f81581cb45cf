"""Python's search for cycles rests while very many values are made, and goes on after that."""

from __future__ import annotations

import gc

import pytest

from lakewright.utils.concurrent import gc_paused


def test_the_search_goes_on_after_the_last_of_several() -> None:
    assert gc.isenabled()
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"), gc_paused():
        raise ValueError("wrong")
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    try:
        with gc_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
