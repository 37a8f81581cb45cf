"""Tries the README and the tutorial as somebody with nothing but a clone and an empty home would.

Every command and block is pasted as it stands: commands into a shell, Python into the prompt of
`./dev python`. Prints how long each took, and what went wrong. It downloads everything anew.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# How a machine reaches its network is no part of the home.
_NETWORK = re.compile(r"^(PIP_|UV_(INDEX|DEFAULT_INDEX)|SSL_|REQUESTS_|CURL_|.*_proxy$|.*_PROXY$)")
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WRONG = re.compile(r"^(Traceback|\s*\w*Error\b|.*SyntaxError).*", re.MULTILINE)
_DONE = "pasted-and-done"
# The whole suite is not what a reader of the README waits for.
_LEFT_OUT = ("./dev test",)
_SERVES = "lakewright ui"
_ADDRESS = re.compile(r"http://[^\s]+")


class NewUser:
    """A clone, a home with nothing in it, a shell and a Python prompt."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        (folder / "home").mkdir()
        subprocess.run(
            ["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), self.clone], check=True
        )
        network = {name: text for name, text in os.environ.items() if _NETWORK.match(name)}
        home = {"HOME": str(folder / "home"), "TERM": "xterm", "LANG": "C.UTF-8"}
        self.environment = {**network, **home, "PATH": "/usr/local/bin:/usr/bin:/bin"}
        self.prompt: subprocess.Popen[str] | None = None
        self.activated = False
        self.problems: list[str] = []

    def paste(self, page: str) -> None:
        """Paste the blocks of a page, one after the other."""
        text = (self.clone / page).read_text("utf-8")
        for language, block in _BLOCK.findall(text):
            started = time.monotonic()
            first = block.strip().splitlines()[0]
            output = self.shell(block) if language == "sh" else self.python(block)
            print(f"{time.monotonic() - started:7.1f} s  {page}: {first[:70]}", flush=True)
            for problem in _WRONG.findall(output):
                self.problems.append(f"{page}, {first}: {problem}")
            if any(_WRONG.finditer(output)):
                print(output, flush=True)

    def shell(self, block: str) -> str:
        """Run the commands of a block in a shell where the environment is as the page says."""
        lines = [line for line in block.splitlines() if not line.startswith(_LEFT_OUT)]
        commands = [line for line in lines if not line.startswith(_SERVES)]
        activation = ". .venv/bin/activate\n" if self.activated else ""
        self.activated = self.activated or any("bin/activate" in line for line in commands)
        output = self._run(activation, commands, block) if commands else ""
        return output + "".join(self.check_page(line) for line in lines if line.startswith(_SERVES))

    def _run(self, activation: str, commands: list[str], block: str) -> str:
        process = subprocess.run(
            ["sh", "-e", "-c", activation + "\n".join(commands)],
            cwd=self.clone,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if process.returncode:
            self.problems.append(
                f"exit code {process.returncode}: {block.strip()}\n{process.stdout}"
            )
        return process.stdout

    def check_page(self, command: str) -> str:
        """Start what serves a page, get the page from where it says that it is, and end it."""
        server = self._started("sh", "-e", "-c", f". .venv/bin/activate\nexec {command}")
        assert server.stdout is not None
        output = ""
        for line in server.stdout:
            output += line
            if address := _ADDRESS.search(line):
                with urllib.request.urlopen(address[0], timeout=60) as answer:
                    if b"Lakewright" not in answer.read():
                        self.problems.append(f"{command}: not the page at {address[0]}")
                break
        else:
            self.problems.append(f"{command}: no address\n{output}")
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
        return output

    def python(self, block: str) -> str:
        """Type a block into the prompt of Python; give what is on the screen after it."""
        if self.prompt is None:
            self.prompt = self._started("./dev", "python", "-i", "-u")
        assert self.prompt.stdin is not None
        assert self.prompt.stdout is not None
        self.prompt.stdin.write(f"{block}\n\nprint({_DONE!r})\n")
        self.prompt.stdin.flush()
        output: list[str] = []
        for line in self.prompt.stdout:
            if _DONE in line:
                break
            output.append(line)
        return "".join(output)

    def _started(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.clone,
            env=self.environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def leave(self) -> None:
        """Leave the prompt."""
        if self.prompt is not None:
            self.prompt.communicate(timeout=60)
            self.prompt = None


def main() -> int:
    """Paste the pages, and report; true where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=["README.md", "docs/tutorial.md"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        user = NewUser(Path(name))
        for page in arguments.pages:
            user.paste(page)
            user.leave()
        for problem in user.problems:
            print("stumble:", problem)
        print(f"{len(user.problems)} stumbles")
        return 1 if user.problems else 0


if __name__ == "__main__":
    sys.exit(main())
