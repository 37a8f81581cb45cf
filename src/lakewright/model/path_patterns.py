"""Wildcards in paths, as regular expressions that match in a time which the text's length bounds.

Within a level `*` stands for any text and `?` for one character. Whatever follows a star but the
last one is taken where it is found first, once and for all: if the rest does not fit behind that
place it fits behind no later one. So nothing is tried again, however many stars there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

_ANY, _ONE = "[^/]*", "[^/]"


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether a partition path fits a pattern: `*` and `?` stand for text within one level.

    >>> matches_any("US/2026-01-01", ["US/*"]), matches_any("US/2026/01", ["US/*"])
    (True, False)
    """
    plain = (pattern.strip("/") for pattern in patterns)
    return any(path == pattern or _wildcards(pattern).fullmatch(path) for pattern in plain)


@cache
def _wildcards(pattern: str) -> re.Pattern[str]:
    return re.compile("/".join(map(level_regex, pattern.split("/"))))


def level_regex(level: str) -> str:
    """A level of a path, as a regular expression which must match it to its end.

    >>> [bool(re.fullmatch(level_regex("a*b?"), text)) for text in ("a-bb!", "ab", "a/b!")]
    [True, False, False]
    """
    first, *rest = re.split(r"\*+", level)
    inner = "".join(f"(?>{_ANY}?{_plain(text)})" for text in rest[:-1])
    last = f"{_ANY}{_plain(rest[-1])}" if rest else ""
    return f"{_plain(first)}{inner}{last}"


def _plain(text: str) -> str:
    return "".join(_ONE if char == "?" else re.escape(char) for char in text)
