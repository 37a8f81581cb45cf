"""The rules of the source tree: which package may import which, and what is absent where.

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

import lakewright as lw

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# Each group imports only itself (a package its own modules) and the groups before it;
# the last one looks at the package from outside, so it may use the front door as well.
LAYERS = (
    ("errors", "clock", "options", "utils"),
    ("model",),
    ("format",),
    ("storage",),
    ("table",),
    ("metrics",),
    ("scan",),
    ("write",),
    ("engine",),
    ("services",),
    ("catalog",),
    ("spark",),
    ("datasource",),
    ("client",),
    ("api",),
    ("ingestion",),
    ("sql",),
    ("installation",),
    ("ui",),
    ("cli",),
    ("testing", "demo"),
)
RANK = {name: rank for rank, group in enumerate(LAYERS) for name in group}
PURE = ("model", "format")
WITH_SPARK = {
    "spark", "datasource", "client", "api", "ingestion", "sql", "installation", "cli", "demo",
}  # fmt: skip
# Commands import what they need when they run, so that looking at a table starts soon.
LIGHT = ("cli",)
IMPURE_MODULES = {
    "asyncio", "glob", "http", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "shutil", "socket", "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
    "pyarrow.dataset", "pyarrow.fs",
}  # fmt: skip
JVM_DOORS = {
    "_gateway", "_jdf", "_jsc", "_jsparkSession", "_jvm", "_sc", "rdd", "sparkContext",
}  # fmt: skip
MOST_LINES = 800


@dataclass(frozen=True)
class Module:
    """A source file: its path below src/ and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

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
        for node in self.nodes:
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
    """Only some packages may import pyspark; types are for everyone."""
    if module.layer in WITH_SPARK:
        return
    for_types = {
        inner
        for node in module.nodes
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
    if module.path == "lakewright/cli/spark.py":
        return
    for node in module.nodes:
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
    for call in module.nodes:
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"open", "io.open", "input"}:
            yield f"line {call.lineno}: calls {ast.unparse(call.func)}"


def short(module: Module) -> Iterator[str]:
    """A module fits into a reader's head."""
    lines = len(module.text.splitlines())
    if lines > MOST_LINES:
        yield f"{lines} lines"


def imports_on_top(module: Module) -> Iterator[str]:
    """What a module needs is seen at its head."""
    if module.layer in LIGHT:
        return
    for function in module.nodes:
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
    for literal in module.nodes:
        if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            climb = re.match(r"(\.\./)*", literal.value + "/")
            if climb and climb.group().count("../") > depth:
                yield f"line {literal.lineno}: the path {literal.value!r}"


