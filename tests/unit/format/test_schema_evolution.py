"""How a table's schema follows the rows that are written."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.format.avro.schema import arrow_schema, avro_schema
from lakewright.format.schema_evolution import Evolution, evolved, record_names
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from support.golden import GoldenTables

INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
STRING, BYTES = pa.string(), pa.binary()
MILLIS, MICROS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")


def avro(*fields: dict[str, Any], **more: Any) -> str:
    # Blanks show that a text was not touched.
    return json.dumps({"type": "record", "name": "r", "namespace": "n", "fields": fields, **more})


def stored(kind: pa.DataType, *, nullable: bool = True) -> str:
    return avro_schema(pa.schema([pa.field("c", kind, nullable)]), "t_record", "hoodie.t")


def write(table: str | None, *columns: pa.Field, **more: Any) -> Evolution:
    options = {"name": "t", "allow_missing": False, **more}
    return evolved(table, pa.schema(columns), **options)


def column(kind: pa.DataType, *, nullable: bool = True) -> pa.Field:
    return pa.field("c", kind, nullable)


FIRST = {
    "a plain name": ("trips", "trips_record", "hoodie.trips"),
    "a name with a dash": ("my-trips", "my__trips_record", "hoodie.my__trips"),
    "a name with a digit first": ("1a", "__a_record", "hoodie.__a"),
    "a name beyond ASCII": ("über", "__ber_record", "hoodie.__ber"),
    "a name with a dot": ("a.b", "a__b_record", "hoodie.a__b"),
}


@pytest.mark.parametrize(("table", "name", "namespace"), FIRST.values(), ids=list(FIRST))
def test_the_record_of_a_new_table_is_named_as_real_writers_do(
    table: str, name: str, namespace: str
) -> None:
    assert record_names(table) == (name, namespace)
    first = evolved(None, pa.schema([column(LONG)]), name=table, allow_missing=False)
    tree = json.loads(first.avro)
    assert first.changed
    assert (tree["name"], tree["namespace"]) == (name, namespace)


def test_all_columns_of_a_new_table_are_nullable_deep_inside_too() -> None:
    inner = pa.struct([pa.field("a", LONG, nullable=False)])
    many = pa.list_(pa.field("item", inner, nullable=False))
    by_name = pa.map_(STRING, pa.field("value", inner, nullable=False))
    columns = [pa.field(n, t, nullable=False) for n, t in (("l", many), ("m", by_name))]
    schema = arrow_schema(write(None, *columns).avro)
    open_inner = pa.struct([pa.field("a", LONG)])
    assert schema == pa.schema(
        [
            pa.field("l", pa.list_(pa.field("element", open_inner))),
            pa.field("m", pa.map_(STRING, open_inner)),
        ]
    )


SAME: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "the same type": (LONG, LONG),
    "a number that is narrower": (LONG, INT),
    "a whole number in a double column": (DOUBLE, LONG),
    "a whole number in a float column": (FLOAT, INT),
    "a float in a double column": (DOUBLE, FLOAT),
    "a small number": (INT, pa.int8()),
    "a decimal with fewer digits": (pa.decimal128(12, 2), pa.decimal128(5, 2)),
    "a time of another zone": (MICROS, pa.timestamp("us", "Europe/Oslo")),
    "micros in a column of millis": (MILLIS, MICROS),
    "millis in a column of micros": (MICROS, MILLIS),
    "local micros in local millis": (pa.timestamp("ms"), pa.timestamp("us")),
    "binary in a column of a fixed size": (pa.binary(4), BYTES),
    "a large string": (STRING, pa.large_string()),
    "a dictionary of strings": (STRING, pa.dictionary(pa.int32(), STRING)),
    "nothing but null": (STRING, pa.null()),
    "a list with another item name": (pa.list_(pa.field("element", LONG)), pa.list_(INT)),
    "a large list": (pa.list_(pa.field("element", LONG)), pa.large_list(LONG)),
    "a struct with its fields in another order": (
        pa.struct([("a", LONG), ("b", STRING)]),
        pa.struct([("b", STRING), ("a", INT)]),
    ),
    "a map with narrower values": (pa.map_(STRING, DOUBLE), pa.map_(STRING, FLOAT)),
}


@pytest.mark.parametrize(("old", "new"), SAME.values(), ids=list(SAME))
def test_rows_that_fit_leave_the_schema_as_it_is(old: pa.DataType, new: pa.DataType) -> None:
    table = " " + stored(old)
    assert write(table, column(new)) == Evolution(table, False)


WIDER: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "int to long": (INT, LONG),
    "int to double": (INT, DOUBLE),
    "float to double": (FLOAT, DOUBLE),
    "more digits in a decimal": (pa.decimal128(5, 2), pa.decimal128(20, 2)),
    "in a struct": (
        pa.struct([("a", INT), ("b", STRING)]),
        pa.struct([("b", STRING), ("a", LONG)]),
    ),
    "in a list": (pa.list_(INT), pa.list_(LONG)),
    "in a map": (pa.map_(STRING, FLOAT), pa.map_(STRING, DOUBLE)),
    "in a struct in a list": (
        pa.list_(pa.struct([("a", pa.decimal128(5, 2))])),
        pa.list_(pa.struct([("a", pa.decimal128(38, 2))])),
    ),
}


@pytest.mark.parametrize(("old", "new"), WIDER.values(), ids=list(WIDER))
@pytest.mark.parametrize("nullable", [True, False])
def test_a_column_widens(old: pa.DataType, new: pa.DataType, nullable: bool) -> None:
    after = write(stored(old, nullable=nullable), column(new, nullable=nullable))
    assert after.changed
    expected = arrow_schema(stored(new, nullable=nullable))
    names = [field.name for field in arrow_schema(after.avro)]
    assert names == expected.names
    if pa.types.is_struct(new):
        expected = arrow_schema(
            stored(pa.struct([new.field("a"), new.field("b")]), nullable=nullable)
        )
    assert arrow_schema(after.avro) == expected
    assert not write(after.avro, column(old, nullable=nullable)).changed


MISFITS: dict[str, tuple[pa.DataType, pa.DataType]] = {
    "long to double, which Spark cannot read from old files": (LONG, DOUBLE),
    "long to float, which Spark cannot read from old files": (LONG, FLOAT),
    "int to float, which Spark cannot read from old files": (INT, FLOAT),
    "a double in a long column": (LONG, DOUBLE),
    "a string in a binary column": (BYTES, STRING),
    "binary in a string column": (STRING, BYTES),
    "a string in a long column": (LONG, STRING),
    "a long in a string column": (STRING, LONG),
    "a decimal with another scale": (pa.decimal128(12, 2), pa.decimal128(12, 3)),
    "a decimal with more digits than fit": (pa.decimal128(12, 2), pa.decimal256(40, 2)),
    "a long in a decimal column": (pa.decimal128(20, 0), LONG),
    "a local time in a column of moments": (MICROS, pa.timestamp("us")),
    "a moment in a column of local times": (pa.timestamp("us"), MICROS),
    "nanoseconds": (MICROS, pa.timestamp("ns", "UTC")),
    "a time in a column of dates": (pa.date32(), MICROS),
    "a boolean in an int column": (INT, pa.bool_()),
    "binary of another fixed size": (pa.binary(4), pa.binary(5)),
    "a struct in a list column": (pa.list_(LONG), pa.struct([("a", LONG)])),
    "a list in a map column": (pa.map_(STRING, LONG), pa.list_(LONG)),
}


@pytest.mark.parametrize(("old", "new"), MISFITS.values(), ids=list(MISFITS))
def test_rows_that_do_not_fit_are_refused(old: pa.DataType, new: pa.DataType) -> None:
    with pytest.raises(InvalidError, match="nothing was written") as raised:
        write(stored(old), column(new))
    assert raised.value.facts["column"] == "c"
    assert raised.value.facts["stored"] == str(arrow_schema(stored(old)).field("c").type)
    assert "incoming" in raised.value.facts


def test_a_refusal_names_the_nested_column_and_why_old_files_are_in_the_way() -> None:
    with pytest.raises(InvalidError, match="Spark could not read") as raised:
        write(stored(pa.struct([("a", LONG)])), column(pa.struct([("a", DOUBLE)])))
    assert raised.value.facts["column"] == "c.a"


TABLE = avro(
    {"name": "id", "type": "string", "doc": "the key", "aliases": ["key"]},
    {"name": "n", "type": ["null", "int"], "default": None, "order": "ignore"},
    {"name": "d", "type": "int", "default": 7},
    {
        "name": "info",
        "type": {"type": "record", "name": "i", "fields": [{"name": "a", "type": "long"}]},
        "doc": "more",
    },
    doc="the table",
)
ID, N, D = pa.field("id", STRING, nullable=False), pa.field("n", INT), pa.field("d", INT, False)
INFO = pa.field("info", pa.struct([pa.field("a", LONG, nullable=False)]), nullable=False)


def fields_of(text: str) -> dict[str, Any]:
    return {field["name"]: field for field in json.loads(text)["fields"]}


def test_new_columns_come_last_and_the_rest_keeps_its_names_and_docs() -> None:
    added = pa.field(
        "added", pa.struct([pa.field("x", pa.decimal128(9, 2), nullable=False)]), False
    )
    after = write(TABLE, added, INFO, D, N, ID)
    tree = json.loads(after.avro)
    assert after.changed
    assert tree["doc"] == "the table"
    assert tree["fields"][:-1] == json.loads(TABLE)["fields"]
    assert tree["fields"][-1] == {
        "name": "added",
        "type": [
            "null",
            {
                "type": "record",
                "name": "added",
                "namespace": "n.r",
                "fields": [
                    {
                        "name": "x",
                        "type": [
                            "null",
                            {
                                "type": "fixed",
                                "name": "fixed",
                                "namespace": "n.r.added.x",
                                "size": 4,
                                "logicalType": "decimal",
                                "precision": 9,
                                "scale": 2,
                            },
                        ],
                        "default": None,
                    }
                ],
            },
        ],
        "default": None,
    }


def test_a_column_is_added_letter_by_letter_as_real_hudi_does_it(golden: GoldenTables) -> None:
    snapshot = load_snapshot(storage_for(str(golden["cow_evolved"]), {}))
    before, after = (commit.schema for commit in snapshot.commits(snapshot.view().writes()))
    assert before is not None
    assert after is not None
    rows = arrow_schema(after)
    assert evolved(before, rows, name="cow_evolved", allow_missing=False).avro == after


def test_a_widened_column_keeps_everything_but_its_type() -> None:
    after = write(TABLE, ID, pa.field("n", LONG), pa.field("d", DOUBLE, False), INFO)
    fields = fields_of(after.avro)
    assert fields["n"] == {
        "name": "n",
        "type": ["null", "long"],
        "default": None,
        "order": "ignore",
    }
    assert fields["d"] == {"name": "d", "type": "double", "default": 7}
    assert fields["id"]["doc"] == "the key"


def test_a_nullable_column_of_the_rows_makes_that_of_the_table_nullable() -> None:
    inner = pa.field("info", pa.struct([pa.field("a", LONG)]))
    after = write(TABLE, pa.field("id", STRING), N, pa.field("d", INT), inner)
    fields = fields_of(after.avro)
    assert fields["id"]["type"] == ["null", "string"]
    assert fields["id"]["default"] is None
    # A default stays, and it belongs to the first type.
    assert (fields["d"]["type"], fields["d"]["default"]) == (["int", "null"], 7)
    null, record = fields["info"]["type"]
    assert null == "null"
    assert record["fields"] == [{"name": "a", "type": ["null", "long"], "default": None}]


def test_a_nested_field_is_added_inside() -> None:
    wider = pa.struct([pa.field("b", STRING), pa.field("a", LONG, nullable=False)])
    after = write(TABLE, ID, N, D, pa.field("info", wider, nullable=False))
    assert fields_of(after.avro)["info"]["type"] == {
        "type": "record",
        "name": "i",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"], "default": None},
        ],
    }


def test_a_decimal_in_bytes_and_in_a_larger_fixed_type_grows() -> None:
    def decimal(precision: int, **more: Any) -> dict[str, Any]:
        return {"logicalType": "decimal", "precision": precision, "scale": 2, **more}

    table = avro(
        {"name": "b", "type": decimal(5, type="bytes")},
        {"name": "f", "type": decimal(5, type="fixed", name="x", size=16)},
    )
    rows = [pa.field(name, pa.decimal128(12, 2), nullable=False) for name in "bf"]
    fields = fields_of(write(table, *rows).avro)
    assert fields["b"]["type"] == decimal(12, type="bytes")
    assert fields["f"]["type"] == decimal(12, type="fixed", name="x", size=16)


def test_missing_columns_are_all_listed() -> None:
    with pytest.raises(InvalidError, match="rows lack columns") as raised:
        write(TABLE, ID, D)
    assert raised.value.facts["missing"] == ["n", "info"]


def test_a_missing_nested_field_is_named() -> None:
    with pytest.raises(InvalidError, match="rows lack columns") as raised:
        write(TABLE, ID, N, D, pa.field("info", pa.struct([pa.field("b", LONG)])))
    assert raised.value.facts["missing"] == ["info.a"]


def test_missing_columns_may_be_null() -> None:
    after = write(TABLE, ID, D, allow_missing=True)
    assert fields_of(after.avro)["info"]["type"][0] == "null"
    assert not write(after.avro, ID, D, allow_missing=True).changed
    assert arrow_schema(after.avro).field("n").nullable


TWINS: dict[str, tuple[str | None, list[pa.Field]]] = {
    "like a column of the table": (stored(LONG), [column(LONG), pa.field("C", LONG)]),
    "instead of a column of the table": (stored(LONG), [pa.field("C", LONG)]),
    "among the rows of a new table": (None, [pa.field("a", LONG), pa.field("A", LONG)]),
    "twice the same name": (None, [pa.field("a", LONG), pa.field("a", LONG)]),
    "in a struct": (
        stored(pa.struct([("a", LONG)])),
        [column(pa.struct([("a", LONG), ("A", LONG)]))],
    ),
}


@pytest.mark.parametrize(("table", "columns"), TWINS.values(), ids=list(TWINS))
def test_columns_that_differ_only_in_case_are_refused(
    table: str | None, columns: list[pa.Field]
) -> None:
    with pytest.raises(InvalidError, match="nothing was written"):
        write(table, *columns)


def test_meta_columns_of_the_rows_do_not_count() -> None:
    meta = [pa.field(f"_hoodie_{n}", STRING) for n in ("commit_time", "file_name", "operation")]
    table = stored(LONG)
    assert write(table, *meta, column(LONG)) == Evolution(table, False)
    assert write(None, *meta, column(LONG)) == write(None, column(LONG))


def test_meta_columns_that_a_stored_schema_has_stay_and_are_not_missed() -> None:
    table = avro({"name": "_hoodie_commit_time", "type": "string"}, {"name": "c", "type": "int"})
    assert write(table, column(INT, nullable=False)) == Evolution(table, False)


NO_COLUMN: dict[str, tuple[pa.Field, type[Exception]]] = {
    "a time of day": (column(pa.time64("us")), UnsupportedError),
    "a column of nulls alone": (column(pa.null()), InvalidError),
    "an unsigned number": (column(pa.uint32()), InvalidError),
    "a map with numbers as keys": (column(pa.map_(LONG, LONG)), InvalidError),
    "a name with a dash": (pa.field("a-b", LONG), InvalidError),
}


@pytest.mark.parametrize(("field", "error"), NO_COLUMN.values(), ids=list(NO_COLUMN))
def test_a_column_that_no_query_could_return_is_refused(
    field: pa.Field, error: type[Exception]
) -> None:
    with pytest.raises(error):
        write(None, field)
    with pytest.raises(error):
        write(avro({"name": "id", "type": "long"}), pa.field("id", LONG), field)


def test_rows_without_columns_make_no_table() -> None:
    with pytest.raises(InvalidError, match="no columns"):
        write(None, pa.field("_hoodie_commit_time", STRING))


def test_a_type_that_is_used_twice_is_not_changed_in_one_place() -> None:
    inner = {"type": "record", "name": "i", "fields": [{"name": "a", "type": "int"}]}
    table = avro({"name": "x", "type": inner}, {"name": "y", "type": "i"})
    narrow, wide = (pa.struct([pa.field("a", kind, False)]) for kind in (INT, LONG))
    with pytest.raises(UnsupportedError, match="several places"):
        write(table, pa.field("x", wide, False), pa.field("y", narrow, False))
    both = write(table, pa.field("x", narrow), pa.field("y", narrow))
    assert fields_of(both.avro)["y"]["type"] == ["null", "i"]


def test_keys_and_ordering_keep_what_other_files_rely_on() -> None:
    with pytest.raises(InvalidError, match="keys or partitions"):
        write(stored(INT), column(DOUBLE), keys=["c"])
    with pytest.raises(InvalidError, match="newer"):
        write(stored(INT), column(LONG), ordering=["c"])
    with pytest.raises(InvalidError, match="keys or partitions"):
        write(stored(pa.struct([("a", FLOAT)])), column(pa.struct([("a", DOUBLE)])), keys=["c.a"])
    assert write(stored(INT), column(LONG), keys=["c"]).changed


LEAVES = st.sampled_from(
    [
        *(INT, LONG, FLOAT, DOUBLE, STRING, BYTES, pa.bool_(), pa.date32(), MICROS, MILLIS),
        *(pa.decimal128(5, 2), pa.decimal128(30, 2), pa.binary(3)),
    ]
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda t: pa.list_(pa.field("element", t))),
        inner.map(lambda t: pa.map_(STRING, t)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=4,
)
SCHEMAS = st.dictionaries(st.sampled_from("abcd"), st.tuples(TYPES, st.booleans()), min_size=1).map(
    lambda fields: pa.schema([pa.field(n, t, null) for n, (t, null) in fields.items()])
)


@given(SCHEMAS, SCHEMAS)
def test_rows_that_were_accepted_once_always_fit(first: pa.Schema, second: pa.Schema) -> None:
    table = evolved(None, first, name="t", allow_missing=True).avro
    try:
        after = evolved(table, second, name="t", allow_missing=True)
    except InvalidError:
        return
    assert not evolved(after.avro, second, name="t", allow_missing=True).changed
    assert not evolved(after.avro, first, name="t", allow_missing=True).changed
    names = arrow_schema(after.avro).names
    assert names[: len(first)] == first.names
    assert set(names) == {*first.names, *second.names}
