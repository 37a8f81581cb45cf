"""CREATE TABLE from its text, and what errors show of it."""

from __future__ import annotations

import pytest

from lakewright.errors import InvalidError
from lakewright.sql.create_table import parse_create

SECRET = "wJalrXUtnFEMI"
BROKEN = {
    "without an equals sign": f"TBLPROPERTIES (`fs.s3a.secret.key` '{SECRET}')",
    "two equals signs": f"TBLPROPERTIES ('a' = = 'b', 'fs.s3a.session.token' = '{SECRET}')",
    "quoted otherwise": f'TBLPROPERTIES (1 2, "fs.azure.account.key.lake" = "{SECRET}")',
    "without quotes": f"TBLPROPERTIES (fs.s3a.access.key '{SECRET}')",
}


@pytest.mark.parametrize("options", BROKEN.values(), ids=list(BROKEN))
def test_a_statement_that_does_not_parse_is_reported_without_credentials(options: str) -> None:
    with pytest.raises(InvalidError, match="does not parse") as error:
        parse_create(f"CREATE TABLE trips USING hudi {options} LOCATION '/data/trips'")
    assert SECRET not in str(error.value)
    assert "trips" in str(error.value)
    assert error.value.__cause__ is None
