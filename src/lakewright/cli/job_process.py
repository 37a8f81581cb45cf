"""The process of a job of the page: a command line whose words come by stdin.

Arguments of a process can be read by every user of a machine, and options may hold credentials.
"""

from __future__ import annotations

import json
import sys

from lakewright.cli.main import run

if __name__ == "__main__":
    run(json.load(sys.stdin))
