"""Options as people type them, turned into typed settings, and what becomes of the others.

A family of settings is a frozen dataclass whose fields are made by `option`: key, default, parser
and documentation stand in one place, next to the code that uses them.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from importlib import resources
from typing import Any, TypeVar

from lakewright.errors import InvalidError, UnsupportedError

Family = TypeVar("Family")

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)


def option(
    key: str,
    default: Any,
    *,
    parse: Callable[[str], Any],
    doc: str,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A field of a settings family that is read from the option `key`, or from an older name."""
    facts = {"key": key, "parse": parse, "doc": doc, "aliases": aliases}
    return dataclasses.field(default=default, metadata=facts)


def settings_from(family: type[Family], options: Mapping[str, str]) -> Family:
    """The settings of one family; a value that does not parse is an InvalidError."""
    values: dict[str, Any] = {}
    for field in _option_fields(family):
        key = next((k for k in _names(field) if k in options), None)
        if key is not None:
            values[field.name] = _parsed(key, options[key], field.metadata["parse"])
    return family(**values)


def option_keys(*families: type[Any]) -> frozenset[str]:
    """All keys, with older names, that these families read."""
    return frozenset(
        key for family in families for field in _option_fields(family) for key in _names(field)
    )


def ignored_options(
    options: Mapping[str, str],
    honoured: Iterable[str],
    refused: Mapping[str, str],
    *,
    elsewhere: Iterable[str] = (),
) -> list[str]:
    """Check option names; give the ones that Hudi has and that do not matter here.

    `refused` maps keys that would change the result to the one value that is the same as leaving
    them out. Names that count `elsewhere` were taken out before, and are only suggested.

    Raises:
        InvalidError: there is no such option.
        UnsupportedError: one of those that are refused says something.
    """
    known = set(honoured)
    ignored = []
    for key, value in options.items():
        if key in known:
            continue
        if key in refused:
            if value.strip().lower() != refused[key]:
                raise UnsupportedError("this option is not supported", option=key, value=value)
        elif key in HUDI_OPTIONS:
            ignored.append(key)
        else:
            raise unknown_option(key, {*known, *elsewhere, *HUDI_OPTIONS})
    return ignored


def check_names(options: Iterable[str], *, also: Iterable[str] = ()) -> None:
    """InvalidError for an option that neither Hudi nor this library has, in any place.

    A command takes the options of others as well: one file of them serves a whole table.
    """
    known = {*HUDI_OPTIONS, *OWN_OPTIONS, *added_options(), *also}
    for key in options:
        if key.lower() not in known and key not in known:
            raise unknown_option(key, known)


def added_options() -> frozenset[str]:
    """The options of what users have registered."""
    return frozenset().union(*ADDED_OPTIONS.values())


def unknown_option(key: str, known: Iterable[str], *, of: str | None = None) -> InvalidError:
    """The error for an option that there is not, with the name that is nearest to it."""
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.6)
    facts = {"did_you_mean": near[0]} if near else {}
    where = f" of {of}" if of else ""
    return InvalidError(f"there is no such option{where}", option=key, **facts)


def parse_bool(text: str) -> bool:
    """A yes-or-no option, as Hudi writes them."""
    value = {"true": True, "false": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("true or false expected")
    return value


def at_least(least: int) -> Callable[[str], int]:
    """A parser for whole numbers from `least` on."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise ValueError(f"{least} or more expected")
        return number

    return parse


def parse_duration(text: str) -> int:
    """A length of time such as `2h`, `90s` or `1d12h`, in milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or not any(found.groups()):
        raise ValueError("a length of time expected, such as 30m, 2h or 1d12h")
    return sum(
        int(count) * unit for count, unit in zip(found.groups(), _UNITS_MS, strict=True) if count
    )


def parse_choice(*choices: str) -> Callable[[str], str]:
    """A parser for one of a few words, in any case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"one of {', '.join(choices)} expected")
        return word

    return parse


def parse_word(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """A parser for the words of an enumeration in upper case, written in any case."""

    def parse(text: str) -> StrEnum:
        word = text.strip().upper()
        if word not in list(kind):
            raise ValueError(f"one of {', '.join(kind)} expected")
        return kind(word)

    return parse


def _parsed(key: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(str(text))
    except ValueError as error:
        raise InvalidError(
            "the value of an option does not parse", option=key, value=text, reason=str(error)
        ) from error


def _option_fields(family: type[Any]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(family) if "key" in field.metadata]


def _names(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    return (field.metadata["key"], *field.metadata["aliases"])


def _load_names(file: str) -> frozenset[str]:
    text = resources.files("lakewright").joinpath(file).read_text("ascii")
    return frozenset(text.lower().split())


# Every option name of Hudi 1.2: what is in here and not honoured is no typing error.
HUDI_OPTIONS = _load_names("hudi_options.txt")
# The other options of this library, of all modules: a command need not import them to know them.
OWN_OPTIONS = _load_names("own_options.txt")
# The options of services and sources that users have registered, by what takes them.
ADDED_OPTIONS: dict[str, frozenset[str]] = {}
