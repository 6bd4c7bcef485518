"""Whatever a spec holds, it is a spec that survives JSON, or it is refused with a message that can be shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import dataflow_name, job_identity, labels
from tests.hostile import altered, encoded, examples, letters, odd

FILES: dict[str, Any] = {
    "name": "nightly",
    "task": "generate",
    "deployment": "prod",
    "source": {"type": "files", "uri": "in/*.csv", "format": "csv", "key": ["id", "day"]},
    "prompt": {
        "template": "Rate: {{ row.text }}",
        "system": "Be brief.",
        "variables": {"unit": ["EUR"]},
        "output_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "media": [{"uri": "gs://b/{{ row.id }}.png", "mime_type": "image/png"}],
        "max_repairs": 1,
    },
    "model": {"type": "gemini", "name": "gemini-2.5-flash", "project": "p", "location": "global"},
    "generation": {"max_output_tokens": 64, "temperature": 0.5, "stop_sequences": ["x"], "stream": True},
    "limits": {"requests_per_minute": 600, "tokens_per_minute": 1e6, "budget_usd": 5, "max_in_flight": 8},
    "batching": {"bucket_boundaries": [64, 512], "max_batch_size": 100},
    "cache": {"scope": "shared", "max_age_days": 7},
    "sink": {"type": "files", "uri": "gs://b/out", "format": "parquet", "shards": 3},
    "state_uri": "gs://b/state",
}
EMBEDDING: dict[str, Any] = {
    "name": "vectors",
    "task": "embed",
    "source": {"type": "rows", "key": ["id"], "rows": [{"id": 1, "text": "a"}]},
    "prompt": {"template": "{{ row.text }}"},
    "model": {"type": "openai", "name": "m", "base_url": "https://h/v1", "api_key_env": "KEY"},
    "embedding": {"dimensions": 64},
    "sink": {"type": "bigquery", "table": "p.d.t"},
    "state_uri": "gs://b/state",
    "runner": {
        "type": "dataflow",
        "project": "my-project",
        "location": "europe-west4",
        "max_workers": 2,
        "environment_secrets": {"KEY": "projects/p/secrets/key/versions/latest"},
    },
}


@pytest.mark.parametrize("spec", [FILES, EMBEDDING], ids=["files", "embedding"])
def test_the_specs_that_are_altered_are_valid(spec: dict[str, Any]) -> None:
    JobSpec.parse(spec)


def assert_is_usable(spec: JobSpec) -> None:
    text = spec.model_dump_json()
    assert JobSpec.from_json(text).model_dump_json() == text
    assert job_identity(spec)
    assert dataflow_name(spec)
    assert labels(spec)


def assert_is_shown(error: JobSpecError) -> None:
    message = str(error)
    message.encode()
    assert message.endswith("Nothing was sent or billed.")
    assert len(message) < 20_000


@pytest.mark.fuzz
@examples(0.5)
@given(altered(FILES, EMBEDDING))
def test_any_data_is_a_spec_or_refused_before_anything_is_billed(data: Any) -> None:
    try:
        spec = JobSpec.parse(data)
    except JobSpecError as error:
        assert_is_shown(error)
    else:
        assert_is_usable(spec)
        assert JobSpec.problems(data) == ()


@pytest.mark.fuzz
@examples(0.5)
@given(altered(FILES, EMBEDDING) | odd)
def test_any_json_is_a_spec_or_refused_before_anything_is_billed(value: Any) -> None:
    try:
        spec = JobSpec.from_json(encoded(value))
    except JobSpecError as error:
        assert_is_shown(error)
    else:
        assert_is_usable(spec)


@pytest.mark.fuzz
@given(st.text() | letters | st.binary(max_size=40))
def test_any_text_is_a_spec_or_refused_before_anything_is_billed(text: str | bytes) -> None:
    try:
        spec = JobSpec.from_json(text)
    except JobSpecError as error:
        assert_is_shown(error)
    else:
        assert_is_usable(spec)
