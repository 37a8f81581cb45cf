"""Talking to a process of one's own: a line of JSON each way."""

from __future__ import annotations

import json
import subprocess
from typing import Any


def ask(process: subprocess.Popen[str], request: object) -> Any:
    """The answer of a process to a request; None if it went away."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        return None
    return json.loads(line) if line else None
