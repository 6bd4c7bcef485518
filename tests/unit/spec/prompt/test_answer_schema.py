from __future__ import annotations

import json
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.prompt import answer_schema
from airflow_provider_llmbeam.spec.prompt.answer_schema import AnswerSchema, TooManyStepsError
from tests.hostile import examples

#: With 41 characters `re` takes 10 s, and twice as long with each two more.
BACKTRACKING, LONG = "(a|aa)+$", "a" * 40 + "!"


@pytest.fixture
def fetched() -> Iterator[tuple[str, list[str]]]:
    """Yields the address of a server with schemas, and the paths that were fetched from it."""
    paths: list[str] = []

    class Schemas(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Schemas) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "{}b"},
        {"$dynamicRef": "{}b"},
        {"properties": {"a": {"items": {"$dynamicRef": "{}b#c"}}}},
        {"$id": "{}a", "properties": {"a": {"$ref": "b"}}},
        {"$id": "{}a", "properties": {"a": {"$dynamicRef": "b"}}},
        {"$defs": {"a": {"$id": "{}a", "$dynamicRef": "../b"}}, "$ref": "{}a"},
        {"properties": {"a": {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "{}b"}}},
    ],
)
def test_no_schema_is_fetched_and_a_reference_to_one_is_refused(
    schema: dict[str, Any], fetched: tuple[str, list[str]]
) -> None:
    address, paths = fetched
    schema = json.loads(json.dumps(schema).replace("{}", address))
    with pytest.raises(ValueError, match=r"has a `\$(ref|dynamicRef|schema)` "):
        AnswerSchema(schema).mismatch({"a": [1]})
    assert paths == []


def test_a_reference_is_resolved_against_the_id_around_it() -> None:
    """The pointer has a target in the root, and none in the part with its own `$id`, where it is looked up."""
    part = {"$id": "http://127.0.0.1/part", "$ref": "#/$defs/text"}
    with pytest.raises(ValueError, match=r"has a `\$ref` without a target in the schema: '#/\$defs/text'"):
        AnswerSchema({"$defs": {"text": {"type": "string"}}, "properties": {"a": part}})


def test_a_reference_to_something_else_than_a_schema_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has a `\$ref` to something that is no schema: '#/\$defs/a/title'"):
        AnswerSchema({"$defs": {"a": {"title": "t"}}, "$ref": "#/$defs/a/title"})


def full(*values: Any) -> Any:
    """Returns the parameters of a test of the full tier: each takes its half a second."""
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"pattern": BACKTRACKING}, LONG),
        full({"patternProperties": {BACKTRACKING: {}}}, {LONG: 1}),
        full({"patternProperties": {BACKTRACKING: True}, "additionalProperties": False}, {LONG: 1}),
        full({"propertyNames": {"pattern": BACKTRACKING}}, {LONG: 1}),
        full(
            {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "items": {"$ref": "#"},
                "pattern": BACKTRACKING,
            },
            [LONG],
        ),
    ],
)
def test_a_pattern_that_backtracks_ends_at_a_limit(schema: dict[str, Any], value: Any) -> None:
    assert AnswerSchema(schema).mismatch(value) == "pattern '(a|aa)+$' takes longer than 0.5 s"


def test_the_time_of_patterns_is_that_of_all_values_of_an_answer() -> None:
    found = AnswerSchema({"items": {"not": {"pattern": BACKTRACKING}}}).mismatch(["a" * 25 + "!"] * 1000)
    assert found == "pattern '(a|aa)+$' takes longer than 0.5 s"


@pytest.mark.parametrize("pattern", ["((a{100}){100}){100}", "a{10001}", "(ab){5001}"])
def test_a_pattern_that_is_spelled_out_to_a_long_text_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="has a pattern that matches no text of less than "):
        AnswerSchema({"pattern": pattern})


@pytest.fixture(params=[1_000, 5_000], ids=lambda limit: f"recursion limit {limit:,}")
def recursion_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Python's own limit, and that of a process in which Airflow has copied an operator."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(request.param)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("recursion_limit")
@pytest.mark.parametrize("pattern", ["a{99999999999999}", "(" * 2000 + ")" * 2000], ids=["count", "depth"])
def test_a_pattern_that_cannot_be_compiled_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="is too complex"):
        AnswerSchema({"pattern": pattern})


