"""Which storage an address means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

from lakewright.errors import UnsupportedError
from lakewright.storage.base import Storage, is_hadoop_setting
from lakewright.storage.hdfs import HdfsStorage
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.object_client import SCHEMES as OBJECT_SCHEMES
from lakewright.storage.objects import ObjectStorage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")

STORAGES: dict[str, Callable[[str, Mapping[str, str]], Storage]] = {
    "file": LocalStorage.at,
    "hdfs": HdfsStorage.at,
    "memory": MemoryStorage.at,
    **dict.fromkeys(OBJECT_SCHEMES, ObjectStorage.at),
}
"""How to open a storage, by URI scheme; add a scheme to teach the library a new kind of place."""


def storage_for(
    address: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> Storage:
    """Return the storage of the table at a URI, or at a path of this machine."""
    text = os.fspath(address)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else "file"
    if scheme not in STORAGES:
        raise UnsupportedError(
            "no storage knows this kind of address", uri=text, known=sorted(STORAGES)
        )
    return STORAGES[scheme](text, options or {})


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that are for storage: Hadoop's, with or without Spark's prefix."""
    return {
        key.removeprefix("spark.hadoop."): value
        for key, value in options.items()
        if is_hadoop_setting(key)
    }
