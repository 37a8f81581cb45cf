"""Where a statement begins: after white space and comments, as Spark reads them. Pure."""

from __future__ import annotations

import re

# A backslash before its end continues a comment of one line.
_BLANK = re.compile(r"(?:\s|--(?:\\\n|[^\r\n])*+)*+")
_BRACKET = re.compile(r"/\*|\*/")


def statement_of(text: str) -> str:
    """A text from its first word on; empty if a comment before it is never closed.

    Every character is looked at once: generated SQL may begin with any number of comments.
    """
    at = _blank_end(text, 0)
    # With a plus it is a hint, not a comment.
    while text.startswith("/*", at) and not text.startswith("/*+", at):
        at = _blank_end(text, _comment_end(text, at))
    return text[at:]


def _blank_end(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _comment_end(text: str, at: int) -> int:
    """The end of a bracketed comment; comments in it are counted, as Spark nests them."""
    depth = 0
    for bracket in _BRACKET.finditer(text, at):
        depth += 1 if bracket[0] == "/*" else -1
        if depth == 0:
            return bracket.end()
    return len(text)
