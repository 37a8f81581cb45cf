"""The tables of options in the pages say what the settings say."""

from __future__ import annotations

import dataclasses
import inspect
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from hudi_options import harmless, honoured, hudi_names, refused

import lakewright
from lakewright.errors import InvalidError, UnsupportedError
from lakewright.options import HUDI_OPTIONS, OWN_OPTIONS, option_keys
from lakewright.write.options import check_write_options

ROOT = Path(__file__).resolve().parents[2]
TABLES = runpy.run_path(str(ROOT / "scripts" / "option_tables.py"))
TEXT = "".join(page.read_text("utf-8") for page in TABLES["PAGES"])


@pytest.mark.parametrize("name", TABLES["FAMILIES"])
def test_the_options_of_a_family_are_all_there(name: str) -> None:
    table = TABLES["table"](TABLES["FAMILIES"][name])
    section = f"<!-- options: {name} -->\n{table}\n<!-- end -->"
    assert section in TEXT, "run scripts/option_tables.py"


@pytest.mark.parametrize("page", TABLES["PAGES"], ids=lambda page: page.stem)
def test_a_page_is_as_it_would_be_written_now(page: Path) -> None:
    text = page.read_text("utf-8")
    assert TABLES["renewed"](text) == text, "run scripts/option_tables.py"


def test_every_option_of_hudi_is_in_one_list() -> None:
    lists = [{entry.name for entry in honoured().values()}, set(refused()), set(harmless())]
    assert sum(map(len, lists)) == len(set.union(*lists)) == len(hudi_names()) == len(HUDI_OPTIONS)


@pytest.mark.parametrize("name", [name for name, uses in refused().items() if "writing" in uses])
def test_what_is_listed_as_refused_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedError):
        check_write_options({name: "something else"})


def test_what_is_listed_as_harmless_passes() -> None:
    checked = check_write_options(dict.fromkeys(harmless(), "something"))
    assert set(checked.ignored) <= {name.lower() for name in harmless()}


def test_what_is_in_no_list_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(InvalidError, match=r"hoodie\.clean\.automatic"):
        check_write_options({"hoodie.clean.automatik": "true"})


def test_the_list_of_own_options_holds_those_of_all_settings() -> None:
    source = Path(lakewright.__file__).parent
    keys: set[str] = set()
    for file in source.rglob("*.py"):
        if "settings_from" in (text := file.read_text("utf-8")) or " = option(" in text:
            name = ".".join(file.relative_to(source.parent).with_suffix("").parts)
            for member in vars(import_module(name)).values():
                if inspect.isclass(member) and dataclasses.is_dataclass(member):
                    keys |= {key.lower() for key in option_keys(member)}
    assert sorted(keys - HUDI_OPTIONS) == sorted(OWN_OPTIONS)
