"""The checks that follow from a job, without an account."""

from __future__ import annotations

from airflow_provider_llmbeam.doctor.checks import ModelCheck, PackagesCheck, local_checks
from airflow_provider_llmbeam.spec import JobSpec

JOB = {
    "name": "moods",
    "source": {"type": "rows", "rows": [{"id": 1, "text": "a"}], "key": "id"},
    "prompt": {"template": "{{ row.text }}", "output_schema": ["good", "bad"]},
    "model": {"type": "gemini", "name": "gemini-2.5-flash"},
    "limits": {"budget_usd": 1},
    "sink": {"uri": "moods"},
}


def test_a_classifier_has_an_extra_and_no_server():
    cascade = {"stages": [{"type": "distilled", "embedding": {"type": "tfidf"}}], "target_agreement": 0.9}
    job = JobSpec.parse({**JOB, "cascade": cascade, "state_uri": "state"})
    assert local_checks(job) == (PackagesCheck(extras=("cascade",)), ModelCheck(model=job.model))


def test_a_kafka_sink_has_an_extra():
    kafka = {"type": "kafka", "topic": "moods", "bootstrap_servers": "localhost:9092"}
    job = JobSpec.parse({**JOB, "sink": kafka, "state_uri": "state"})
    assert local_checks(job)[0] == PackagesCheck(extras=("kafka",))
