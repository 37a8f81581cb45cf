"""Imports of optional packages, which extras of this library install."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lakewright.errors import InvalidError


def imported(module: str, extra: str) -> Any:
    """Return a module of an optional package; raise InvalidError if the extra is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InvalidError(
            f"a package is not installed: pip install 'lakewright[{extra}]'", module=module
        ) from error
