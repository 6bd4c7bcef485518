from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec.prompt.template import (
    MAX_SECONDS,
    MAX_SIZE,
    RowEnvironment,
    TemplateLimitError,
    check_template,
    size_of,
)
from tests.hostile import examples

HUGE = 10**10
ROW = {
    "n": HUGE,
    "text": "a\tb" * 20_000,
    "list": ["a"] * 1000,
    "long": "x" * 100_000,
    "format": "{0}" * 3000,
    "exponent": 9**9,
}


def render(template: str, row: dict[str, Any] | None = None, **options: Any) -> str:
    environment = RowEnvironment(**options)
    compiled = environment.from_string(template)
    environment.begin_row()
    return compiled.render(row=ROW if row is None else row)


@pytest.mark.parametrize(
    "expression",
    [
        "'x' * row.n",
        "row.n * 'x'",
        "['x'] * row.n",
        "'x' * 10 ** 10",
        "row.list * 10 ** 6",
        "[row.long] * 1000",
        "9 ** row.exponent",
        "row.n ** row.n",
        "'%*d' % (row.n, 1)",
        "'%10000000000d' % 1",
        "'%.10000000000f' % 1",
        "'%(a)10000000000d' % {'a': 1}",
        "('%s' * 3000) % ([row.long] * 3000)",
        "'{:10000000000}'.format(1)",
        "'{:{}}'.format(1, row.n)",
        "'{a:>{b}}'.format(a=1, b=row.n)",
        "'{a:10000000000}'.format_map({'a': 1})",
        "row.format.format(row.long)",
        "'a'.center(row.n)",
        "'a'.ljust(row.n)",
        "'a'.rjust(row.n, '-')",
        "'a'.zfill(row.n)",
        "row.text.expandtabs(row.n)",
        "row.text.expandtabs(tabsize=100000)",
        "row.text.encode().expandtabs(100000)",
        "row.text.replace('a', row.long)",
        "row.text.replace('', row.long)",
        "row.long.join(row.list)",
        "row.long.join(row.list | map('upper'))",
        "row.text.translate({97: row.long})",
        "(1).to_bytes(row.n)",
        "(1).to_bytes(length=row.n)",
        "'a' | center(row.n)",
        "row.text | replace('a', row.long)",
        "row.text | indent(row.n)",
        "row.text | indent(row.long * 700)",
        "row.list | join(row.long)",
        "row.list | map('upper') | join(row.long)",
        "row.text | wordwrap(1, true, row.long)",
        "row.list | batch(row.n, 'x') | list",
        "row.list | slice(row.n) | list",
        "row.list | map('center', 10 ** 6) | length",
        "1 | round(row.n, 'ceil')",
        "1 | round(-row.n)",
        "'%*d' | format(row.n, 1)",
    ],
)
def test_a_value_that_is_too_large_is_an_error_before_it_is_made(expression: str) -> None:
    with pytest.raises(TemplateLimitError):
        render(f"{{{{ {expression} }}}}")


LOOP = "{% for _ in range(100) %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% set n = namespace(x='ab') %}" + LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
        "{% set n = namespace(x='ab') %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}",
        "{% set n = namespace(x=[1]) %}" + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}",
        "{% set n = namespace(x=2) %}" + LOOP + "{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='ab') %}"
        + LOOP
        + "{% set t %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = t %}{% endfor %}{{ n.x | length }}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set n = namespace(x='ab') %}"
        + LOOP
        + "{% set n.x = m(n.x) %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}" + LOOP + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        LOOP + LOOP + "{{ row.long }}{% endfor %}{% endfor %}",
    ],
)
def test_a_text_that_grows_in_a_loop_is_an_error_when_it_is_too_large(template: str) -> None:
    with pytest.raises(TemplateLimitError):
        render(template)


def ticking(step: float) -> Any:
    """Returns a clock that goes forward at each look."""
    return itertools.count(0.0, step).__next__


RANGE = "{% for _ in range(1000) %}"


@pytest.mark.parametrize(
    "template",
    [
        RANGE + RANGE + "{% endfor %}{% endfor %}",
        "{% for a in row.list %}{% for b in row.list if a == b %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% for x in [[1] * 1000] * 1000 recursive %}{{ loop(x) if x is iterable }}{% endfor %}",
        "{{ (row.list * 2) | select | length }}",
    ],
)
def test_a_row_whose_loops_multiply_ends_at_a_time_limit(template: str) -> None:
    with pytest.raises(TemplateLimitError, match="not rendered within 10 s"):
        render(template, clock=ticking(MAX_SECONDS / 1500))


