"""A statement as words with their places in its text, and a cursor over them.

What is between two words of a statement is handed on as it was written. Spark evaluates it; to
print a parsed expression anew would change some of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lakewright.errors import InvalidError

_CLOSED_BY = {"(": ")", "[": "]", "{": "}", "CASE": "END"}
_BRACKETS = frozenset(")]}")
_TEXT = re.compile(r"[rR]?['\"]")
_SEVERAL = re.compile(r"[A-Za-z_]+(?:\s+[A-Za-z_]+)+")
_PART = re.compile(r"\S+")
_NAME = re.compile(r"[^\W\d]\w*|\d+[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Token:
    """A word, mark, name or literal; `raw` is how it was written, `value` what a literal means."""

    raw: str
    start: int
    end: int
    value: str | None = None

    @property
    def upper(self) -> str:
        """The word for comparison with keywords; what is in quotes is never one."""
        return self.raw.upper()

    @property
    def is_name(self) -> bool:
        """Whether it can name a column, a table or a part of one."""
        return self.raw.startswith("`") or _NAME.fullmatch(self.raw) is not None

    @property
    def name(self) -> str:
        """The name that it is, without quotes."""
        quoted = self.raw.startswith("`")
        return self.raw[1:-1].replace("``", "`") if quoted else self.raw


def tokenize(text: str) -> tuple[Token, ...] | None:
    """The words of a text, without comments; None if it cannot be read as SQL."""
    try:
        tokens = Spark().tokenize(text)
    except SqlglotError:
        return None
    found: list[Token] = []
    for token in tokens:
        start, end = token.start, token.end + 1
        if found and start < found[-1].end:
            continue  # a literal such as 10L counts as three, in one place
        raw = text[start:end]
        if _TEXT.match(raw):
            found.append(Token(raw, start, end, token.text))
        elif not _SEVERAL.fullmatch(raw):
            found.append(Token(raw, start, end))
        else:  # such as FOR VERSION
            found += [
                Token(part[0], start + part.start(), start + part.end())
                for part in _PART.finditer(raw)
            ]
    return tuple(found)


def with_named_markers(text: str, words: tuple[Token, ...]) -> str:
    """The text with `:_lakewright_0`, ... for question marks: parts of it are evaluated apart."""
    pieces, at, number = [], 0, 0
    for word in words:
        if word.raw == "?":
            pieces += [text[at : word.start], f":{marker(number)}"]
            at, number = word.end, number + 1
    return "".join([*pieces, text[at:]])


def marker(number: int) -> str:
    """The name that a parameter gets that had only a place."""
    return f"_lakewright_{number}"


@dataclass
class Cursor:
    """Reads the words of a statement one after the other."""

    text: str
    words: tuple[Token, ...]
    at: int = 0

    def peek(self, ahead: int = 0) -> str:
        """A word that follows, in capitals; empty at the end."""
        place = self.at + ahead
        return self.words[place].upper if place < len(self.words) else ""

    @property
    def ended(self) -> bool:
        """Whether nothing is left but a semicolon."""
        return self.peek() in ("", ";") and self.peek(1) == ""

    def take(self, *wanted: str) -> bool:
        """Go past these words if they follow."""
        if any(self.peek(number) != word for number, word in enumerate(wanted)):
            return False
        self.at += len(wanted)
        return True

    def expect(self, *wanted: str) -> None:
        """Go past these words, which must follow."""
        if not self.take(*wanted):
            raise self.error(f"{' '.join(wanted)} expected")

    def error(self, what: str) -> InvalidError:
        """What is wrong here."""
        start = self.words[self.at].start if self.at < len(self.words) else len(self.text)
        return InvalidError(
            f"the statement does not parse: {what}",
            at=self.text[start : start + 40] or "the end",
        )

    def token(self) -> Token:
        """Go past a word, whatever it is."""
        if self.at >= len(self.words):
            raise self.error("more expected")
        self.at += 1
        return self.words[self.at - 1]

    def name(self) -> tuple[str, ...]:
        """Go past a name with dots between its parts."""
        parts = []
        while True:
            word = self.token()
            if not word.is_name:
                self.at -= 1
                raise self.error("a name expected")
            parts.append(word.name)
            if not self.take("."):
                return tuple(parts)

    def until(self, stops: Collection[str]) -> str:
        """The text up to one of some words outside of brackets and CASE, without it."""
        first = self.at
        open_: list[str] = []
        while self.at < len(self.words):
            word = self.peek()
            if not open_ and (word in stops or (word == ";" and self.ended)):
                break
            if open_ and word == open_[-1]:
                open_.pop()
            elif word in _CLOSED_BY:
                open_.append(_CLOSED_BY[word])
            elif word in _BRACKETS:
                raise self.error("a bracket closes that was not opened")
            self.at += 1
        if open_:
            raise self.error(f"{open_[-1]} is missing")
        if self.at == first:
            return ""
        return self.text[self.words[first].start : self.words[self.at - 1].end]

    def rest(self) -> str:
        """The text up to the end of the statement."""
        return self.until(())

    def in_brackets(self) -> str:
        """The text in brackets that follow."""
        self.expect("(")
        inner = self.until((")",))
        self.expect(")")
        return inner

    def parts(self) -> Iterator[str]:
        """The texts between commas in brackets that follow."""
        self.expect("(")
        while True:
            yield self.until((",", ")"))
            if not self.take(","):
                break
        self.expect(")")

    def names(self) -> tuple[str, ...]:
        """The names between commas in brackets that follow."""
        self.expect("(")
        found = []
        while True:
            found.append(self.token())
            if not found[-1].is_name:
                self.at -= 1
                raise self.error("a name expected")
            if not self.take(","):
                break
        self.expect(")")
        return tuple(word.name for word in found)


# ------------------------------------------------------------------------------------------------
# Where a statement begins: after white space and comments, as Spark reads them. Pure.


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
