"""Translate errors of the file system into this library's errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from lakewright.errors import ConflictError, InvalidError, LakewrightError, UnavailableError
from lakewright.storage.base import MissingFileError

NOT_A_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Translate errors of a block that reads; a missing file is a MissingFileError."""
    try:
        yield
    except NOT_A_FILE as error:
        raise MissingFileError("there is no such file", path=path) from error
    except OSError as error:
        raise _refused(error, path) from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Translate errors of a block that writes; an existing name is a ConflictError."""
    try:
        yield
    except FileExistsError as error:
        raise ConflictError("the file exists already", path=path) from error
    except OSError as error:
        raise _refused(error, path) from error


@contextmanager
def filling(path: str) -> Iterator[None]:
    """Translate errors of a block of the caller, whose FileExistsError is not about this file."""
    try:
        yield
    except OSError as error:
        raise _refused(error, path) from error


def _refused(error: OSError, path: str) -> LakewrightError:
    wrong_call = isinstance(error, PermissionError | IsADirectoryError | NotADirectoryError)
    kind = InvalidError if wrong_call or error.errno == errno.ENAMETOOLONG else UnavailableError
    return kind("the file system refused", path=path, reason=error.strerror or str(error))
