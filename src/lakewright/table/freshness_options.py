"""Settings for what follows a commit: flagged times, reports, partitions marked as done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lakewright.errors import InvalidError
from lakewright.model.table_config import TableConfig
from lakewright.options import at_least, option, parse_choice, parse_duration, settings_from

SUCCESS_FILE = "success_file"
LATENESS = "lakewright.completion.lateness"


def _parse_reference(text: str) -> str:
    module, _, name = text.strip().partition(":")
    if not module or not name:
        raise ValueError("module:function expected")
    return text.strip()


def _parse_done_mark(text: str) -> str:
    return SUCCESS_FILE if text.strip().lower() == SUCCESS_FILE else _parse_reference(text)


# The value of a lateness that is switched off.
_NO_LATENESS = -1


def _parse_lateness(text: str) -> int:
    value = text.strip().lower()
    if value == "off":
        return _NO_LATENESS
    return 0 if value == "0" else parse_duration(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessSettings:
    """What happens with completion and freshness after a commit."""

    future_tolerance_ms: int = option(
        "lakewright.event.time.future.tolerance.ms",
        60_000,
        parse=at_least(0),
        doc="How far after the present an event time may lie before it is flagged.",
    )
    reporter: str | None = option(
        "lakewright.metrics.reporter",
        None,
        parse=_parse_reference,
        doc="A function, as module:function, that is called with the figures of every commit.",
    )
    done_mark: str | None = option(
        "lakewright.partition.done.mark",
        None,
        parse=_parse_done_mark,
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
    lateness_ms: int | None = option(
        LATENESS,
        None,
        parse=_parse_lateness,
        doc="How late rows may come, such as 1h: completion is then the watermark, the greatest "
        "event time seen less this. The table remembers it, until off. Unset: completion is the "
        "least event time of the last commit.",
    )


def allowed_lateness(
    config: TableConfig, options: Mapping[str, str], recorded_ms: int | None
) -> int | None:
    """Return the lateness that the watermark allows; None if completion is not the watermark.

    It is that of the options, else that of the table's properties, else that of the newest commit.
    """
    stored = {LATENESS: config.properties[LATENESS]} if config.properties.get(LATENESS) else {}
    lateness = settings_from(FreshnessSettings, {**stored, **options}).lateness_ms
    if lateness is None:
        return recorded_ms
    return None if lateness == _NO_LATENESS else lateness


def load_function(reference: str) -> Callable[..., Any]:
    """Return the function that an option names as module:function."""
    module, _, name = reference.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidError(
            "this function cannot be loaded", function=reference, reason=str(error)
        ) from error
    if not callable(function):
        raise InvalidError("this is no function", function=reference)
    return function  # type: ignore[no-any-return]


def call_user_function(function: Callable[..., object], *arguments: object) -> str | None:
    """Call a user's function after a commit; return the error that it raised, if it did.

    The commit is visible already, so an error must not fail the write.
    """
    try:
        function(*arguments)
    except Exception as error:
        return repr(error)
    return None
