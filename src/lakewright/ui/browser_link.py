"""Opening the page in a browser without its token in anybody's arguments.

The arguments of a browser can be read by every user of a machine. It is told to open a file that
only its own user can read, and that leads on.
"""

from __future__ import annotations

import html
import shutil
import signal
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={url}">
<title>Lakewright</title>
<p><a href="{url}">Open the page</a></p>
</html>
"""


@dataclass
class Link:
    """A file that leads to the page; there is none until the page is opened."""

    folder: Path | None = field(default=None, init=False)

    def open(self, url: str) -> None:
        """Open a URL in the browser."""
        # A folder for this user alone, and a file that nobody else could read outside of it either.
        self.folder = Path(tempfile.mkdtemp(prefix="lakewright-ui-"))
        file = self.folder / "open.html"
        file.touch(0o600)
        file.write_text(_PAGE.format(url=html.escape(url)), "utf-8")
        webbrowser.open(file.as_uri())

    def remove(self) -> None:
        """Remove the file, if there is one."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened_link() -> Iterator[Link]:
    """A link for as long as a block runs, also if SIGTERM ends the process in it."""
    link = Link()

    def terminate(*_: object) -> None:
        link.remove()
        signal.signal(signal.SIGTERM, before)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield link
    finally:
        link.remove()
        signal.signal(signal.SIGTERM, before)
