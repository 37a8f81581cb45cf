"""Options of a command: check all names, then separate storage, Spark and table options.

Commands that only read a table need not import services or writers: option names are declared apart
from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakewright.options import check_names
from lakewright.storage.base import Storage
from lakewright.storage.factory import (
    other_options,
    storage_for,
    storage_option_names,
    storage_options,
)

_SPARK = "spark."


def spark_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for starting a Spark session."""
    return {key: value for key, value in options.items() if key.startswith(_SPARK)}


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are neither storage options nor Spark options.

    Raises:
        InvalidError: An option is unknown.
    """
    rest = {k: v for k, v in other_options(options).items() if not k.startswith(_SPARK)}
    check_names(rest, also=storage_option_names())
    return rest


def storage_at(path: str, options: Mapping[str, str]) -> Storage:
    """Check all options and return the storage of the table at a path."""
    table_options(options)
    return storage_for(path, storage_options(options))
