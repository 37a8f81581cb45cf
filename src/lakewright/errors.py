"""The errors that this library raises, by what the caller should do about them.

LakewrightError
  ConflictError      a concurrent operation won: retry on a fresh snapshot
  UnavailableError   storage or a lock is not available: retry the same call
  InvalidError       the call, an option or a plan is wrong: fix it
  CorruptError       the bytes on storage violate the format: a person must investigate
  UnsupportedError   the table uses a feature or version that this library does not support
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LakewrightError(Exception):
    """The base class of all errors of this library.

    `facts` holds, by name, the values that the message ends with. `committed` is the instant of a
    write that had completed when something after it failed: that write must not be repeated.
    """

    retryable = False
    committed: str | None = None

    def __init__(self, message: str, **facts: object) -> None:
        fact_list = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        super().__init__(f"{message}. {fact_list}" if fact_list else message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the facts through pickling: workers raise these errors in other processes."""
        return (_rebuild, (type(self), self.message, self.facts, self.committed))


def _rebuild(
    error_class: type[LakewrightError],
    message: str,
    facts: dict[str, object],
    committed: str | None,
) -> LakewrightError:
    error = error_class(message, **facts)
    if committed is not None:
        error.committed, error.retryable = committed, False
    return error


def after_commit(error: LakewrightError, instant: str, step: str) -> LakewrightError:
    """Return an error of a step that followed a commit as one that must not be retried.

    A caller that repeats the write because of it would insert the rows twice.
    """
    message = f"the write has completed, do not repeat it; {step} failed: {error.message}"
    return _rebuild(type(error), message, error.facts, instant)


class ConflictError(LakewrightError):
    """A concurrent operation won: retry on a fresh snapshot."""


class UnavailableError(LakewrightError):
    """Storage or a lock is not available: the same call may be retried."""

    retryable = True


class InvalidError(LakewrightError):
    """The call, an option or a plan is wrong: fix it."""


class CorruptError(LakewrightError):
    """The bytes on storage violate the format: a person must investigate."""


class UnsupportedError(LakewrightError):
    """The table uses a feature or version that this library does not support."""


@contextmanager
def errors_in_file(file: str) -> Iterator[None]:
    """Add the file to errors about its contents: the parser does not know which file it reads."""
    try:
        yield
    except (CorruptError, UnsupportedError) as error:
        if {"file", "file_name"} & error.facts.keys():
            raise
        raise type(error)(error.message, **error.facts, file=file) from error


def kind_of(error: LakewrightError) -> str:
    """Return the name of the category (see the module docstring) that an error belongs to."""
    categories = (ConflictError, UnavailableError, InvalidError, CorruptError, UnsupportedError)
    matching = next(
        (category for category in categories if isinstance(error, category)), LakewrightError
    )
    return matching.__name__
