"""The rules of the source tree: who may import whom, and what stays out of where.

Each rule is a function from a module to its offences, and each is shown to bite.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# Each group imports only itself (a package its own modules) and the groups before it;
# the last one looks at the package from outside, so it may use the front door as well.
LAYERS = (
    ("errors", "settings", "clock", "bulk"),
    ("core",),
    ("format",),
    ("storage",),
    ("table",),
    ("read",),
    ("write",),
    ("services",),
    ("sources",),
    ("interfaces",),
    ("testing", "demo"),
)
RANK = {name: rank for rank, group in enumerate(LAYERS) for name in group}
PURE = ("core", "format")
IMPURE_MODULES = {
    "asyncio", "glob", "http", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
    "pyarrow.dataset", "pyarrow.fs",
}  # fmt: skip
JVM_DOORS = {
    "_gateway", "_jdf", "_jsc", "_jsparkSession", "_jvm", "_sc", "rdd", "sparkContext",
}  # fmt: skip
MOST_LINES = 700


@dataclass(frozen=True)
class Module:
    """A source file: its path below src/ and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def parts(self) -> tuple[str, ...]:
        return PurePosixPath(self.path).with_suffix("").parts

    @property
    def layer(self) -> str | None:
        """The name on the layer line; None for the package's own front door."""
        if self.parts[0] != "lakewright" or self.parts[1:] == ("__init__",):
            return None
        return self.parts[1]

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """Every import statement with each full name that it may bind, relative ones resolved."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((node, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = list(self.parts[: -node.level]) if node.level else []
                if node.level >= len(self.parts):
                    base = ["<outside>"]
                stem = ".".join([*base, *([node.module] if node.module else [])])
                yield from ((node, f"{stem}.{alias.name}") for alias in node.names)


def one_way(module: Module) -> Iterator[str]:
    """Imports go one way along the layer line."""
    if module.layer is None:
        return
    if module.layer not in RANK:
        yield f"{module.layer} is not on the layer line"
        return
    for node, name in module.imports():
        package, _, rest = name.partition(".")
        if package != "lakewright":
            continue
        target = rest.partition(".")[0]
        if target not in RANK:
            if module.layer not in LAYERS[-1]:
                yield f"line {node.lineno}: {name} is not on the layer line"
        elif RANK[target] > RANK[module.layer]:
            yield f"line {node.lineno}: {module.layer} imports {target}"
        elif RANK[target] == RANK[module.layer] > 0 and target != module.layer:
            yield f"line {node.lineno}: {module.layer} imports {target}, its sibling"


def spark_in_its_place(module: Module) -> Iterator[str]:
    """Only run.py, interfaces/ and the demo may import pyspark; types are for everyone."""
    allowed = module.parts[-1] == "run" or module.layer in {None, "interfaces", "demo"}
    if allowed and module.parts != ("lakewright", "__init__"):
        return
    for_types = {
        inner
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node, name in module.imports():
        if name.partition(".")[0] in {"pyspark", "py4j"} and node not in for_types:
            yield f"line {node.lineno}: imports {name}"


def no_jvm(module: Module) -> Iterator[str]:
    """Spark through its DataFrame API alone: no gateway, no RDD, no SparkContext.

    The command line asks its own session, which is never another's, how far a job has come.
    """
    if module.path == "lakewright/interfaces/cli/spark_work.py":
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in JVM_DOORS:
            yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Constant) and node.value in JVM_DOORS - {"rdd"}:
            yield f"line {node.lineno}: the name {node.value!r}"


def pure(module: Module) -> Iterator[str]:
    """What a table is and how its bytes look depends on no clock, disk, chance or process."""
    if module.layer not in PURE:
        return
    for node, name in module.imports():
        heads = {".".join(name.split(".")[:length]) for length in (1, 2)}
        if heads & IMPURE_MODULES or name == "io.open":
            yield f"line {node.lineno}: imports {name}"
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"open", "io.open", "input"}:
            yield f"line {call.lineno}: calls {ast.unparse(call.func)}"


def short(module: Module) -> Iterator[str]:
    """A module fits into a reader's head."""
    lines = len(module.text.splitlines())
    if lines > MOST_LINES:
        yield f"{lines} lines"


