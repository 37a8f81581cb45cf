"""Commands one after the other, each on a Spark session of its own: `commands_process.py COMMANDS`.

COMMANDS is a list of lists of arguments, as JSON; prints what each of them printed, likewise.
"""

from __future__ import annotations

import json
import sys

from support.cli import invoke_json


def main(commands: str) -> None:
    print(json.dumps([invoke_json(*arguments) for arguments in json.loads(commands)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
