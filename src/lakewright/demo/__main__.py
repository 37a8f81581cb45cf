"""`python -m lakewright.demo` runs `lakewright demo`."""

import sys

from lakewright.cli.main import app

if __name__ == "__main__":
    app(["demo", *sys.argv[1:]])
