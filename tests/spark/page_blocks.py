"""The code blocks of a page of the documentation, and a way to run them as a reader would."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"(<!-- not run[^>]*-->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block: its language, its text, and the line of the page at which it begins."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page in order, without those that say why they are not run."""
    text = page.read_text("utf-8")
    return [
        Block(match[2], match[3], text.count("\n", 0, match.start(3)) + 1)
        for match in _BLOCK.finditer(text)
        if not match[1]
    ]


def run_page(page: Path) -> tuple[str, dict[str, object]]:
    """Run Python blocks in one scope, and shell blocks in the working directory of this process.

    A `text` block is what the blocks before it must have printed. Returns all that they
    printed, and the scope.
    """
    scope: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    for block in blocks_of(page):
        if block.language == "python":
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with redirect_stdout(printed):
                exec(code, scope)
        elif block.language == "sh":
            printed.write(_shell(block, page))
        elif block.language == "text":
            assert block.text in printed.getvalue(), f"{page.name}, line {block.line}"
    return printed.getvalue(), scope


def _shell(block: Block, page: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["sh", "-e", "-c", block.text],
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, f"{page.name}, line {block.line}: {result.stdout}{result.stderr}"
    return result.stdout
