"""hudi-rs reads the same rows wherever it supports the table and gets the question right."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hudi import HudiQueryType, HudiReadOptions, HudiTableBuilder

from support.golden import NAMES, GoldenTables, Query, as_json, queries

pytestmark = pytest.mark.sampled(2)

# It refuses several ordering fields.
SUPPORTED = [name for name in NAMES if name != "mor_two_ordering"]

# Ranges from the beginning where it leaves out rows: of archived history, and of a range that ends
# before a writer that was requested within it has completed.
DIFFERS = {
    ("cow_archived", "changes 000"),
    ("cow_archived", "changes 000 20261115213117210"),
    ("mor_out_of_order", "changes 000 20261115213336661"),
}


def options(query: Query) -> HudiReadOptions:
    read_options = HudiReadOptions()
    if query.kind == "as_of" and query.as_of:
        return read_options.with_as_of_timestamp(query.as_of)
    if query.kind == "read_optimized":
        return read_options.with_hudi_option("hoodie.read.use.read_optimized.mode", "true")
    if query.kind == "changes":
        since = query.since if query.since and query.since != "000" else "19700101000000000"
        read_options = read_options.with_query_type(HudiQueryType.Incremental).with_start_timestamp(
            since
        )
        return read_options.with_end_timestamp(query.until) if query.until else read_options
    return read_options


@pytest.mark.parametrize("name", SUPPORTED)
def test_hudi_rs_agrees(name: str, golden: GoldenTables) -> None:
    table = HudiTableBuilder.from_base_uri(str(golden[name])).build()
    differing = set()
    for query in queries(name):
        if query.rows is None:
            continue
        batches = [pa.record_batch(batch) for batch in table.read(options(query))]
        rows = sorted(as_json(row) for batch in batches for row in batch.to_pylist())
        if rows != sorted(query.rows):
            differing.add((name, str(query)))
    assert differing == {pair for pair in DIFFERS if pair[0] == name}
