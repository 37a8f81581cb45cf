"""`CALL name(argument, name => argument)` as a value, and its arguments checked. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakewright.errors import InvalidError

Value = str | int | float | bool | None

_CALL = re.compile(r"\s*CALL\s+`?(?P<name>\w+)`?\s*\((?P<rest>.*)\)\s*;?\s*", re.I | re.S)
_CALLS = re.compile(r"\s*CALL\s+`?\w+`?\s*(?![\w`.\s])", re.I)
_NAME = re.compile(r"\s*(?P<name>\w+)\s*=>")
_VALUE = re.compile(
    r"""\s*(?:'(?P<single>(?:[^'\\]|''|\\.)*)'|"(?P<double>(?:[^"\\]|""|\\.)*)"
        |(?P<number>[+-]?\d+(?:\.\d+)?)L?|(?P<word>\w+))\s*""",
    re.X | re.S,
)
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Call:
    """The name of a procedure, and what it is called with."""

    name: str
    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument that a procedure takes."""

    name: str
    default: Value = None
    required: bool = False
    about: str = ""


def parse_call(text: str) -> Call | None:
    """The call that a statement is; None for others, and for procedures of some catalog.

    Raises:
        InvalidError: it begins like a call and does not parse.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        if _CALLS.match(text):
            raise InvalidError("a call is CALL name(argument, name => argument)", sql=text)
        return None
    positional: list[Value] = []
    named: list[tuple[str, Value]] = []
    rest = match["rest"]
    while rest.strip():
        name = _NAME.match(rest)
        rest = rest[name.end() :] if name else rest
        value = _VALUE.match(rest)
        if value is None:
            raise InvalidError("an argument does not parse", sql=text, at=rest[:40])
        rest = rest[value.end() :]
        if rest and not rest.startswith(","):
            raise InvalidError("a comma is missing between arguments", sql=text, at=rest[:40])
        rest = rest[1:]
        if name:
            named.append((name["name"].lower(), _literal(value)))
        elif named:
            raise InvalidError("an argument without a name follows one with a name", sql=text)
        else:
            positional.append(_literal(value))
    return Call(match["name"].lower(), tuple(positional), tuple(named))


def bound_arguments(call: Call, parameters: Sequence[Parameter]) -> dict[str, Value]:
    """The arguments of a call by name; a wrong one is an error that names the right ones."""
    names = [parameter.name for parameter in parameters]
    if len(call.positional) > len(names):
        raise InvalidError(
            f"{call.name} takes {len(names)} arguments", given=len(call.positional), known=names
        )
    given = dict(zip(names, call.positional, strict=False))
    for name, value in call.named:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = {"did_you_mean": near[0]} if near else {}
            raise InvalidError(
                f"{call.name} has no such argument", argument=name, known=names, **hint
            )
        if name in given:
            raise InvalidError(f"{call.name} is given an argument twice", argument=name)
        given[name] = value
    missing = [p.name for p in parameters if p.required and given.get(p.name) is None]
    if missing:
        raise InvalidError(f"{call.name} lacks arguments", missing=missing, known=names)
    return {p.name: given.get(p.name, p.default) for p in parameters}


def _literal(match: re.Match[str]) -> Value:
    if match["single"] is not None:
        return _unquoted(match["single"], "'")
    if match["double"] is not None:
        return _unquoted(match["double"], '"')
    if match["number"] is not None:
        text = match["number"]
        return float(text) if "." in text else int(text)
    word = match["word"].lower()
    if word not in _WORDS:
        raise InvalidError(
            "an argument is a text in quotes, a number, true, false or null", at=word
        )
    return _WORDS[word]


def _unquoted(text: str, quote: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace(quote * 2, quote))
