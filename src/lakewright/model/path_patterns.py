"""Wildcard patterns for partition paths, as regular expressions without backtracking.

Within a level, `*` stands for any text and `?` for one character. The text after each star but the
last is matched at its first occurrence, by an atomic group: if the rest of the pattern does not
match after it, it does not match after a later occurrence either. So matching time is bounded by
the length of the path, however many stars the pattern has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

_ANY, _ONE = "[^/]*", "[^/]"


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    """Whether a partition path matches a pattern; `*` and `?` match text within one level.

    >>> matches_any("US/2026-01-01", ["US/*"]), matches_any("US/2026/01", ["US/*"])
    (True, False)
    """
    stripped = (pattern.strip("/") for pattern in patterns)
    return any(path == pattern or _wildcards(pattern).fullmatch(path) for pattern in stripped)


def is_pattern(text: str) -> bool:
    """Whether a partition path has wildcards."""
    return not {"*", "?"}.isdisjoint(text)


@cache
def _wildcards(pattern: str) -> re.Pattern[str]:
    return re.compile("/".join(map(level_regex, pattern.split("/"))))


def level_regex(level: str) -> str:
    """Return the regular expression, for a full match, of one level of a pattern.

    >>> [bool(re.fullmatch(level_regex("a*b?"), text)) for text in ("a-bb!", "ab", "a/b!")]
    [True, False, False]
    """
    first, *rest = re.split(r"\*+", level)
    inner = "".join(f"(?>{_ANY}?{_plain(text)})" for text in rest[:-1])
    last = f"{_ANY}{_plain(rest[-1])}" if rest else ""
    return f"{_plain(first)}{inner}{last}"


def _plain(text: str) -> str:
    return "".join(_ONE if char == "?" else re.escape(char) for char in text)
