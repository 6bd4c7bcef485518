"""Whatever a row holds, it is a row with a prompt and a key that can be written, or a failed row."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.elements import FailedRow
from airflow_provider_llmbeam.pipeline.prompt_of_row import PromptRenderer, with_key
from airflow_provider_llmbeam.pipeline.records import encode_key, encode_record, failed_record
from airflow_provider_llmbeam.pipeline.sources.files import parse_csv, parse_json_line, parse_table
from airflow_provider_llmbeam.spec.prompt import PromptTemplate
from tests.hostile import altered, encoded, examples, letters, odd

#: Values of Avro, Parquet and BigQuery.
scalars = st.one_of(
    odd,
    st.binary(max_size=9),
    st.decimals(),
    st.dates(),
    st.times(),
    st.datetimes(timezones=st.none() | st.just(datetime.UTC)),
    st.timedeltas(),
    st.uuids(),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=3), max_leaves=5
)
rows = st.dictionaries(st.sampled_from(["id", "text", "other"]) | letters, values, max_size=4)
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=9)),
    (pa.large_string(), st.text(max_size=9)),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.date64(), st.integers(-(10**8), 10**8).map(lambda days: days * 86_400_000)),
    (pa.time64("us"), st.integers(0, 86_400_000_000 - 1)),
    (pa.timestamp("s"), st.integers(-(2**40), 2**40)),
    (pa.timestamp("ms", "UTC"), st.integers(-(2**50), 2**50)),
    (pa.timestamp("us", "Europe/Berlin"), st.integers(-(2**62), 2**62)),
    (pa.timestamp("ns"), st.integers(-(2**53), 2**53).map(lambda number: number * 1000)),
    (pa.duration("s"), st.integers(-(2**62), 2**62)),
    (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4).map(decimal.Decimal)),
    (pa.dictionary(pa.int8(), pa.string()), st.text(max_size=3)),
    (pa.null(), st.none()),
    (pa.list_(pa.date32()), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=2)),
    (pa.struct({"at": pa.timestamp("s")}), st.fixed_dictionaries({"at": st.integers(-(2**40), 2**40)})),
    (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=2)),
]
RENDERER = PromptRenderer(
    PromptTemplate(
        template="{{ row.text }} {% for each in row.other %}{{ each }}{% endfor %} {{ row.id | tojson }}"
    )
)


def assert_is_processed(found: Any) -> None:
    """Takes a row through the steps up to its prompt, and a failed one to the dead letter."""
    row = with_key(found, ("id",))
    pickle.loads(pickle.dumps(row))
    if isinstance(row, FailedRow):
        json.loads(encode_record(failed_record(row)).decode())
        row.failure.message.encode("utf-8", "surrogatepass")
        return
    assert json.loads(encode_key(row, ("id",))) is not None
    try:
        prompt = RENDERER.render(row)
    except Exception:  # noqa: BLE001 - the row fails with it
        return
    assert isinstance(prompt.text, str)


@st.composite
def tables(draw: st.DrawFn) -> Any:
    count = draw(st.integers(1, 3))
    columns = {}
    for name in draw(st.lists(st.sampled_from(["id", "text", "other"]), min_size=1, unique=True)):
        kind, cells = draw(st.sampled_from(KINDS))
        columns[name] = pa.array(draw(st.lists(st.none() | cells, min_size=count, max_size=count)), kind)
    return pa.table(columns)


@pytest.mark.fuzz
@examples(0.5)
@given(rows)
def test_a_row_of_any_values_is_processed_or_fails_alone(row: dict[str, Any]) -> None:
    assert_is_processed(row)


@pytest.mark.fuzz
@examples(0.5)
@given(tables())
def test_each_row_of_any_table_is_processed_or_fails_alone(table: Any) -> None:
    found = list(parse_table(table))
    assert len(found) == table.num_rows
    for row in found:
        assert_is_processed(row)


LINE = {"id": 7, "text": "Größe", "other": [1, {"a": None}], "at": "2026-01-01"}


@pytest.mark.fuzz
@given(altered(LINE), st.none() | st.binary(max_size=60), st.integers(0, 60), st.binary(max_size=4))
def test_any_line_of_json_is_processed_or_fails_alone(
    value: Any, other: bytes | None, at: int, noise: bytes
) -> None:
    line = encoded(value) if other is None else other
    for found in parse_json_line(line[:at] + noise + line[at:]):
        assert_is_processed(found)


@pytest.mark.fuzz
@given(
    st.lists(st.sampled_from(["id", "text", "other", ",", '"', "\n", "\r\n", "\0", "a", " ", ";"]), max_size=40)
)
def test_each_row_of_any_csv_is_processed_or_fails_alone(parts: list[str]) -> None:
    try:
        found = list(parse_csv(io.StringIO("".join(parts), newline="")))
    except ValueError as error:
        assert "the header" in str(error)  # noqa: PT017 - a file without columns has no rows
        return
    for row in found:
        assert_is_processed(row)
