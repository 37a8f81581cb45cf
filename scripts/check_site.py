"""Checks that the built site loads nothing from elsewhere, so that it works without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parent.parent / "site"
_LOADS = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel\s*=\s*["']?(?:stylesheet|preload|preconnect|icon))"""
    r"""[^>]*?\bhref\s*=\s*["']?((?:https?:)?//[^"'\s>]+)""",
    re.IGNORECASE,
)
_STYLES = re.compile(r"""(?:@import\s+|url\()\s*["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


def loaded_from_elsewhere(text: str, suffix: str) -> list[str]:
    """The addresses that a page or a style sheet makes a browser fetch."""
    pattern = _STYLES if suffix == ".css" else _LOADS
    return ["".join(groups) for groups in pattern.findall(text)]


def main(site: Path = SITE) -> int:
    """Report what is loaded from elsewhere, and give the number of it as truth."""
    files = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".css")]
    problems = [
        f"{path.relative_to(site)}: {address}"
        for path in files
        for address in loaded_from_elsewhere(path.read_text("utf-8"), path.suffix)
    ]
    for problem in problems:
        print(problem)
    print(f"{len(files)} files of the site, {len(problems)} fetch something from elsewhere")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
