"""What a newcomer writes, and where the message leads."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.spec import JobSpec

JOB = {
    "source": {"uri": "gs://b/rows.csv", "key": "id"},
    "prompt": {"template": "Say {{ row.text }}"},
    "model": {"type": "openai", "name": "m"},
    "sink": {"uri": "gs://b/out"},
}
BIGQUERY = {"sink": {"type": "bigquery", "table": "p.d.t"}, "state_uri": "gs://b/state"}


@pytest.mark.parametrize(
    ("part", "field", "led"),
    [
        ("source", "delimiter", "it belongs in `source.csv`."),
        ("source", "encoding", "it belongs in `source.csv`."),
        ("source", "where", "a table is filtered by `source.query`, and `source.skip_empty` leaves out"),
        ("source", "max_rows", "`source.share` takes a part of the rows, and `llmbeam preview` answers a few."),
        ("source", "columns", "all columns are read, and `sink.passthrough` names those that are written"),
        ("source", "primary_key", "did you mean `key`?"),
        ("sink", "mode", "did you mean `on_existing`?"),
        ("prompt", "messages", "did you mean `template`?"),
        ("prompt", "response_format", "did you mean `output_schema`?"),
        ("model", "model", "did you mean `name`?"),
        ("model", "host", "did you mean `base_url`?"),
        ("model", "temperature", "it belongs in `generation`."),
        ("generation", "stop", "did you mean `stop_sequences`?"),
        ("generation", "json", "did you mean `prompt.output_schema`?"),
        ("limits", "requests_per_second", "did you mean `requests_per_minute`?"),
        ("limits", "max_cost", "did you mean `budget_usd`?"),
        ("source", "sink", "it belongs beside `source`, not into it."),
    ],
)
def test_a_field_by_the_name_that_it_has_elsewhere_leads_to_what_there_is(part, field, led):
    (problem,) = [
        one
        for one in JobSpec.problems({"name": "n", **JOB, part: {**JOB.get(part, {}), field: 1}})
        if one.field == f"{part}.{field}"
    ]
    assert f"there is no such field; {led}" in str(problem)


def test_a_field_that_another_kind_of_sink_has_is_not_suggested():
    wrong = {"name": "n", **JOB, **BIGQUERY}
    with pytest.raises(JobSpecError, match=r"`sink\.write_disposition`: there is no such field; expected one of"):
        JobSpec.parse({**wrong, "sink": {**BIGQUERY["sink"], "write_disposition": "WRITE_TRUNCATE"}})


@pytest.mark.parametrize(
    ("argument", "led"),
    [
        ("conn_id", "did you mean `llmbeam_conn_id`, or `conn_id` in `source` or `sink`?"),
        ("google_cloud_conn_id", "did you mean `gcp_conn_id`?"),
        ("max_tokens", "did you mean `generation.max_output_tokens`?"),
        ("output_uri", "did you mean `sink`?"),
        ("output_schema", "it belongs in `prompt`."),
    ],
)
def test_an_argument_by_the_name_that_it_has_elsewhere_leads_to_what_there_is(argument, led):
    with pytest.raises(JobSpecError) as refused:
        RunInferenceOperator(task_id="t", **JOB, **{argument: "x"})
    assert f"RunInferenceOperator has no such argument; {led}" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "meant"),
    [
        ({"model": {"type": "vllm", "name": "m"}}, "(did you mean 'openai'?); got 'vllm'"),
        ({"runner": "DataflowRunner"}, "(did you mean 'dataflow'?); got 'DataflowRunner'"),
        ({"sink": {"uri": "out", "format": "json"}}, "(did you mean 'jsonl'?); got 'json'"),
    ],
)
def test_a_value_by_the_name_that_it_has_elsewhere_leads_to_what_there_is(change, meant):
    with pytest.raises(JobSpecError) as refused:
        JobSpec.parse({"name": "n", **JOB, **change})
    assert meant in str(refused.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"sink": "gs://b/out/answers.parquet"},
            "`sink.uri`: must be a directory, in which the job names its files; `sink.format` is",
        ),
        (
            {"source": {"uri": "https://h/a.csv", "key": "id"}},
            "`source.uri`: must be a path, or an address of files",
        ),
        (
            {"source": {"uri": "https://storage.googleapis.com/b/a.csv", "key": "id"}},
            "e.g. 'gs://b/a.csv': Beam reads and writes no web pages",
        ),
        (
            {"source": {"table": "p.d.t$20261101", "key": "id"}, "state_uri": "gs://b/s"},
            "one whole table, without '$': `source.query` selects",
        ),
        ({"embedding": "text-embedding-004"}, "`embedding`: must be an object with named fields; got"),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_what_is_meant(change, sentence):
    with pytest.raises(JobSpecError) as refused:
        JobSpec.parse({"name": "n", **JOB, **change})
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [("`p.d.t`", "p.d.t"), ("`p`.`d`.`t`", "p.d.t"), ("p:d.t", "p.d.t"), ("acme.com:p.d.t", "acme.com:p.d.t")],
)
def test_a_table_is_understood_as_queries_write_it(written, read):
    spec = JobSpec.parse({"name": "n", **JOB, "source": {"table": written, "key": "id"}, "state_uri": "gs://b/s"})
    assert spec.source.table == read


def test_a_directory_may_end_like_a_file_where_a_slash_says_so():
    spec = JobSpec.parse({"name": "n", **JOB, "sink": "gs://b/out.parquet/"})
    assert JobSpec.parse(spec.model_dump(mode="json")).sink.uri == "gs://b/out.parquet/"
