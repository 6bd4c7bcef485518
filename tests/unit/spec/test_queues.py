"""Sources of queues: defaults, time ranges, and what is refused."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.spec import JobSpec, KafkaSource, PubSubSink, PubSubSource

KAFKA = {"type": "kafka", "topic": "t", "bootstrap_servers": "localhost:9092"}
JOB = {
    "name": "job",
    "source": KAFKA,
    "prompt": "{{ row.text }}",
    "model": {"type": "echo"},
    "sink": {"uri": "out"},
}


def test_messages_are_identified_by_topic_partition_and_offset_and_an_empty_batch_is_skipped():
    source = KafkaSource.parse(KAFKA)
    assert source.key == ("kafka_topic", "kafka_partition", "kafka_offset")
    assert source.on_empty == "skip"


@pytest.mark.parametrize("topic", ["t", ["t"], "['t']"])
def test_one_topic_may_be_given_by_its_name(topic):
    assert KafkaSource.parse({**KAFKA, "topic": topic}).topic == ("t",)


def test_a_time_range_is_given_as_airflow_renders_times():
    source = KafkaSource.parse({**KAFKA, "start": "2026-01-01 00:00:00+00:00", "end": "2026-01-01T00:05:00Z"})
    assert source.window == (1767225600000, 1767225900000)
    assert KafkaSource.parse(KAFKA).window is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"start": "2026-01-01T00:00:00Z"}, "needs both `start` and `end`"),
        (dict.fromkeys(("start", "end"), "2026-01-01T00:00:00Z"), "`start` must be before `end`"),
        ({"topic": ["t", "t"]}, "must be a topic, or several, each once"),
        ({"topic": []}, "must be a topic, or several, each once"),
        ({"start": "2026-01-01", "end": "2026-01-02"}, "must be a time with its zone"),
        ({"max_messages": 0}, "`max_messages`: must be greater than or equal to 1"),
        ({"max_messages": -5}, "`max_messages`: must be greater than or equal to 1"),
        (
            {"max_messages": 10, "min_rows": 11},
            "`min_rows` is 11, and a run takes no more than `max_messages`, 10",
        ),
        (
            {"max_messages": 10, "start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"},
            "must have `max_messages` or a time range, not both",
        ),
        ({"topic": ".."}, "must be a topic of Kafka"),
        ({"bootstrap_servers": "me:secret@host:9092"}, "must be hosts and ports alone"),
        ({"config_env": "not a name"}, "must be the name of an environment variable"),
    ],
)
def test_a_fault_is_named_and_no_password_is_repeated(changes, problem):
    found = " ".join(map(str, KafkaSource.problems({**KAFKA, **changes})))
    assert problem in found
    assert "secret@" not in found


def test_the_variable_with_the_client_settings_is_secret():
    job = JobSpec.parse({**JOB, "sink": SINK, "state_uri": "state"})
    assert {"LLMBEAM_KAFKA_SOURCE_CONFIG", "LLMBEAM_KAFKA_SINK_CONFIG"} <= set(job.secret_variables)


SINK = {"type": "kafka", "topic": "answers", "bootstrap_servers": "localhost:9092"}


@pytest.mark.parametrize("name", ["on_existing", "write_disposition"])
def test_a_topic_is_added_to_and_nothing_in_it_is_replaced(name):
    (problem,) = JobSpec.problems({**JOB, "sink": {**SINK, name: "replace"}, "state_uri": "state"})
    assert str(problem).startswith(f"`sink.{name}`: must be left out: messages are added to a topic")


def test_a_job_does_not_read_its_own_answers():
    job = {**JOB, "sink": {**SINK, "topic": "t"}, "state_uri": "state"}
    (problem,) = JobSpec.problems(job)
    assert (problem.field, problem.got) == ("sink.topic", "t")
    assert not JobSpec.problems({**job, "sink": SINK})
    assert not JobSpec.problems({**job, "sink": {**job["sink"], "conn_id": "another_cluster"}})


def test_a_subscription_and_a_topic_of_pubsub_have_their_full_names():
    source = PubSubSource.parse({"type": "pubsub", "subscription": "projects/p/subscriptions/s"})
    assert (source.key, source.on_empty) == (("pubsub_message_id",), "skip")
    (problem,) = PubSubSource.problems({**source.model_dump(), "max_messages": 0})
    assert "must be greater than or equal to 1" in problem.want
    (problem,) = PubSubSource.problems({"type": "pubsub", "subscription": "s"})
    assert "must be a subscription of Pub/Sub" in problem.want
    (problem,) = PubSubSink.problems({"type": "pubsub", "topic": "t"})
    assert "must be a topic of Pub/Sub" in problem.want


@pytest.mark.parametrize(
    ("field", "sink"),
    [
        ("ordering_key", {"type": "pubsub", "topic": "projects/p/topics/t"}),
        ("key", {"type": "kafka", "topic": "t", "bootstrap_servers": "h:1"}),
    ],
)
def test_the_key_of_the_messages_is_a_column_of_the_output(field, sink):
    sink = {**sink, field: "lang"}
    job = {**JOB, "source": {"uri": "a.csv", "key": "id"}, "sink": sink, "state_uri": "state"}
    (problem,) = JobSpec.problems(job)
    assert problem.field == f"sink.{field}"
    assert not JobSpec.problems({**job, "sink": {**sink, "passthrough": ["lang"]}})


def test_the_workers_of_dataflow_need_a_secret_for_a_sink_with_a_connection():
    runner = {"type": "dataflow", "location": "europe-west1"}
    job = {**JOB, "runner": runner, "sink": {**SINK, "conn_id": "queue"}, "state_uri": "gs://b/state"}
    (problem,) = JobSpec.problems(job)
    assert "the workers need 'LLMBEAM_KAFKA_SINK_CONFIG' for the sink" in problem.want
    assert not JobSpec.problems({**job, "sink": SINK})


def test_a_flex_template_is_refused_as_its_launcher_reads_no_topic():
    runner = {"type": "dataflow", "location": "europe-west1", "flex_template": "gs://b/t.json"}
    (problem,) = JobSpec.problems({**JOB, "runner": runner, "sink": {"uri": "gs://b/out"}})
    assert problem.field == "runner.flex_template"
