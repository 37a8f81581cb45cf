from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lakewright.errors import UnavailableError
from lakewright.testing.processes import Servers


def test_a_server_that_ends_is_reported_with_its_last_output(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        servers.start("one", [sys.executable, "-c", "raise SystemExit('the port is taken')"])
        with pytest.raises(UnavailableError, match="the port is taken") as caught:
            servers.wait_until(lambda: False, seconds=60)
    assert caught.value.facts["ended"] == ["one"]


def test_servers_that_take_too_long_are_an_error(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        servers.start("one", [sys.executable, "-c", "import signal; signal.pause()"])
        with pytest.raises(UnavailableError):
            servers.wait_until(lambda: False, seconds=0)


def test_servers_have_ended_after_their_block(tmp_path: Path) -> None:
    with Servers(tmp_path) as servers:
        ids = [
            servers.start(name, [sys.executable, "-c", "import signal; signal.pause()"])
            for name in ("one", "two")
        ]
        servers.wait_until(lambda: True, seconds=0)
        for pid in ids:
            os.kill(pid, 0)
    for pid in ids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
