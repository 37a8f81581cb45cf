"""Parsing of string options into typed settings, and checks for unknown and ignored options.

A settings family is a frozen dataclass whose fields are declared with `option`: key, default,
parser and documentation are in one place, next to the code that uses them.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeVar, cast

from lakewright.errors import InvalidError, UnsupportedError

Family = TypeVar("Family")

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)
_MAX_DURATION_MS = 999_999_999 * 86_400_000


def option(
    key: str,
    default: Any,
    *,
    parse: Callable[[str], Any],
    doc: str,
    aliases: tuple[str, ...] = (),
) -> Any:
    """Declare a field of a settings family that is read from the option `key` or an alias."""
    metadata = {"key": key, "parse": parse, "doc": doc, "aliases": aliases}
    return dataclasses.field(default=default, metadata=metadata)


def settings_from(family: type[Family], options: Mapping[str, str]) -> Family:
    """Return the settings of one family; raise InvalidError for a value that does not parse."""
    # mypy does not take a class for hashable.
    fields = _fields_by_key(cast(Any, family))
    values: dict[str, Any] = {}
    # The key of a field precedes its aliases: the first one that is set decides.
    for key in sorted(options.keys() & fields.keys(), key=lambda key: fields[key].rank):
        name, parse, _ = fields[key]
        if name not in values:
            values[name] = _parse_value(key, options[key], parse)
    return family(**values)


def option_keys(*families: type[Any]) -> frozenset[str]:
    """Return all keys, including aliases, that these families read."""
    return frozenset(
        key for family in families for field in _option_fields(family) for key in _keys_of(field)
    )


def ignored_options(
    options: Mapping[str, str],
    supported: Iterable[str],
    refused: Mapping[str, str],
    *,
    consumed: Iterable[str] = (),
) -> list[str]:
    """Check option names and return those that Hudi has and this library ignores.

    `refused` maps keys that would change the result to the one value that means the same as leaving
    the key out. `consumed` holds keys that the caller has already consumed: they only serve as
    suggestions for misspelled ones.

    Raises:
        InvalidError: an option does not exist.
        UnsupportedError: a refused option has another value than the permitted one.
    """
    accepted = set(supported)
    ignored = []
    for key, value in options.items():
        if key in accepted:
            continue
        if key in refused:
            if value.strip().lower() != refused[key]:
                raise UnsupportedError("this option is not supported", option=key, value=value)
        elif key in HUDI_OPTIONS:
            ignored.append(key)
        else:
            raise unknown_option(key, {*accepted, *consumed, *HUDI_OPTIONS})
    return ignored


def check_names(options: Iterable[str], *, also: Iterable[str] = ()) -> None:
    """Raise InvalidError for an option that neither Hudi nor any part of this library has.

    A command accepts the options of other commands as well, so that one options file can serve
    everything that runs on a table.
    """
    known_names = {*HUDI_OPTIONS, *OWN_OPTIONS, *added_options(), *also}
    for key in options:
        if key.lower() not in known_names and key not in known_names:
            raise unknown_option(key, known_names)


def added_options() -> frozenset[str]:
    """Return the options of all services and sources that users have registered."""
    return frozenset().union(*ADDED_OPTIONS.values())


def unknown_option(key: str, known: Iterable[str], *, of: str | None = None) -> InvalidError:
    """Return the error for an option that does not exist, with the most similar known name."""
    matches = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6)
    suggestion = {"did_you_mean": matches[0]} if matches else {}
    owner = f" of {of}" if of else ""
    return InvalidError(f"there is no such option{owner}", option=key, **suggestion)


def parse_bool(text: str) -> bool:
    """Parse `true` or `false`, in any case."""
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("true or false expected")
    return value


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a parser for integers that are `minimum` or greater."""

    def parse(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise ValueError(f"{minimum} or more expected")
        return number

    return parse


def parse_duration(text: str) -> int:
    """Parse a duration such as `2h`, `90s` or `1d12h` into milliseconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise ValueError("a length of time expected, such as 30m, 2h or 1d12h")
    duration = sum(
        int(count) * unit for count, unit in zip(match.groups(), _UNITS_MS, strict=True) if count
    )
    if duration > _MAX_DURATION_MS:
        raise ValueError("a length of time of 999999999 days at most expected")
    return duration


def parse_choice(*choices: str) -> Callable[[str], str]:
    """Return a parser for one of these lower-case choices, written in any case."""

    def parse(text: str) -> str:
        choice = text.strip().lower()
        if choice not in choices:
            raise ValueError(f"one of {', '.join(choices)} expected")
        return choice

    return parse


def parse_word(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Return a parser for the upper-case values of an enumeration, written in any case."""

    def parse(text: str) -> StrEnum:
        value = text.strip().upper()
        if value not in list(kind):
            raise ValueError(f"one of {', '.join(kind)} expected")
        return kind(value)

    return parse


def _parse_value(key: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(str(text))
    except ValueError as error:
        raise InvalidError(
            "the value of an option does not parse", option=key, value=text, reason=str(error)
        ) from error


class _OptionField(NamedTuple):
    """The field that an option sets; of several options for one field the least rank decides."""

    name: str
    parse: Callable[[str], Any]
    rank: int


@cache
def _fields_by_key(family: type[Any]) -> Mapping[str, _OptionField]:
    """Return the fields of a settings family by key and alias, in the order of declaration."""
    keys = [(key, field) for field in _option_fields(family) for key in _keys_of(field)]
    return {
        key: _OptionField(field.name, field.metadata["parse"], rank)
        for rank, (key, field) in enumerate(keys)
    }


def _option_fields(family: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(family) if "key" in field.metadata]


def _keys_of(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    return (field.metadata["key"], *field.metadata["aliases"])


def _load_names(file: str) -> frozenset[str]:
    text = resources.files("lakewright").joinpath(file).read_text("ascii")
    return frozenset(text.lower().split())


# All option names of Hudi 1.2: one of these that this library ignores is not a typing error.
HUDI_OPTIONS = _load_names("hudi_options.txt")
# All options of this library that Hudi does not have. They are listed in a file so that a command
# can check names without importing the modules that read them.
OWN_OPTIONS = _load_names("own_options.txt")
# The options of services and sources that users have registered, by the name of the consumer.
ADDED_OPTIONS: dict[str, frozenset[str]] = {}
