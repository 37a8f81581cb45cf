"""Checks that every relative link of the Markdown files leads to a file of this repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(
    r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE
)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a Markdown text."""
    titles = (re.sub(r"[`*]|\]\([^)]*\)|\[", "", title) for title in HEADING.findall(text))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path, root: Path = ROOT) -> list[str]:
    """What is wrong with the relative links of one page, a sentence each."""
    prose = CODE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))
    problems = []
    for target in (inline or reference for inline, reference in LINK.findall(prose)):
        if ELSEWHERE.match(target):
            continue
        path, _, anchor = unquote(target).partition("#")
        target_path = (page.parent / path).resolve() if path else page
        if not target_path.is_relative_to(root):
            problems.append(f"{page.relative_to(root)}: {target} leaves the repository")
        elif not target_path.exists():
            problems.append(f"{page.relative_to(root)}: {target} is not there")
        elif (
            anchor
            and target_path.suffix == ".md"
            and anchor not in anchors(_without_code(target_path))
        ):
            problems.append(f"{page.relative_to(root)}: {target} names no heading")
    return problems


def _without_code(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def main() -> int:
    """Reports broken links, and gives the number of them as truth."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]
    pages += sorted(ROOT.glob("tests/**/*.md"))
    problems = [problem for page in pages for problem in broken_links(page)]
    for problem in problems:
        print(problem)
    print(f"{len(pages)} pages, {len(problems)} broken links")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
