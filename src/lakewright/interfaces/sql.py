"""What `spark.sql` does after `install`: calls, and statements that Spark refuses for our tables.

Everything else is None: the text goes to Spark as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakewright.interfaces.calls import parse_call
from lakewright.interfaces.procedures import run_call
from lakewright.interfaces.statements.creating import parse_create, run_create
from lakewright.interfaces.statements.run import run_change
from lakewright.interfaces.statements.session import Session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_sql(session: Session, text: str) -> DataFrame | None:
    """Carry a text out if it is for us, else None."""
    call = parse_call(text, session.args)
    if call is not None:
        return run_call(session.spark, call, session.open)
    created = parse_create(text)
    if created is not None:
        return run_create(session, created)
    done = run_change(session, text)
    return done if done is not None else session.read(text)
