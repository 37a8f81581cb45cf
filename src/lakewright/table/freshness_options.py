"""Settings of what follows a commit: flags, reports, and partitions that are marked as done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lakewright.errors import InvalidError
from lakewright.options import at_least, option, parse_choice, parse_duration

SUCCESS_FILE = "success_file"


def _reference(text: str) -> str:
    module, _, name = text.strip().partition(":")
    if not module or not name:
        raise ValueError("module:function expected")
    return text.strip()


def _mark(text: str) -> str:
    return SUCCESS_FILE if text.strip().lower() == SUCCESS_FILE else _reference(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessSettings:
    """What is made of completion and freshness when a write has completed."""

    future_tolerance_ms: int = option(
        "lakewright.event.time.future.tolerance.ms",
        60_000,
        parse=at_least(0),
        doc="How far after the present an event time may lie before it is flagged.",
    )
    reporter: str | None = option(
        "lakewright.metrics.reporter",
        None,
        parse=_reference,
        doc="A function, as module:function, that is told the figures of every commit.",
    )
    done_mark: str | None = option(
        "lakewright.partition.done.mark",
        None,
        parse=_mark,
        doc="What happens when completion passes the end of a partition: success_file writes an "
        "empty _SUCCESS into it, module:function is called with table, partition and completion.",
    )
    done_interval_ms: int | None = option(
        "lakewright.partition.done.interval",
        None,
        parse=parse_duration,
        doc="How long the time of a partition lasts, such as 1d or 1h. Unset: an hour if its path "
        "names one, else a day.",
    )
    done_view: str = option(
        "lakewright.partition.done.view",
        "read_optimized",
        parse=parse_choice("read_optimized", "snapshot"),
        doc="The view whose completion counts for that: read_optimized or snapshot.",
    )


def load_function(reference: str) -> Callable[..., Any]:
    """The function that an option names as module:function."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidError(
            "this function cannot be loaded", function=reference, reason=str(error)
        ) from error
    if not callable(found):
        raise InvalidError("this is no function", function=reference)
    return found  # type: ignore[no-any-return]


def call_user_function(function: Callable[..., object], *arguments: object) -> str | None:
    """Call code that is not ours after a commit, which stands; gives what went wrong, if it did."""
    try:
        function(*arguments)
    except Exception as error:
        return repr(error)
    return None
