"""The load of `./dev test --under-load`: there while the command runs, and stopped after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/under_load.py"
# Whatever its parent has started but itself.
_OTHERS = """
import os, sys
from pathlib import Path
children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
print(*(child for child in children if int(child) != os.getpid()))
sys.exit(3)
"""


def test_every_core_is_busy_while_the_command_runs_and_free_after_it() -> None:
    command = [sys.executable, str(SCRIPT), sys.executable, "-c", _OTHERS]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 3, process.stderr
    others = [int(pid) for pid in process.stdout.split()]
    assert len(others) >= (os.cpu_count() or 1)
    for pid in others:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
