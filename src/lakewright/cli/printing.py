"""Documents as text or JSON: both show the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from lakewright.utils.terminal import SafeConsole, say

Document = dict[str, Any]

_BYTES = "_bytes"
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")
# Of a pipe nobody knows how wide it is; a table is no wider than its text.
PIPE_WIDTH = 10_000


def show(document: Document, *, as_json: bool, one_line: bool = False) -> None:
    """Print a document; as JSON on `one_line` if many follow each other."""
    if as_json:
        say(json.dumps(document, default=str, indent=None if one_line else 2))
    else:
        _print_text(document)


def _print_text(document: Document) -> None:
    console = SafeConsole()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    for name, value in document.items():
        if isinstance(value, list) and value:
            console.print(f"{_words(name)}:")
            console.print(_table(value))
        else:
            console.print(f"{_words(name)}: {_cell(name, value)}")


def _table(rows: Sequence[Document]) -> Table:
    """Rows as a table; what is nested in them is left to JSON."""
    keys = {key: None for row in rows for key in row}
    shown = [key for key in keys if not any(isinstance(row.get(key), dict) for row in rows)]
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    for key in shown:
        table.add_column(Text(_words(key)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(key, row.get(key))) for key in shown))
    return table


def _words(name: str) -> str:
    return name.replace(_BYTES, "_size").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return str(len(value)) if value else "none"
    if name.endswith(_BYTES) and isinstance(value, int):
        return size_text(value)
    return "-" if value is None or value == "" else str(value)


def size_text(count: int) -> str:
    """A number of bytes, in the unit that people would choose."""
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"
