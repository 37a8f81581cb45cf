"""Hooks of mkdocs: the order of pages, pages from outside docs/, and links that lead there.

Pages of docs/ link to files of the repository as its host shows them. On the site such a link
leads to a page made of the file; to a file that has none, its path is named instead.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

# Pages that are not there are left out, and pages that nobody has put here come last.
ORDER: dict[str, tuple[str, ...]] = {
    "Start here": ("README.md", "tutorial.md", "examples.md"),
    "Tables": ("reading.md", "writing.md", "ingestion.md", "sql.md", "storage.md", "catalogs.md"),
    "Upkeep": ("services.md", "event-time.md", "freshness.md", "ttl.md", "cancellable.md"),
    "Tools": ("cli.md", "ui.md", "metrics.md"),
    "Hudi": ("coming-from-hudi.md", "hudi-options.md", "going-back.md", "format.md"),
    "In production": ("operations.md", "errors.md", "versions.md", "scale.md", "benchmarks.md"),
    "Reference": (
        "api.md",
        "extending.md",
        "architecture.md",
        "contributing.md",
        "security.md",
        "changelog.md",
    ),
}
EXAMPLES = "Examples"
DECISIONS = "Decisions"

# Files of the repository that are pages of the site, with where they stand there.
FROM_OUTSIDE = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
_PICTURES = (".svg", ".png")

_CODE = re.compile(r"^(?P<fence>```|~~~).*?^(?P=fence)|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|#)", re.IGNORECASE)


def outside_pages() -> dict[str, str]:
    """The files of the repository that are pages of the site, the examples among them."""
    examples = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    return FROM_OUTSIDE | {f"examples/{name}": f"examples/{name[:-3]}.md" for name in examples}


def ordered(pages: set[str]) -> list[dict[str, list[str]]]:
    """The navigation: these pages in their order, under titles."""
    rest = set(pages)
    nav: list[dict[str, list[str]]] = []
    families = {
        EXAMPLES: tuple(sorted(page for page in pages if page.startswith("examples/"))),
        DECISIONS: ("decisions/README.md", *sorted(p for p in pages if p[:11] == "decisions/0")),
    }
    for title, names in (ORDER | families).items():
        existing = [page for page in names if page in rest]
        rest -= set(existing)
        if existing:
            nav.append({title: existing})
    return [*nav, {"More": sorted(rest)}] if rest else nav


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lay the pages out."""
    docs = Path(config.docs_dir)
    own_pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    config.nav = ordered(own_pages | set(outside_pages().values()))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of other files, and the pictures beside them."""
    for source, page in outside_pages().items():
        text = (ROOT / source).read_text("utf-8")
        content = example_page(source, text) if source.endswith(".py") else text
        files.append(File.generated(config, page, content=content))
    for picture in sorted((ROOT / "bench" / "results").iterdir()):
        if picture.suffix in _PICTURES:
            source_path = picture.relative_to(ROOT).as_posix()
            files.append(File.generated(config, source_path, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page to where their files are on the site."""
    page_path = page.file.src_uri
    origins = {page_name: source for source, page_name in outside_pages().items()}
    origin = origins.get(page_path, f"docs/{page_path}")
    pages = {file.src_uri for file in files}
    return with_site_links(markdown, origin, page_path, pages)


def with_site_links(markdown: str, origin: str, page_path: str, pages: set[str]) -> str:
    """The text of the file `origin` for the page `page_path`; `pages` are the files of the site."""
    codes = [match.group(0) for match in _CODE.finditer(markdown)]
    prose = _LINK.sub(
        lambda match: _with_site_link(match, origin, page_path, pages), _CODE.sub("\0", markdown)
    )
    parts = iter(codes)
    return re.sub("\0", lambda _: next(parts), prose)


def _with_site_link(match: re.Match[str], origin: str, page_path: str, pages: set[str]) -> str:
    picture, text, target = match.groups()
    if _ELSEWHERE.match(target):
        return match.group(0)
    path, _, anchor = target.partition("#")
    target_path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    target_page = outside_pages().get(target_path, target_path.removeprefix("docs/"))
    if target_page not in pages:
        if target_path.startswith("docs/"):
            return match.group(0)  # mkdocs tells that it is broken
        return (
            text
            if "\0" in text
            else f"{text} (`{target_path}`)"
            if text != target_path
            else f"`{text}`"
        )
    near = posixpath.relpath(target_page, posixpath.dirname(page_path) or ".")
    return f"{picture}[{text}]({near}{'#' if anchor else ''}{anchor})"


def example_page(source: str, code: str) -> str:
    """A page that tells what an example is, and shows it."""
    description = (ast.get_docstring(ast.parse(code)) or "").strip()
    title, _, more = description.partition("\n")
    shown = code.split('"""', 2)[2].strip()
    name = Path(source).name
    return (
        f"# {name}\n\n{title}\n{more}\n\n"
        f"`./dev python {source}` runs it.\n\n```python\n{shown}\n```\n"
    )