@pytest.mark.parametrize("pattern", [r"^(?!\s*$).+", r"^(a)\1$", r"^\d{4}-\d{2}$", r"^[\s\S]{1,20000}$"])
def test_a_pattern_with_the_syntax_of_python_is_accepted(pattern: str) -> None:
    assert AnswerSchema({"patternProperties": {pattern: {"type": "integer"}}}).mismatch({"": "x"}) is None


@pytest.mark.parametrize("keyword", ["unevaluatedItems", "unevaluatedProperties"])
def test_a_keyword_that_takes_quadratic_time_is_refused(keyword: str) -> None:
    with pytest.raises(ValueError, match=f"has `{keyword}`, which is not supported: "):
        AnswerSchema({"items": {keyword: False}})


def doubling(levels: int) -> dict[str, Any]:
    """Returns a schema that applies its last part 2 to the power of `levels` times."""
    parts = {f"p{level}": {"allOf": [{"$ref": f"#/$defs/p{level + 1}"}] * 2} for level in range(levels)}
    return {"$defs": {**parts, f"p{levels}": {}}, "$ref": "#/$defs/p0"}


def test_references_that_double_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be used: checking even null takes too many steps"):
        AnswerSchema(doubling(40))
    AnswerSchema(doubling(4))


def test_references_that_double_in_an_answer_end_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_schema, "MAX_STEPS", 20_000)
    schema = AnswerSchema({"properties": {"a": {"properties": {"b": doubling(40) | {"$id": "x"}}}}})
    assert schema.mismatch({"a": {"b": 1}}) == "checking it takes too many steps"
    assert schema.mismatch({"a": {"c": 1}}) is None, "each answer has its own steps"


#: Any of two types, or a list of them.
LIST = {"type": "array", "items": {"$ref": "#"}}
TREE: dict[str, Any] = {"anyOf": [{"type": "integer"}, {"type": "null"}, LIST]}


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_errors_that_decide_nothing_are_not_kept(keyword: str) -> None:
    """Each has the text of its value: `jsonschema` kept 700 MB of an answer of 4 MB."""
    schema = AnswerSchema({keyword: TREE["anyOf"]})
    tracemalloc.start()
    found = schema.mismatch(nested("x" * 200_000, 80))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found is not None
    assert peak < 5_000_000


@pytest.mark.parametrize(
    "schema",
    [
        TREE,
        {"oneOf": TREE["anyOf"]},
        {"not": {"type": "null"}, "items": {"$ref": "#"}},
        {"if": {"type": "null"}, "else": {"if": {"type": "integer"}, "else": {"items": {"$ref": "#"}}}},
        {"contains": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "uniqueItems": True},
    ],
)
def test_errors_that_decide_nothing_take_steps_by_their_length(schema: dict[str, Any]) -> None:
    checked = AnswerSchema(schema)
    assert checked.mismatch(nested(1, 30), 5_000) is None
    with pytest.raises(TooManyStepsError):
        checked.mismatch(nested("x" * 20_000, 30), 5_000)


def test_an_answer_that_is_tried_in_few_steps_is_decided_with_more() -> None:
    schema, value = AnswerSchema({"items": {"type": "integer"}}), [1] * 1_000
    with pytest.raises(TooManyStepsError):
        schema.mismatch(value, 100)
    assert schema.mismatch(value) is None


@pytest.mark.usefixtures("recursion_limit")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    ],
)
def test_a_schema_that_refers_to_itself_without_end_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Does a `\$ref` lead back to itself"):
        AnswerSchema(schema)


