"""`python -m lakewright.demo` is `lakewright demo`."""

import sys

from lakewright.cli.app import app

if __name__ == "__main__":
    app(["demo", *sys.argv[1:]])
