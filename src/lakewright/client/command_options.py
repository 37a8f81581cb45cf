"""The options of a command: all names are checked, then storage gets its own.

Who looks at a table imports neither services nor writers: the names of their options are known.
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
    """The options that a session is started with."""
    return {key: value for key, value in options.items() if key.startswith(_SPARK)}


def table_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are neither storage's nor of a Spark session.

    Raises:
        InvalidError: there is no such option.
    """
    rest = {k: v for k, v in other_options(options).items() if not k.startswith(_SPARK)}
    check_names(rest, also=storage_option_names())
    return rest


def storage_at(path: str, options: Mapping[str, str]) -> Storage:
    """The storage of the table at a path, after a check of all options."""
    table_options(options)
    return storage_for(path, storage_options(options))
