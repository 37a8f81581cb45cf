"""Every class that public functions take or return can be imported from `lakewright`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_type_hints

import pytest
from pyspark.sql import DataFrame, SparkSession

import lakewright as lw

# Imported by modules for type checkers only.
NAMES_FOR_TYPES = {"DataFrame": DataFrame, "SparkSession": SparkSession}


def public_functions() -> Iterator[Callable[..., Any]]:
    for name in lw.__all__:
        if inspect.isfunction(function := getattr(lw, name)):
            yield function
    for owner in (lw.Table, lw.TableTtl):
        for name, member in vars(owner).items():
            function = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and inspect.isfunction(function):
                yield function


def classes_in(hint: Any) -> Iterator[type]:
    """The classes in an annotation such as `tuple[A, ...] | Callable[[B], C]`."""
    if isinstance(hint, list):
        arguments: Any = hint
    else:
        arguments = get_args(hint)
        if not arguments and isinstance(hint, type):
            yield hint
    for argument in arguments:
        yield from classes_in(argument)


@pytest.mark.parametrize("function", list(public_functions()), ids=lambda item: item.__qualname__)
def test_classes_of_a_public_function_are_public(function: Callable[..., Any]) -> None:
    hints = get_type_hints(function, {**function.__globals__, **NAMES_FOR_TYPES})
    own = {
        cls.__name__
        for hint in hints.values()
        for cls in classes_in(hint)
        if cls.__module__.startswith("lakewright.")
    }
    assert own - set(lw.__all__) == set()


def test_the_walk_finds_classes_inside_other_types() -> None:
    hint = get_type_hints(lw.Table.rollbacks, lw.Table.rollbacks.__globals__)["return"]
    assert list(classes_in(hint)) == [lw.RollbackInfo]
    assert set(classes_in(lw.Commit | lw.Skip)) == {lw.Commit, lw.Skip}