def test_a_schema_without_end_is_refused_at_any_depth_of_the_stack() -> None:
    """Python's recursion limit may be reached in `rpds`, which then panics."""

    def refused(depth: int) -> None:
        if depth:
            refused(depth - 1)
        else:
            with pytest.raises(ValueError, match=r"Does a `\$ref` lead back to itself"):
                AnswerSchema({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"})

    for depth in range(40):
        refused(depth)


def test_a_tree_is_checked_by_a_schema_that_refers_to_itself() -> None:
    schema = AnswerSchema({"type": "object", "additionalProperties": {"$ref": "#"}})
    assert schema.mismatch({"a": {"b": {}}}) is None
    assert schema.mismatch({"a": {"b": 1}}) == "at $.a.b: 1 is not of type 'object'"


def test_a_schema_that_is_nested_too_deep_or_too_large_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"items": deep}
    with pytest.raises(ValueError, match="is nested more than 100 levels deep"):
        AnswerSchema(deep)
    with pytest.raises(ValueError, match="has more than 10,000 values"):
        AnswerSchema({"properties": {str(number): {} for number in range(1_000_000)}})


def test_the_values_of_a_long_list_are_compared_without_pairs() -> None:
    """`jsonschema` compares each object with each other one: minutes for so many."""
    objects = [{"a": number, "b": [str(number)]} for number in range(5000)]
    schema = AnswerSchema({"uniqueItems": True})
    assert schema.mismatch(objects) is None
    assert "has non-unique elements" in str(schema.mismatch([*objects, {"b": ["7"], "a": 7.0}]))


@pytest.mark.parametrize("item", [[[[1]], {"a": [2]}], {"a": {"b": []}}])
def test_nested_items_are_counted_before_they_hold_the_loop(item: Any) -> None:
    schema = AnswerSchema({"uniqueItems": True})
    with pytest.raises(TooManyStepsError):
        schema.mismatch([[item] * 20_000, 1], 10_000)
    assert schema.mismatch([[item] * 20_000, 1]) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([0.0, 1.0, -0.0, 1.5, "", "1", "true"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", '"']), inner, max_size=2)
    ),
    max_leaves=6,
)


@pytest.mark.fuzz
@examples(0.4)
@given(st.lists(values, max_size=5))
def test_items_are_unique_as_json_schema_defines_it(items: list[Any]) -> None:
    expected = jsonschema.Draft202012Validator({"uniqueItems": True}).is_valid(items)
    assert (AnswerSchema({"uniqueItems": True}).mismatch(items) is None) == expected


def test_the_message_about_a_long_value_is_short() -> None:
    """A repair sends it to the model."""
    assert len(AnswerSchema({"type": "object"}).mismatch("x" * 100_000) or "") <= 500
    assert len(AnswerSchema({"additionalProperties": False}).mismatch({"x" * 100_000: 1}) or "") <= 500


def test_a_number_that_a_keyword_cannot_compute_with_is_a_mismatch() -> None:
    found = AnswerSchema({"multipleOf": 0.5}).mismatch(10**400)
    assert found == "it cannot be checked (OverflowError: int too large to convert to float)"


names = st.sampled_from(["a", "b", "ab"])
patterns = st.sampled_from(["a", "^a$", "(a|b)*", "b{2}", "^$", "(a|aa)+$"])
sizes = st.integers(0, 3)


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "$ref": st.sampled_from(["#", "#/$defs/d", "#/properties/a"]),
            "$defs": st.fixed_dictionaries({"d": inner}),
            "type": st.sampled_from(["object", "array", "string", "number", ["null", "integer"]]),
            "properties": st.dictionaries(names, inner, max_size=2),
            "patternProperties": st.dictionaries(patterns, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "required": st.lists(names, max_size=2, unique=True),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "uniqueItems": st.booleans(),
            "minItems": sizes,
            "maxProperties": sizes,
            "pattern": patterns,
            "maxLength": sizes,
            "minimum": st.integers(-2, 2),
            "multipleOf": st.sampled_from([1, 0.1, 2]),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "dependentSchemas": st.dictionaries(names, inner, max_size=1),
        },
    )


schemas = st.recursive(st.booleans() | st.just({}), schemas_of, max_leaves=8).filter(
    lambda one: isinstance(one, dict)
)


@pytest.mark.fuzz
@examples(0.4)
@given(schemas, values)
def test_any_schema_is_refused_or_decides_as_jsonschema_does(schema: dict[str, Any], value: Any) -> None:
    try:
        checked = AnswerSchema(schema)
    except ValueError:
        return
    found = checked.mismatch(value)
    try:
        is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    except RecursionError:  # a schema that refers to itself, for which jsonschema has no answer
        return
    assert (found is None) == is_valid
