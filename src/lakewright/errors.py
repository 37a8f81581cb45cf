"""What can go wrong, and what the caller should do about it.

LakewrightError
  ConflictError      somebody else won: plan again on a fresh snapshot
  UnavailableError   storage or a lock did not answer: the same call may be retried
  InvalidError       the call, option or plan is wrong: fix it
  CorruptError       the bytes on storage break the format: a person must look
  UnsupportedError   the table uses a feature or version this library does not know
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LakewrightError(Exception):
    """The base of everything this library raises; `facts` holds what the message tells."""

    retryable = False

    def __init__(self, message: str, **facts: object) -> None:
        tail = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        super().__init__(f"{message}. {tail}" if tail else message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        """Workers raise these in other processes: keep the facts through pickling."""
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(
    kind: type[LakewrightError], message: str, facts: dict[str, object]
) -> LakewrightError:
    return kind(message, **facts)


class ConflictError(LakewrightError):
    """Somebody else won: plan again on a fresh snapshot."""


class UnavailableError(LakewrightError):
    """Storage or a lock did not answer: the same call may be retried."""

    retryable = True


class InvalidError(LakewrightError):
    """The call, an option or a plan is wrong: fix it."""


class CorruptError(LakewrightError):
    """The bytes on storage break the format: a person must look."""


class UnsupportedError(LakewrightError):
    """The table uses a feature or version this library does not know."""


@contextmanager
def found_in(file: str) -> Iterator[None]:
    """Name the file in an error about its bytes: who parses them does not know where they are."""
    try:
        yield
    except (CorruptError, UnsupportedError) as error:
        if {"file", "file_name"} & error.facts.keys():
            raise
        raise type(error)(error.message, **error.facts, file=file) from error


def kind_of(error: LakewrightError) -> str:
    """The name of the kind that an error is of, whichever of its own it has."""
    kinds = (ConflictError, UnavailableError, InvalidError, CorruptError, UnsupportedError)
    found = next((kind for kind in kinds if isinstance(error, kind)), LakewrightError)
    return found.__name__
