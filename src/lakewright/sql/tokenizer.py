"""Tokens of a SQL statement with their positions in its text, and a cursor over them.

The parser uses the positions to pass expressions and queries on to Spark exactly as they were
written: printing a parsed expression again would change some of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lakewright.errors import InvalidError

_CLOSED_BY = {"(": ")", "[": "]", "{": "}", "CASE": "END"}
_CLOSING_BRACKETS = frozenset(")]}")
_STRING_START = re.compile(r"[rR]?['\"]")
_SEVERAL_WORDS = re.compile(r"[A-Za-z_]+(?:\s+[A-Za-z_]+)+")
_WORD = re.compile(r"\S+")
_NAME = re.compile(r"[^\W\d]\w*|\d+[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class Token:
    """A keyword, operator, name or literal.

    `raw` is the text as written, `value` the content of a string literal.
    """

    raw: str
    start: int
    end: int
    value: str | None = None

    @property
    def upper(self) -> str:
        """The text in upper case, to compare with keywords; a quoted name never equals one."""
        return self.raw.upper()

    @property
    def is_name(self) -> bool:
        """Whether it can be the name of a column or table, or a part of a qualified name."""
        return self.raw.startswith("`") or _NAME.fullmatch(self.raw) is not None

    @property
    def name(self) -> str:
        """The name without backquotes."""
        quoted = self.raw.startswith("`")
        return self.raw[1:-1].replace("``", "`") if quoted else self.raw


def tokenize(text: str) -> tuple[Token, ...] | None:
    """Return the tokens of a text without comments, None if the text cannot be tokenized."""
    try:
        parsed = Spark().tokenize(text)
    except SqlglotError:
        return None
    tokens: list[Token] = []
    for token in parsed:
        start, end = token.start, token.end + 1
        if tokens and start < tokens[-1].end:
            continue  # sqlglot returns three tokens at one position for a literal such as 10L
        raw = text[start:end]
        if _STRING_START.match(raw):
            tokens.append(Token(raw, start, end, token.text))
        elif not _SEVERAL_WORDS.fullmatch(raw):
            tokens.append(Token(raw, start, end))
        else:  # sqlglot returns one token for keywords such as FOR VERSION
            tokens += [
                Token(word[0], start + word.start(), start + word.end())
                for word in _WORD.finditer(raw)
            ]
    return tuple(tokens)


def with_named_markers(text: str, tokens: tuple[Token, ...]) -> str:
    """Return the text with named markers `:_lakewright_0`, ... in place of question marks.

    Parts of a statement are evaluated in separate queries, where the order of positional
    arguments would no longer match.
    """
    pieces, copied_until, number = [], 0, 0
    for token in tokens:
        if token.raw == "?":
            pieces += [text[copied_until : token.start], f":{marker(number)}"]
            copied_until, number = token.end, number + 1
    return "".join([*pieces, text[copied_until:]])


def marker(number: int) -> str:
    """Return the name of the parameter marker for a positional argument."""
    return f"_lakewright_{number}"


@dataclass
class Cursor:
    """A position in the tokens of a statement; the methods read tokens and advance it."""

    text: str
    tokens: tuple[Token, ...]
    at: int = 0

    def peek(self, ahead: int = 0) -> str:
        """Return a following token in upper case, empty past the end."""
        index = self.at + ahead
        return self.tokens[index].upper if index < len(self.tokens) else ""

    @property
    def ended(self) -> bool:
        """Whether at most a semicolon remains."""
        return self.peek() in ("", ";") and self.peek(1) == ""

    def take(self, *keywords: str) -> bool:
        """Advance past these keywords if they follow; return whether they did."""
        if any(self.peek(ahead) != keyword for ahead, keyword in enumerate(keywords)):
            return False
        self.at += len(keywords)
        return True

    def expect(self, *keywords: str) -> None:
        """Advance past these keywords; InvalidError if they do not follow."""
        if not self.take(*keywords):
            raise self.error(f"{' '.join(keywords)} expected")

    def error(self, problem: str) -> InvalidError:
        """Return a parse error for the current position."""
        start = self.tokens[self.at].start if self.at < len(self.tokens) else len(self.text)
        return InvalidError(
            f"the statement does not parse: {problem}",
            at=self.text[start : start + 40] or "the end",
        )

    def token(self) -> Token:
        """Advance past one token and return it."""
        if self.at >= len(self.tokens):
            raise self.error("more expected")
        self.at += 1
        return self.tokens[self.at - 1]

    def name(self) -> tuple[str, ...]:
        """Advance past a qualified name and return its parts."""
        parts = []
        while True:
            token = self.token()
            if not token.is_name:
                self.at -= 1
                raise self.error("a name expected")
            parts.append(token.name)
            if not self.take("."):
                return tuple(parts)

    def until(self, stops: Collection[str]) -> str:
        """Return the text before the first of these tokens that is not in brackets or CASE."""
        first = self.at
        closers: list[str] = []
        while self.at < len(self.tokens):
            token = self.peek()
            if self._is_field():
                self.at += 1
                continue
            if not closers and (token in stops or (token == ";" and self.ended)):
                break
            if closers and token == closers[-1]:
                closers.pop()
            elif token in _CLOSED_BY:
                closers.append(_CLOSED_BY[token])
            elif token in _CLOSING_BRACKETS:
                raise self.error("a bracket closes that was not opened")
            self.at += 1
        if closers:
            raise self.error(f"{closers[-1]} is missing")
        if self.at == first:
            return ""
        return self.text[self.tokens[first].start : self.tokens[self.at - 1].end]

    def _is_field(self) -> bool:
        """Whether the next token is a name behind a dot, such as `t.case`, and no keyword."""
        behind_dot = self.at > 0 and self.tokens[self.at - 1].upper == "."
        return behind_dot and self.tokens[self.at].is_name

    def rest(self) -> str:
        """Return the text up to the end of the statement."""
        return self.until(())

    def in_brackets(self) -> str:
        """Return the text inside the parentheses that follow."""
        self.expect("(")
        inner = self.until((")",))
        self.expect(")")
        return inner

    def parts(self) -> Iterator[str]:
        """Yield the comma-separated texts inside the parentheses that follow."""
        self.expect("(")
        while True:
            yield self.until((",", ")"))
            if not self.take(","):
                break
        self.expect(")")

    def names(self) -> tuple[str, ...]:
        """Return the comma-separated names inside the parentheses that follow."""
        self.expect("(")
        tokens = []
        while True:
            tokens.append(self.token())
            if not tokens[-1].is_name:
                self.at -= 1
                raise self.error("a name expected")
            if not self.take(","):
                break
        self.expect(")")
        return tuple(token.name for token in tokens)


# White space and comments before a statement, by Spark's rules.

# In a line comment, a backslash before the line break continues the comment on the next line.
_BLANK = re.compile(r"(?:\s|--(?:\\\n|[^\r\n])*+)*+")
_COMMENT_DELIMITER = re.compile(r"/\*|\*/")


def statement_of(text: str) -> str:
    """Return the text from its first token on, empty if a leading comment is never closed.

    It reads every character once: generated SQL may begin with any number of comments.
    """
    start = _blank_end(text, 0)
    # /*+ starts a hint, not a comment.
    while text.startswith("/*", start) and not text.startswith("/*+", start):
        start = _blank_end(text, _comment_end(text, start))
    return text[start:]


def _blank_end(text: str, start: int) -> int:
    match = _BLANK.match(text, start)
    return start if match is None else match.end()


def _comment_end(text: str, start: int) -> int:
    """Return the end of a block comment; Spark allows block comments to nest."""
    depth = 0
    for delimiter in _COMMENT_DELIMITER.finditer(text, start):
        depth += 1 if delimiter[0] == "/*" else -1
        if depth == 0:
            return delimiter.end()
    return len(text)