def test_each_row_has_its_own_time() -> None:
    environment = RowEnvironment(clock=ticking(MAX_SECONDS / 100))
    template = environment.from_string("{% for x in row.list %}{{ x }}{% endfor %}")
    for _ in range(5):
        environment.begin_row()
        assert template.render(row={"list": [1] * 60}) == "1" * 60


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{{ '-' * 20 }}{{ 2 * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ 1.5 * 2 }}{{ [1] * 2 }}",
            "-" * 20 + "6102433.0[1, 1]",
        ),
        ("{{ 'a' + 'b' }}{{ [1] + [2] }}{{ 1 + 1.5 }}", "ab[1, 2]2.5"),
        ("{{ 'a' ~ 1 ~ none ~ row.text }}", "a1Nonet"),
        (
            "{{ '%s is %05.1f %%' % ('a', 2) }}{{ 'Order 123456789: %s' % row.text }}",
            "a is 002.0 %Order 123456789: t",
        ),
        ("{{ '{} {:>3} {{x: {}}}'.format(1, 2, 3) }}{{ '{a}'.format_map({'a': 1}) }}", "1   2 {x: 3}1"),
        ("{{ ', '.join(row.list | map('upper')) }}{{ row.list | map('upper') | join('-') }}", "A, BA-B"),
        ("{{ row.people | join(', ', attribute='name') }}", "Ann, Bob"),
        ("{{ 'a'.center(3) }}{{ 'b' | center(3) }}{{ 'a\nb' | indent(2) }}{{ 'c'.zfill(3) }}", " a  b a\n  b00c"),
        ("{{ row.text.replace('t', 'u') }}{{ row.text | replace('t', 'v') }}{{ 1 | replace(1, 2) }}", "uv2"),
        ("{{ 2.345 | round(2) }}{{ 'ab cd' | wordwrap(2, wrapstring='/') }}", "2.35ab/cd"),
        (
            "{% for x in row.list %}{{ loop.index }}/{{ loop.length }}{{ x }}{{ loop.last }} {% endfor %}",
            "1/2aFalse 2/2bTrue ",
        ),
        ("{% for a, b in row.pairs.items() %}{{ a }}{{ b }}{% else %}none{% endfor %}", "x1y2"),
        ("{% for x in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for x in row.tree recursive %}{{ x.name }}({{ loop(x.parts) }}){% endfor %}", "a(b()c())"),
        (
            "{% set x %}a{{ row.text }}{% endset %}{{ x }}{% macro m(y) %}[{{ y }}]{% endmacro %}{{ m(1) }}",
            "at[1]",
        ),
        ("{{ row.list }}{{ row.pairs }}{{ row.list | tojson }}", "['a', 'b']{'x': 1, 'y': 2}[\"a\", \"b\"]"),
    ],
)
def test_what_templates_usually_do_is_left_as_it_is(template: str, text: str) -> None:
    row = {
        "text": "t",
        "list": ["a", "b"],
        "pairs": {"x": 1, "y": 2},
        "people": [{"name": "Ann"}, {"name": "Bob"}],
        "tree": [{"name": "a", "parts": [{"name": "b", "parts": []}, {"name": "c", "parts": []}]}],
    }
    assert render(template, row) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("row.list | map('upper')", "['B', 'A', 'B']"),
        ("row.people | map(attribute='name')", "['Ann']"),
        ("row.list | unique", "['b', 'a']"),
        ("row.list | reverse", "['b', 'a', 'b']"),
        ("'abc' | reverse", "cba"),
        ("row.list | select('eq', 'b')", "['b', 'b']"),
        ("row.list | reject('eq', 'b')", "['a']"),
        ("row.people | selectattr('name')", "[{'name': 'Ann'}]"),
        ("row.people | rejectattr('name')", "[]"),
        ("row.list | batch(2)", "[['b', 'a'], ['b']]"),
        ("[3, 2, 1] | slice(2)", "[[3, 2], [1]]"),
        ("row.people[0] | items", "[('name', 'Ann')]"),
        ("'Tags: ' ~ (row.list | map('upper'))", "Tags: ['B', 'A', 'B']"),
        ("row.list | map('upper') | tojson", '["B", "A", "B"]'),
        ("row.list | map('upper') | length", "3"),
    ],
)
def test_a_filter_whose_result_is_printed_is_a_list_and_no_address_in_memory(expression: str, text: str) -> None:
    row = {"list": ["b", "a", "b"], "people": [{"name": "Ann"}]}
    assert render(f"{{{{ {expression} }}}}", row) == text


def test_a_row_with_a_long_text_is_rendered() -> None:
    text = "x" * (MAX_SIZE - 10)
    assert render("{{ row.text }}.", {"text": text}) == f"{text}."


@pytest.mark.parametrize("text", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{{ -" + "-" * 5000 + "1 }}"])
def test_a_template_that_is_nested_too_deep_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Jinja2 template"):
        check_template(text)


def test_a_template_is_compiled_without_making_its_constants() -> None:
    """The compiler of Jinja computes what is constant, in the process that parses the Dags."""
    check_template("{{ 'x' * 10 ** 10 }}{{ 'x' | center(10 ** 10) }}{% for _ in range(10 ** 5) %}{% endfor %}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
operands = st.sampled_from(["row.a", "row.b", "2", "'x'", "[1]", "row['c']", "row.a.d", "-1", "10 ** 9"])
methods = st.sampled_from(["center", "replace", "join", "format", "items", "zfill"])
expressions = st.recursive(
    operands,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["*", "**", "+", "-", "/", "//", "%", "~", "==", "in"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        )
        | st.tuples(inner, st.sampled_from([*RowEnvironment().filters]), inner).map(
            lambda parts: f"({parts[0]} | {parts[1]}({parts[2]}))"
        )
        | st.tuples(
            inner, st.sampled_from(["center", "replace", "join", "format", "items", "zfill"]), inner, inner
        ).map(lambda parts: f"({parts[0]}).{parts[1]}({parts[2]}, {parts[3]})")
    ),
    max_leaves=5,
)


@pytest.mark.fuzz
@examples(0.5)
@given(expressions, st.dictionaries(st.sampled_from("abcd"), json_values, max_size=4))
def test_any_expression_of_any_row_is_a_text_or_an_error(expression: str, row: dict[str, Any]) -> None:
    try:
        text = render(f"{{% for x in [{expression}] %}}{{{{ x }}}}{{% endfor %}}", row)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the row fails with it
        return
    assert len(text) <= MAX_SIZE


@pytest.mark.fuzz
@given(json_values)
def test_the_size_of_a_value_is_about_the_length_of_its_text(value: Any) -> None:
    assert len(str(value)) <= 8 * size_of(value) + 8
