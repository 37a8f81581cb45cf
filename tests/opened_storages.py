"""Which local storages this process opens, and options that are not their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lakewright.storage.factory import STORAGES, StorageKind
from lakewright.storage.local import LocalStorage

# The opposite of what counts when nothing is said, so that a test sees the option arrive.
DURABLE = not LocalStorage("/").durable
SAID = {"durable": str(DURABLE).lower(), "verify_sidecars": "false"}


class OpenedStorages:
    """Notes each local storage that is opened by its address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[LocalStorage] = []
        local = STORAGES["file"]

        def opened(uri: str, options: Mapping[str, str]) -> LocalStorage:
            storage = LocalStorage.at(uri, options)
            self.all.append(storage)
            return storage

        monkeypatch.setitem(STORAGES, "file", StorageKind(opened, local.option_names))

    def of(self, table: Path) -> list[tuple[bool, bool]]:
        """What was said of each storage that was opened for a table, since the last question."""
        found = [(s.durable, s.verify_sidecars) for s in self.all if s.folder == str(table)]
        self.all.clear()
        return found


def all_said(found: list[tuple[bool, bool]]) -> bool:
    """Whether a storage was opened, and each with the options of `SAID`."""
    return bool(found) and set(found) == {(DURABLE, False)}


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their bytes."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
