"""Warnings for public names of an earlier version."""

from __future__ import annotations

import warnings


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of a deprecated name of its new name."""
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3)
