"""Runs a command whose arguments are read from stdin as JSON, for jobs of the page in the browser.

Every user of a machine can read the arguments of a process, and options may contain credentials.
"""

from __future__ import annotations

import json
import sys

from lakewright.cli.main import run

if __name__ == "__main__":
    run(json.load(sys.stdin))
