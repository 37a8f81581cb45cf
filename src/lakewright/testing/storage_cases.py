"""The tables of cases behind the contract of storages."""

from __future__ import annotations

from collections.abc import Callable

from lakewright.storage.base import Storage

ODD_NAMES = [
    "a b.txt",
    "a%20b.txt",
    "a+b.txt",
    "city=São Paulo/k=v.parquet",
    "東京/データ",
    "q?#[]{}^`|<>\"*\\'~",
    "$@!&(),;",
    "12:30:00",
    "..double",
    "trailing.",
    ".hidden_20240101000000000.log.1_0-1-0",
    "-dash",
]

BAD_PATHS = {
    "an absolute path": "/a",
    "the parent folder": "..",
    "a way out of the table": "a/../../b",
    "a dot segment": "a/./b",
    "an empty segment": "a//b",
    "a trailing slash": "a/",
    "a control character": "a\nb",
    "a zero byte": "a\0b",
    "half a character": "a\ud800b",
}

RANGES = {
    "the beginning": (0, 4, b"0123"),
    "the middle": (3, 4, b"3456"),
    "the end exactly": (6, 4, b"6789"),
    "beyond the end": (8, 100, b"89"),
    "at the end": (10, 5, b""),
    "after the end": (50, 5, b""),
    "nothing": (3, 0, b""),
}

BAD_RANGES = {"a negative offset": (-1, 1), "a negative length": (0, -1)}

WITH_A_PATH: dict[str, Callable[[Storage, str], object]] = {
    "status": lambda storage, path: storage.status(path),
    "exists": lambda storage, path: storage.exists(path),
    "url": lambda storage, path: storage.url(path),
    "read": lambda storage, path: storage.read(path),
    "read_range": lambda storage, path: storage.read_range(path, 0, 1),
    "read_many": lambda storage, path: storage.read_many([path]),
    "open_input": lambda storage, path: storage.open_input(path),
    "create": lambda storage, path: storage.create(path, b""),
    "open_output": lambda storage, path: storage.open_output(path).__enter__(),
    "replace": lambda storage, path: storage.replace(path, b""),
    "delete": lambda storage, path: storage.delete(path),
    "delete_many": lambda storage, path: storage.delete_many([path]),
    "delete_folder": lambda storage, path: storage.delete_folder(path),
    "list_files": lambda storage, path: storage.list_files(path),
    "list_folders": lambda storage, path: storage.list_folders(path),
    "list_tree": lambda storage, path: list(storage.list_tree(path)),
    "list_many": lambda storage, path: storage.list_many([path]),
}

NOT_THE_ROOT = set(WITH_A_PATH) - {"list_files", "list_folders", "list_tree", "list_many"}