def names_once(module: Module) -> Iterator[str]:
    """The names of a schema are made anew by every look at them: not for each of its columns."""
    for loop in module.nodes:
        if not isinstance(loop, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        targets = [n.target for n in ast.walk(loop) if isinstance(n, ast.comprehension)]
        bound = {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
        for node in ast.walk(loop):
            right = node.comparators[-1] if isinstance(node, ast.Compare) else None
            if not isinstance(right, ast.Attribute) or right.attr not in {"names", "column_names"}:
                continue
            if not bound & {n.id for n in ast.walk(right) if isinstance(n, ast.Name)}:
                yield f"line {right.lineno}: looks for each item in .{right.attr}"


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
    "model may not import storage": (
        one_way, "lakewright/model/file_group.py", "from lakewright.storage.base import Storage"),
    "model may not import storage as a name of the package": (
        one_way, "lakewright/model/file_group.py", "from lakewright import storage"),
    "a scan may not import write by a relative import": (
        one_way, "lakewright/scan/scan_plan.py", "from ..write import keys"),
    "types are bound to the layers too": (
        one_way, "lakewright/scan/scan_plan.py",
        "if TYPE_CHECKING:\n    from lakewright.write.keys import Key"),
    "no layer imports the front door": (
        one_way, "lakewright/scan/scan_plan.py", "import lakewright"),
    "the API may not import the testing tools": (
        one_way, "lakewright/api/table.py", "import lakewright.testing.draw"),
    "the demo may not import the testing tools": (
        one_way, "lakewright/demo.py", "from lakewright.testing import draw"),
    "errors stand at the beginning": (
        one_way, "lakewright/errors.py", "from lakewright.model import instant"),
    "a new top-level module needs a place on the line": (
        one_way, "lakewright/helpers.py", ""),
    "a pure plan may not import pyspark": (
        spark_in_its_place, "lakewright/scan/scan_plan.py", "import pyspark.sql"),
    "a worker may not import pyspark": (
        spark_in_its_place, "lakewright/write/operations.py", "from pyspark.sql import DataFrame"),
    "the front door may not import pyspark": (
        spark_in_its_place, "lakewright/__init__.py", "from pyspark.sql import DataFrame"),
    "the else branch of a type check is no type check": (
        spark_in_its_place, "lakewright/scan/scan_plan.py",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import pyspark"),
    "no gateway": (
        no_jvm, "lakewright/spark/reader.py", "spark._jvm.java.lang.System"),
    "no Java context": (
        no_jvm, "lakewright/spark/reader.py", "spark._jsc"),
    "no RDD": (
        no_jvm, "lakewright/api/table.py", "df.rdd.map(f)"),
    "no SparkContext": (
        no_jvm, "lakewright/api/table.py", "spark.sparkContext.parallelize([])"),
    "no SparkContext by way of getattr": (
        no_jvm, "lakewright/api/table.py", "getattr(spark, 'sparkContext')"),
    "model has no operating system": (
        pure, "lakewright/model/file_group.py", "import os.path"),
    "model has no clock": (
        pure, "lakewright/model/instant.py", "from time import time"),
    "model has no ids of its own": (
        pure, "lakewright/model/file_group.py", "import uuid"),
    "model has no chance": (
        pure, "lakewright/model/file_group.py", "import random"),
    "format keeps no log": (
        pure, "lakewright/format/log_block.py", "import logging"),
    "format knows no files": (
        pure, "lakewright/format/log_block.py", "from pathlib import Path"),
    "format knows no sockets": (
        pure, "lakewright/format/log_block.py", "import socket"),
    "format opens nothing": (
        pure, "lakewright/format/log_block.py", "open('x')"),
    "format opens nothing with io either": (
        pure, "lakewright/format/log_block.py", "import io\nio.open('x')"),
    "format does not import open": (
        pure, "lakewright/format/log_block.py", "from io import open"),
    "format has no file system of Arrow": (
        pure, "lakewright/format/log_block.py", "from pyarrow import fs"),
    "a module ends after 800 lines": (
        short, "lakewright/scan/scan_plan.py", "x = 1\n" * 801),
    "no import inside a function": (
        imports_on_top, "lakewright/scan/scan_plan.py", "def f():\n    import json"),
    "no import inside a method": (
        imports_on_top, "lakewright/scan/scan_plan.py",
        "class A:\n    async def f(self):\n        if x:\n            from a import b"),
    "no relative import above the package": (
        stays_inside, "lakewright/scan/scan_plan.py", "from .... import secret"),
    "no path above the repository": (
        stays_inside, "lakewright/scan/scan_plan.py", "PLACE = '../../../../elsewhere/file.json'"),
    "no names of a schema for each column": (
        names_once, "lakewright/scan/scan_plan.py",
        "x = [c for c in columns if c not in a.b.names]"),
    "no names of a table for each field": (
        names_once, "lakewright/scan/scan_plan.py",
        "x = {c: c in rows.column_names for c in columns}"),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text"), BAD.values(), ids=list(BAD))
def test_a_rule_bites(rule: Callable[[Module], Iterator[str]], path: str, text: str) -> None:
    assert list(rule(Module(path, text)))


GOOD = {
    "a layer imports those before it": (
        "lakewright/spark/writer.py", "from lakewright.model.file_group import BaseFile"),
    "a package imports its own modules": (
        "lakewright/model/file_group.py", "from lakewright.model import instant"),
    "options import errors": (
        "lakewright/options.py", "from lakewright.errors import InvalidError"),
    "the demo shows the API": (
        "lakewright/demo.py", "import pyspark\nfrom lakewright.api import table"),
    "the demo comes in by the front door": (
        "lakewright/demo.py", "import lakewright as lw"),
    "the engine imports pyspark": (
        "lakewright/spark/engine.py", "from pyspark.sql import DataFrame"),
    "the API imports pyspark": (
        "lakewright/api/table.py", "from pyspark.sql import DataFrame"),
    "every module may import pyspark for types": (
        "lakewright/scan/scan_plan.py",
        "import typing\nif typing.TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
    "bytes in memory are pure": (
        "lakewright/format/log_block.py", "import io\nio.BytesIO(b'')"),
    "the front door imports what it shows": (
        "lakewright/__init__.py", "from lakewright.api.table import open"),
    "800 lines fit": (
        "lakewright/scan/scan_plan.py", "x = 1\n" * 800),
    "the parent folder may be named": (
        "lakewright/storage/local.py", "bad = '..' in parts"),
    "each table may be asked for its names": (
        "lakewright/scan/scan_plan.py", "x = [t for t in tables if 'id' in t.column_names]"),
}  # fmt: skip


@pytest.mark.parametrize(("path", "text"), GOOD.values(), ids=list(GOOD))
def test_good_code_is_left_alone(path: str, text: str) -> None:
    assert offences(Module(path, text)) == []


def test_no_module_hides_a_public_name() -> None:
    """Importing `lakewright.x` would put the module in the place of what `lw.x` is."""
    names = {path.stem for path in (SOURCE / "lakewright").iterdir()}
    assert names & set(lw.__all__) == set()


LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_pins_hashes_and_names_no_place(lock: Path) -> None:
    text = lock.read_text("utf-8")
    pins = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == []
    assert re.findall(r"://|--(?:extra-)?index|--find-links| @ |^-[ef]", text, re.MULTILINE) == []
