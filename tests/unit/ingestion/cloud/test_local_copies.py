"""Copies of objects on this machine: for their user alone, deleted once their process has ended."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lakewright.ingestion.cloud.local_copies import PREFIX, private_folder
from lakewright.ingestion.cloud.objects import Preparation, Prepared, prepare
from lakewright.ingestion.cloud.selection import CloudObject
from lakewright.write.task import WriteToken

DAY_MS = 24 * 60 * 60 * 1000
HOLDING = (
    "import sys, lakewright.ingestion.cloud.local_copies as c; "
    "print(c.private_folder(0).address, flush=True); sys.stdin.read()"
)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def made_long_ago(path: Path) -> int:
    """Nothing looks older than all times; returns a time that is more than a day later."""
    os.utime(path, (1000, 1000))
    return 1000 * 1000 + DAY_MS + 1


def test_copies_are_for_their_user_alone(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "a.json").write_bytes(b"{}")
    folder = private_folder(0)
    assert Path(folder.address).parent == temporary
    what = Preparation(
        "json", addresses={"lake": str(tmp_path / "lake")}, target=folder.address, private=True
    )
    before = os.umask(0o022)
    try:
        (result,) = prepare(  # type: ignore[misc]
            what, [(0, CloudObject("", "lake", "a.json", "a.json", 2))], WriteToken()
        )
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert isinstance(result, Prepared)
    assert result.copy is not None
    assert mode(Path(folder.address)) == 0o700
    assert mode(Path(folder.address) / result.copy) == 0o600
    assert mode(tmp_path / "other") == 0o644
    folder.remove()
    assert list(temporary.iterdir()) == []


def test_copies_of_a_killed_process_are_deleted(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        orphan = Path(process.stdout.readline().strip())
        assert orphan.parent == temporary
        (orphan / "copy").write_bytes(b"rows")
        later = made_long_ago(orphan)
        private_folder(later).remove()
        assert orphan.exists(), "its process still runs"
        process.send_signal(signal.SIGKILL)
    private_folder(made_long_ago(orphan) - 2).remove()
    assert orphan.exists(), "it is not a day old"
    private_folder(later).remove()
    assert not orphan.exists()


def test_folders_of_others_stay(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    other = temporary / "somebody-elses"
    other.mkdir()
    later = max(made_long_ago(elsewhere), made_long_ago(other))
    private_folder(later).remove()
    assert (elsewhere / "file").exists()
    assert other.exists()
    assert (temporary / f"{PREFIX}link").is_symlink()
