"""Run a command while other processes keep every core busy: under_load.py COMMAND [ARGUMENTS]."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

# Computes until its parent ends, however that does.
_BURN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(1_000_000))"


def main(command: list[str]) -> int:
    """Give what the command gives."""
    burning = [sys.executable, "-c", _BURN, str(os.getpid())]
    load = [subprocess.Popen(burning) for _ in range(os.cpu_count() or 1)]
    try:
        with subprocess.Popen(command) as work:
            signal.signal(signal.SIGTERM, lambda *_: work.terminate())
            # Whoever presses Ctrl-C means the command, which gets the signal as well.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return work.wait()
    finally:
        for process in load:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
