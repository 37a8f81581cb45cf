"""Open the storage of a table by its address, and select the options that are for storage."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from lakewright.errors import UnsupportedError
from lakewright.options import unknown_option
from lakewright.storage import local, object_store
from lakewright.storage.base import Storage, is_hadoop_setting
from lakewright.storage.hdfs import HdfsStorage
from lakewright.storage.local import LocalStorage
from lakewright.storage.memory import MemoryStorage
from lakewright.storage.object_store import ObjectStorage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_SPARK_PREFIX = "spark.hadoop."


@dataclass(frozen=True, slots=True)
class StorageKind:
    """How to open a storage, and the options that it accepts besides Hadoop's settings.

    Names are in lower case: Spark passes the options of a data source on in lower case.
    """

    open: Callable[[str, Mapping[str, str]], Storage]
    option_names: frozenset[str] = frozenset()


STORAGES: dict[str, StorageKind] = {
    "file": StorageKind(LocalStorage.at, frozenset(local.OPTIONS)),
    "hdfs": StorageKind(HdfsStorage.at),
    "memory": StorageKind(MemoryStorage.at),
    **{
        scheme: StorageKind(ObjectStorage.at, object_store.option_names(kind))
        for scheme, kind in object_store.SCHEMES.items()
    },
}
"""The storages by URI scheme; add a scheme to support another kind of storage.

Every interface passes the options that a storage declares here on to it.
"""


def storage_for(
    address: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> Storage:
    """Return the storage of the table at a URI, or at a path of this machine.

    Options of other kinds of storage are ignored: one set of options serves many tables.

    Raises:
        InvalidError: no storage accepts an option.
    """
    text = os.fspath(address)
    match = _SCHEME.match(text)
    scheme = match[1].lower() if match else "file"
    if scheme not in STORAGES:
        raise UnsupportedError(
            "no storage knows this kind of address", uri=text, known=sorted(STORAGES)
        )
    kind = STORAGES[scheme]
    all_options = options or {}
    for key in other_options(all_options):
        raise unknown_option(key, storage_option_names(), of="storage")
    kind_options = {
        name: value
        for name, value in storage_options(all_options).items()
        if name in kind.option_names or is_hadoop_setting(name)
    }
    return kind.open(text, kind_options)


@dataclass(frozen=True, slots=True)
class OpenedStorage:
    """A storage and the options that it was opened with."""

    storage: Storage
    options: Mapping[str, str] = field(default_factory=dict)

    def with_options(self, options: Mapping[str, str]) -> OpenedStorage:
        """Return the storage with these options added; options not for storage are ignored."""
        added = storage_options(options)
        if not added:
            return self
        combined = {**self.options, **added}
        return OpenedStorage(storage_for(self.storage.root, combined), combined)


def storage_option_names() -> frozenset[str]:
    """Return the names of options that some storage accepts, without Hadoop's settings."""
    return frozenset().union(*(kind.option_names for kind in STORAGES.values()))


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for storage, including Hadoop's settings, without Spark's prefix."""
    names = storage_option_names()
    return {
        _normal_name(key): value for key, value in options.items() if _is_storage_option(names, key)
    }


def other_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are not for storage."""
    names = storage_option_names()
    return {key: value for key, value in options.items() if not _is_storage_option(names, key)}


def _is_storage_option(names: Collection[str], key: str) -> bool:
    return is_hadoop_setting(key) or _normal_name(key) in names


def _normal_name(key: str) -> str:
    """Return a name without Spark's prefix, in lower case unless it is a Hadoop setting."""
    name = key.removeprefix(_SPARK_PREFIX)
    return name if is_hadoop_setting(name) else name.lower()