def imports_on_top(module: Module) -> Iterator[str]:
    """What a module needs is seen at its head."""
    for function in ast.walk(module.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield f"line {node.lineno}: import inside {function.name}"


def stays_inside(module: Module) -> Iterator[str]:
    """No import and no path literal climbs out of the repository."""
    for node, name in module.imports():
        if name.startswith("<outside>"):
            yield f"line {node.lineno}: relative import above the package"
    depth = len(PurePosixPath("src", module.path).parent.parts)
    for literal in ast.walk(module.tree):
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            climb = re.match(r"(\.\./)*", literal.value + "/")
            if climb and climb.group().count("../") > depth:
                yield f"line {literal.lineno}: the path {literal.value!r}"


def names_once(module: Module) -> Iterator[str]:
    """The names of a schema are made anew by every look at them: not for each of its columns."""
    for loop in ast.walk(module.tree):
        if not isinstance(loop, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        targets = [n.target for n in ast.walk(loop) if isinstance(n, ast.comprehension)]
        bound = {n.id for each in targets for n in ast.walk(each) if isinstance(n, ast.Name)}
        for node in ast.walk(loop):
            asked = node.comparators[-1] if isinstance(node, ast.Compare) else None
            if not isinstance(asked, ast.Attribute) or asked.attr not in {"names", "column_names"}:
                continue
            if not bound & {n.id for n in ast.walk(asked) if isinstance(n, ast.Name)}:
                yield f"line {asked.lineno}: looks for each item in .{asked.attr}"


RULES: tuple[Callable[[Module], Iterator[str]], ...] = (
    one_way, spark_in_its_place, no_jvm, pure, short, imports_on_top, stays_inside, names_once,
)  # fmt: skip


def offences(module: Module) -> list[str]:
    return [f"{module.path}: {offence}" for rule in RULES for offence in rule(module)]


def test_the_source_tree_keeps_every_rule() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert files
    modules = [Module(str(file.relative_to(SOURCE)), file.read_text("utf-8")) for file in files]
    assert [offence for module in modules for offence in offences(module)] == []


BAD: dict[str, tuple[Callable[[Module], Iterator[str]], str, str]] = {
    "core may not import storage": (
        one_way, "lakewright/core/files.py", "from lakewright.storage.base import Storage"),
    "core may not import storage as a name of the package": (
        one_way, "lakewright/core/files.py", "from lakewright import storage"),
    "read may not import write by a relative import": (
        one_way, "lakewright/read/plan.py", "from ..write import keys"),
    "types are bound to the layers too": (
        one_way, "lakewright/read/plan.py",
        "if TYPE_CHECKING:\n    from lakewright.write.keys import Key"),
    "nobody below imports the front door": (
        one_way, "lakewright/read/plan.py", "import lakewright"),
    "an interface may not import the testing tools": (
        one_way, "lakewright/interfaces/api.py", "import lakewright.testing.draw"),
    "the demo may not import the testing tools": (
        one_way, "lakewright/demo.py", "from lakewright.testing import draw"),
    "errors stand at the beginning": (
        one_way, "lakewright/errors.py", "from lakewright.core import instant"),
    "a new top-level module needs a place on the line": (
        one_way, "lakewright/helpers.py", ""),
    "a pure plan may not import pyspark": (
        spark_in_its_place, "lakewright/read/plan.py", "import pyspark.sql"),
    "a worker may not import pyspark": (
        spark_in_its_place, "lakewright/write/worker.py", "from pyspark.sql import DataFrame"),
    "the front door may not import pyspark": (
        spark_in_its_place, "lakewright/__init__.py", "from pyspark.sql import DataFrame"),
    "the else branch of a type check is no type check": (
        spark_in_its_place, "lakewright/read/plan.py",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import pyspark"),
    "no gateway": (
        no_jvm, "lakewright/read/run.py", "spark._jvm.java.lang.System"),
    "no Java context": (
        no_jvm, "lakewright/read/run.py", "spark._jsc"),
    "no RDD": (
        no_jvm, "lakewright/interfaces/api.py", "df.rdd.map(f)"),
    "no SparkContext": (
        no_jvm, "lakewright/interfaces/api.py", "spark.sparkContext.parallelize([])"),
    "no SparkContext by way of getattr": (
        no_jvm, "lakewright/interfaces/api.py", "getattr(spark, 'sparkContext')"),
    "core has no operating system": (
        pure, "lakewright/core/files.py", "import os.path"),
    "core has no clock": (
        pure, "lakewright/core/instant.py", "from time import time"),
    "core has no ids of its own": (
        pure, "lakewright/core/files.py", "import uuid"),
    "core has no chance": (
        pure, "lakewright/core/files.py", "import random"),
    "format keeps no log": (
        pure, "lakewright/format/avro.py", "import logging"),
    "format knows no files": (
        pure, "lakewright/format/avro.py", "from pathlib import Path"),
    "format knows no sockets": (
        pure, "lakewright/format/avro.py", "import socket"),
    "format opens nothing": (
        pure, "lakewright/format/avro.py", "open('x')"),
    "format opens nothing with io either": (
        pure, "lakewright/format/avro.py", "import io\nio.open('x')"),
    "format does not import open": (
        pure, "lakewright/format/avro.py", "from io import open"),
    "format has no file system of Arrow": (
        pure, "lakewright/format/avro.py", "from pyarrow import fs"),
    "a module ends after 700 lines": (
        short, "lakewright/read/plan.py", "x = 1\n" * 701),
    "no import inside a function": (
        imports_on_top, "lakewright/read/plan.py", "def f():\n    import json"),
    "no import inside a method": (
        imports_on_top, "lakewright/read/plan.py",
        "class A:\n    async def f(self):\n        if x:\n            from a import b"),
    "no relative import above the package": (
        stays_inside, "lakewright/read/plan.py", "from .... import secret"),
    "no path above the repository": (
        stays_inside, "lakewright/read/plan.py", "PLACE = '../../../../elsewhere/file.json'"),
    "no names of a schema for each column": (
        names_once, "lakewright/read/plan.py", "x = [c for c in columns if c not in a.b.names]"),
    "no names of a table for each field": (
        names_once, "lakewright/read/plan.py", "x = {c: c in rows.column_names for c in columns}"),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), BAD.values(), ids=list(BAD))
def test_a_rule_bites(rule: Callable[[Module], Iterator[str]], path: str, text: str) -> None:
    assert list(rule(Module(path, text)))


GOOD = {
    "a layer imports those before it": (
        "lakewright/write/run.py", "from lakewright.core.files import BaseFile"),
    "a package imports its own modules": (
        "lakewright/core/slices.py", "from lakewright.core import files"),
    "settings import errors": (
        "lakewright/settings.py", "from lakewright.errors import InvalidError"),
    "the demo shows the interfaces": (
        "lakewright/demo.py", "import pyspark\nfrom lakewright.interfaces import api"),
    "the demo comes in by the front door": (
        "lakewright/demo.py", "import lakewright as lw"),
    "run.py imports pyspark": (
        "lakewright/services/compaction/run.py", "from pyspark.sql import DataFrame"),
    "interfaces import pyspark": (
        "lakewright/interfaces/api.py", "from pyspark.sql import DataFrame"),
    "anyone imports pyspark for types": (
        "lakewright/read/plan.py",
        "import typing\nif typing.TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
    "bytes in memory are pure": (
        "lakewright/format/avro.py", "import io\nio.BytesIO(b'')"),
    "the front door imports what it shows": (
        "lakewright/__init__.py", "from lakewright.interfaces.api import open"),
    "700 lines fit": (
        "lakewright/read/plan.py", "x = 1\n" * 700),
    "the parent folder may be named": (
        "lakewright/storage/local.py", "bad = '..' in parts"),
    "each table may be asked for its names": (
        "lakewright/read/plan.py", "x = [t for t in tables if 'id' in t.column_names]"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "text"), GOOD.values(), ids=list(GOOD))
def test_good_code_is_left_alone(path: str, text: str) -> None:
    assert offences(Module(path, text)) == []


LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_pins_hashes_and_names_no_place(lock: Path) -> None:
    text = lock.read_text("utf-8")
    pins = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []
    assert re.findall(r"://|--(?:extra-)?index|--find-links| @ |^-[ef]", text, re.MULTILINE) == []
