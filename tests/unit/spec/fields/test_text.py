from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec import EchoModel, FilesSink, GeminiModel, JobSpec, Limits
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(_VALUES, max_size=3) | st.dictionaries(st.text(), _VALUES, max_size=3))
def test_an_object_is_read_as_json_and_as_airflow_renders_it(value: Any) -> None:
    assert from_text(json.dumps(value)) == value
    assert from_text(str(value)) == value


@given(st.text() | st.text("{[}]'\":,% a0"))
def test_any_other_text_is_kept(text: str) -> None:
    found = from_text(text)
    assert found == text or isinstance(found, dict | list)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ti.xcom_pull('a') }}",
        "{% if a %}{% endif %}",
        "[{{ ds }}]",
        "{'a': open}",
        "{1, 2}",
        "[" * 100_000,
        "{'a': __import__('os')}",
        "12",
        "None",
        "",
    ],
    ids=lambda text: text[:20],
)
def test_a_text_that_is_no_object_is_kept(text: str) -> None:
    assert from_text(text) == text


def test_every_part_of_a_job_may_be_text(job) -> None:
    parts = {
        "source": {"uri": "in/*.jsonl", "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "echo", "name": "e"},
        "generation": {"temperature": 0.5},
        "limits": {"requests_per_minute": 60, "max_in_flight": 8},
        "batching": {"max_batch_size": 10},
        "sink": {"uri": "out"},
        "cache": {"scope": "moods"},
        "runner": {"type": "direct"},
    }
    expected = JobSpec.parse(job(**parts, state_uri="s"))
    for written in (str, json.dumps):
        assert (
            JobSpec.parse(job(**{name: written(part) for name, part in parts.items()}, state_uri="s")) == expected
        )


def test_a_question_takes_text_too() -> None:
    question = QuotaQuestion.parse({"model": "{'type': 'echo'}", "limits": "{'max_in_flight': 8}"})
    assert (question.model, question.limits) == (EchoModel(type="echo"), Limits(max_in_flight=8))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemini-2.5-flash", GeminiModel(name="gemini-2.5-flash")),
        ("models/gemini-2.5-pro", GeminiModel(name="models/gemini-2.5-pro")),
        ("echo", EchoModel(type="echo")),
    ],
)
def test_a_model_of_gemini_may_be_its_name(job, name: str, expected: object) -> None:
    assert JobSpec.parse(job(model=name)).model == expected


@pytest.mark.parametrize("uri", ["out/", "out", "gs://b/out", "/data/day=2026-01-01", "./p.d.t", "my.dir"])
def test_a_sink_may_be_its_directory(job, uri: str) -> None:
    assert JobSpec.parse(job(sink=uri)).sink == FilesSink(uri=uri)


def test_a_prompt_may_be_its_template(job) -> None:
    assert JobSpec.parse(job(prompt="Say {{ row.text }}")).prompt.template == "Say {{ row.text }}"
