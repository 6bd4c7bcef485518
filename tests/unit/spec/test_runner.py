from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.runner import DataflowRunner

ON_STORAGE = {"source": {"uri": "gs://b/in.jsonl", "key": ["id"]}, "sink": {"uri": "gs://b/out/"}}
DATAFLOW = {"type": "dataflow", "location": "europe-west1"}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("location", "europe", "must be a region of Google Cloud, e.g. 'europe-west1', without a zone"),
        ("location", None, "must be a text"),
        ("project", "Ab", "must be the id of a Google Cloud project"),
        ("project", "short", "must be the id of a Google Cloud project"),
        ("temp_uri", "/tmp/x", "must be an address on Cloud Storage"),
        ("flex_template", "gs://bucket", "must be a file on Cloud Storage"),
        ("num_workers", 0, "greater than or equal to 1"),
        ("max_workers", 0, "greater than or equal to 1"),
        ("expected_latency_seconds", 0, "greater than 0"),
        ("max_runtime_seconds", 59, "greater than or equal to 60"),
        ("poll_interval_seconds", 9, "greater than or equal to 10"),
        ("flexrs", "cheap", "'cost_optimized' or 'speed_optimized'"),
        ("labels", {"llmbeam-job": "x"}, "those that start with 'llmbeam-' are reserved"),
        ("labels", {"Team": "x"}, "has a label 'Team': 'x'; both must be at most 63"),
        ("labels", {"1st": "x"}, "the key must start with a letter"),
        ("labels", {"team": "Us"}, "has a label 'team': 'Us'"),
        ("labels", {"team": "x" * 64}, "at most 63"),
        ("labels", {"t" * 64: "x"}, "at most 63"),
        ("environment_secrets", {"A-B": "projects/p/secrets/s/versions/1"}, "'A-B', which cannot be the name"),
        ("environment_secrets", {"KEY": "projects/p/secrets/s"}, "must name a secret for 'KEY'"),
        ("options", {"region": "x"}, "has 'region', which `location` sets already"),
        ("options", {"max_num_workers": 3}, "has 'max_num_workers', which `max_workers` sets already"),
        ("zone", "a", "there is no such field"),
    ],
)
def test_values_that_dataflow_would_refuse_are_refused_early(job, field, value, words):
    with pytest.raises(JobSpecError, match=rf"`runner\.{field}") as caught:
        JobSpec.parse(job(**ON_STORAGE, runner=DATAFLOW | {field: value}))
    assert words in str(caught.value)


def test_num_workers_above_max_workers_is_refused(job):
    with pytest.raises(
        JobSpecError, match=r"`runner`: starts with more workers \(`num_workers`, 3\) than .*, 2\)"
    ):
        JobSpec.parse(job(**ON_STORAGE, runner=DATAFLOW | {"num_workers": 3, "max_workers": 2}))


def test_an_unknown_runner_is_refused(job):
    with pytest.raises(
        JobSpecError,
        match=r"`runner\.type`: must be one of 'direct', 'prism', 'flink', 'portable', 'dataflow'; got 'spark'",
    ):
        JobSpec.parse(job(runner={"type": "spark"}))


def test_a_valid_runner_is_accepted(job):
    fields = {
        "project": "example.com:a-project",
        "temp_uri": "gs://b/temp",
        "labels": {"team": "data_2", "empty": ""},
        "environment_secrets": {"KEY_1": "projects/123/secrets/k/versions/latest"},
        "options": {"experiments": ["a"], "disk_size_gb": 50},
        "flexrs": "cost_optimized",
        "num_workers": 2,
        "max_workers": 2,
    }
    runner = JobSpec.parse(job(**ON_STORAGE, runner=DATAFLOW | fields)).runner
    assert isinstance(runner, DataflowRunner)
    assert runner.temp_uri == "gs://b/temp/"
    assert JobSpec.parse(job(**ON_STORAGE, runner=runner.model_dump())).paths.temp_uri == "gs://b/temp/"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source": {"uri": "in.jsonl", "key": ["id"]}}, r"`source\.uri` 'in\.jsonl'"),
        ({"source": {"uri": "file:///in.jsonl", "key": ["id"]}}, r"`source\.uri` 'file:///in\.jsonl'"),
        ({"sink": {"uri": "out"}}, r"`sink\.uri` 'out/'"),
        ({"state_uri": "state"}, r"`state_uri` 'state/'"),
        (
            {
                "sink": {"type": "milvus", "uri": "local.db", "collection": "c"},
                "task": "embed",
                "state_uri": "gs://b/s",
            },
            r"`sink\.uri` 'local\.db'",
        ),
    ],
)
def test_a_path_that_workers_cannot_reach_is_refused(job, changes, field):
    with pytest.raises(
        JobSpecError, match=rf"must be on Cloud Storage, gs://…: workers .* cannot read {field} of this machine"
    ):
        JobSpec.parse(job(**ON_STORAGE | changes, runner=DATAFLOW))
    JobSpec.parse(job(**ON_STORAGE | changes))  # valid without a runner on Dataflow


def test_all_paths_that_workers_cannot_reach_are_named_at_once(job):
    with pytest.raises(JobSpecError, match=r"`state_uri` .* and `source\.uri` .* and `sink\.uri`"):
        JobSpec.parse(job(state_uri="state", runner=DATAFLOW))


def test_dataflow_needs_a_staging_path_on_cloud_storage(job):
    elsewhere = {"source": {"uri": "s3://b/in.jsonl", "key": ["id"]}, "sink": {"uri": "s3://b/out"}}
    with pytest.raises(
        JobSpecError, match=r"^`runner\.temp_uri`: this field, or a `state_uri` that starts with gs://, is needed"
    ):
        JobSpec.parse(job(**elsewhere, runner=DATAFLOW))
    spec = JobSpec.parse(job(**elsewhere, runner=DATAFLOW | {"temp_uri": "gs://b/temp"}))
    assert spec.paths.temp_uri == "gs://b/temp/"
    assert (
        JobSpec.parse(job(**ON_STORAGE, runner=DATAFLOW)).paths.temp_uri == "gs://b/out/.llmbeam/nightly/dataflow/"
    )
