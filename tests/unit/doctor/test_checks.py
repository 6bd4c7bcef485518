"""The checks that follow from a job, without an account."""

from __future__ import annotations

import re

import pytest

from airflow_provider_llmbeam.doctor.checks import (
    ModelCheck,
    PackagesCheck,
    PermissionCheck,
    ServersCheck,
    cloud_checks,
    local_checks,
    servers_of,
)
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


def stream(**options):
    """A stream of Pub/Sub with stores beside its topic, one of them for vectors."""
    embed = {"model": {"type": "gemini", "name": "gemini-embedding-001"}}
    sinks = [
        {"type": "postgres", "table": "moods"},
        {"type": "milvus", "uri": "http://m:19530", "collection": "c", "embed": embed},
        {"type": "pubsub", "topic": "projects/p/topics/more"},
    ]
    source = {"type": "pubsub", "subscription": "projects/p/subscriptions/q"}
    sink = {"type": "pubsub", "topic": "projects/p/topics/a"}
    return JobSpec.parse(
        {**JOB, "source": source, "sink": sink, "sinks": sinks, "state_uri": "state", "stream": options}
    )


def test_all_sinks_of_a_stream_are_checked():
    job = stream(report_seconds=1)
    packages, _, vectors, postgres = local_checks(job)
    assert packages == PackagesCheck(extras=("postgres", "milvus"))
    assert vectors.model.name == "gemini-embedding-001"
    assert postgres == ServersCheck(subject="PostgreSQL of the sinks.0", variable="LLMBEAM_POSTGRES_DSN")


@pytest.mark.parametrize(
    ("options", "dead_letters"),
    [
        ({"report_seconds": 1}, ["projects/p/topics/llmbeam-moods-…-dead-letter"]),
        ({"dead_letter_topic": "projects/p/topics/dead"}, ["projects/p/topics/dead"]),
        ({"create_topics": True}, []),
    ],
)
def test_the_topics_that_a_stream_publishes_to_are_checked_with_the_dead_letter(options, dead_letters):
    checks = cloud_checks(stream(**options), "p", "")
    found = [
        each.resource for each in checks if isinstance(each, PermissionCheck) and each.resource.kind == "topic"
    ]
    names = [re.sub(r"moods-[0-9a-f]{12}", "moods-…", each.name) for each in found]
    assert names == ["projects/p/topics/a", "projects/p/topics/more", *dead_letters]


@pytest.mark.parametrize(
    ("servers", "value", "found"),
    [
        ("a:9093, b", "", [("a", 9093), ("b", 9092)]),
        (None, '{"bootstrap.servers": "SASL_SSL://a:9093"}', [("a", 9093)]),
        (None, '{"sasl.password": "k"}', []),
        (None, '{"sasl.password": ', []),
        (None, "postgresql://me:a%40b@db/shop", [("db", 5432)]),
        (None, "postgresql://me@[::1]:6432/shop?sslmode=require", [("::1", 6432)]),
        (None, "host=db port=6432 dbname=shop", [("db", 6432)]),
        (None, "host='db' dbname=shop", [("db", 5432)]),
        (None, "postgresql:///shop?host=/tmp", []),
        (None, "", []),
    ],
)
def test_servers_are_read_from_the_spec_from_settings_and_from_connection_strings(servers, value, found):
    assert servers_of(ServersCheck(subject="Kafka", servers=servers, variable="V"), value) == found
