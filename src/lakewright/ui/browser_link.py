"""Open the page in a browser without passing its token on a command line.

Every user of a machine can read the arguments of the browser process. The browser therefore opens
a file that only its own user can read, and that redirects to the URL with the token.
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
    """A local file that redirects to the page; `folder` is None until `open` has written it."""

    folder: Path | None = field(default=None, init=False)

    def open(self, url: str) -> None:
        """Open a URL in the browser."""
        # mkdtemp creates a folder for this user only; the mode of the file protects it as well.
        self.folder = Path(tempfile.mkdtemp(prefix="lakewright-ui-"))
        file = self.folder / "open.html"
        file.touch(0o600)
        file.write_text(_PAGE.format(url=html.escape(url)), "utf-8")
        webbrowser.open(file.as_uri())

    def remove(self) -> None:
        """Remove the file if it exists."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def opened_link() -> Iterator[Link]:
    """Yield a link and remove its file after the block, also if SIGTERM terminates the process."""
    link = Link()

    def terminate(*_: object) -> None:
        link.remove()
        signal.signal(signal.SIGTERM, previous)
        signal.raise_signal(signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield link
    finally:
        link.remove()
        signal.signal(signal.SIGTERM, previous)
