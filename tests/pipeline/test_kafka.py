"""Batches of Kafka's messages: each is answered once, whatever is killed in between."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.queues import kafka_client as clients
from airflow_provider_llmbeam.pipeline.queues import position_file
from airflow_provider_llmbeam.pipeline.queues.position import Edges
from airflow_provider_llmbeam.pipeline.sinks import kafka as answers
from airflow_provider_llmbeam.pipeline.sources import kafka
from airflow_provider_llmbeam.pipeline.sources.messages import discard
from airflow_provider_llmbeam.spec import JobSpec, KafkaSink, KafkaSource
from tests.kafka import kafka_cluster
from tests.pipeline.conftest import read_lines
from tests.processes import until_job

pytestmark = [pytest.mark.promise(2), pytest.mark.slow]

SOURCE = KafkaSource(type="kafka", topic=("t",), bootstrap_servers="localhost:9092")
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster():
    with kafka_cluster() as running:
        yield running


@pytest.fixture
def topic(request):
    """A topic of the test's own."""
    return f"{request.node.originalname}-{next(NUMBERS)}"


@pytest.fixture
def spec(tmp_path, cluster, topic):
    """A job without a server."""
    return {
        "name": "job",
        "source": {"type": "kafka", "topic": topic, "bootstrap_servers": cluster.servers},
        "prompt": "{{ row.text }}",
        "model": {"type": "echo"},
        "limits": {"max_dead_letter_ratio": 1},
        "sink": {"uri": str(tmp_path / "out")},
        "state_uri": str(tmp_path / "state"),
    }


def position_of(spec):
    return position_file.read_position(JobSpec.parse(spec)).offsets


def texts(manifest):
    return Counter(row["answer"] for uri in manifest["answers_uris"] for row in read_lines(Path(uri)))


def messages(first, end):
    return [{"text": f"message {number}"} for number in range(first, end)]


def killed(tmp_path, spec, condition):
    """Runs a job until a condition is true, and kills it."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(spec))
    child = subprocess.Popen(
        [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until_job(child, condition)
    child.send_signal(signal.SIGKILL)
    child.wait()


def test_each_message_is_answered_once_in_three_runs_that_are_killed(
    tmp_path, sandbox, cluster, topic, spec, monkeypatch
):
    spec["model"] = {"type": "gemini", "base_url": sandbox.gemini_url}
    position = Path(position_file.position_uri(JobSpec.parse(spec)))
    answered = Counter()

    def end_run(count):
        manifest = run(JobSpec.parse(spec))
        answered.update((row["kafka_partition"], row["kafka_offset"]) for row in rows_of(manifest))
        assert manifest["rows"] == {"read": count, "answered": count, "dead_letter": 0, "skipped": 0}

    cluster.send(topic, *messages(0, 100))
    killed(tmp_path, spec, lambda: position.exists() and json.loads(position.read_text())["runs"])
    cluster.send(topic, *messages(100, 120))
    assert set(position_of(spec)[topic].values()) == {0}
    end_run(100)
    assert sum(position_of(spec)[topic].values()) == 100

    cluster.send(topic, *messages(120, 200))
    before = len(sandbox.requests)
    killed(tmp_path, spec, lambda: len(sandbox.requests) > before + 20)
    cluster.send(topic, *messages(200, 210))
    assert sum(position_of(spec)[topic].values()) == 100, "the position is not ahead of the output"
    end_run(100)

    cluster.send(topic, *messages(210, 300))
    with monkeypatch.context() as patch:
        patch.setattr(position_file, "advance", lambda spec: 1 / 0)
        with pytest.raises(JobFailedError):
            run(JobSpec.parse(spec))
    assert sum(position_of(spec)[topic].values()) == 200, "published, and killed before the position moved"
    paid = len(sandbox.requests)
    end_run(100)
    assert len(sandbox.requests) == paid, "the journal has the answers"
    assert len(answered) == 300
    assert set(answered.values()) == {1}


@pytest.mark.full
def test_a_run_takes_its_maximum_and_the_next_ones_the_rest_though_a_run_is_killed(
    tmp_path, sandbox, cluster, topic, spec, caplog
):
    caplog.set_level("INFO", "llmbeam")
    spec["model"] = {"type": "gemini", "base_url": sandbox.gemini_url}
    spec["source"]["max_messages"] = 30
    cluster.send(topic, *messages(0, 70))  # 18 in each of the first two partitions, and 17 in the others
    killed(tmp_path, spec, lambda: len(sandbox.requests) > 10)
    cluster.send(topic, *messages(70, 100))
    assert set(position_of(spec)[topic].values()) == {0}
    spec["source"]["max_messages"] = 50  # the range of a run is kept, and only new ones have the new maximum
    answered = Counter()

    def end_run():
        manifest = run(JobSpec.parse(spec))
        answered.update((row["kafka_partition"], row["kafka_offset"]) for row in rows_of(manifest))
        return manifest

    first = end_run()
    assert first["rows"]["answered"] == 30
    assert Counter(partition for partition, _ in answered) == {0: 8, 1: 8, 2: 7, 3: 7}
    assert first["messages_left"] == 40, "when the range was taken"
    second, third = end_run(), end_run()
    assert [each["rows"]["answered"] for each in (second, third)] == [50, 20]
    assert [each["messages_left"] for each in (second, third)] == [20, 0]
    assert len(answered) == 100
    assert set(answered.values()) == {1}
    assert "The run takes `source.max_messages`, 50 offsets; the next one begins with the 20 that are left." in (
        caplog.text
    )


@pytest.mark.full
def test_a_run_whose_offsets_have_no_message_is_skipped_and_the_next_one_goes_on_behind_them(
    cluster, topic, spec, monkeypatch
):
    spec["source"]["max_messages"] = 4
    cluster.send(topic, *messages(0, 6))
    with monkeypatch.context() as patch:  # as if these offsets belonged to an aborted transaction
        patch.setattr(kafka, "_messages", lambda *_: iter(()))
        manifest = run(JobSpec.parse(spec))
    assert manifest["skipped_because"] is not None
    assert manifest["messages_left"] == 2
    assert run(JobSpec.parse(spec))["rows"]["answered"] == 2


def rows_of(manifest):
    return [row for uri in manifest["answers_uris"] for row in read_lines(Path(uri))]


@pytest.mark.full
def test_a_message_that_cannot_be_parsed_is_in_the_dead_letter_and_no_message_is_a_skipped_run(
    cluster, topic, spec
):
    cluster.send(topic, {"text": "a"}, b"\xff", None, key="k")
    manifest = run(JobSpec.parse(spec))
    assert manifest["rows"] == {"read": 3, "answered": 1, "dead_letter": 2, "skipped": 0}
    failed = read_lines(Path(manifest["dead_letter_uri"]))
    assert sorted((row["kafka_partition"], row["kafka_offset"], row["kafka_key"]) for row in failed) == [
        (1, 0, "k"),
        (2, 0, "k"),
    ]
    before = position_of(spec)
    manifest = run(JobSpec.parse(spec))
    assert manifest["skipped_because"] == f"`source.topic` {topic!r} has no rows, so the output was left as it is."
    assert position_of(spec) == before


@pytest.mark.full
def test_a_cleared_run_of_airflow_has_the_same_messages_and_the_next_run_has_those_after(cluster, topic, spec):
    def of_run(run_id):
        airflow = {"dag_id": "d", "task_id": "t", "run_id": run_id}
        return spec | {"name": run_id, "owner": "d.t", "airflow_run": airflow}

    cluster.send(topic, *messages(0, 3))
    first = texts(run(JobSpec.parse(of_run("one"))))
    cluster.send(topic, *messages(3, 5))
    again = texts(run(JobSpec.parse(of_run("one"))))
    assert again == first == Counter(f"message {number}" for number in range(3))
    # Another run that takes the messages of this one, and publishes first.
    kafka.take(JobSpec.parse(of_run("late")), JobSpec.parse(spec).source)
    second = texts(run(JobSpec.parse(of_run("two"))))
    assert second == Counter(["message 3", "message 4"])
    with pytest.raises(JobFailedError, match="Another run of job 'late' has published messages of this one"):
        position_file.check_next(JobSpec.parse(of_run("late")))


def test_a_time_range_is_read_by_the_offsets_of_its_ends():
    class Client:
        """The mock brokers of librdkafka answer no question for times."""

        def offsets_for_times(self, asked, timeout):
            return [
                SimpleNamespace(topic="t", partition=each.partition, offset=-1 if late else 4, error=None)
                for each in asked
                for late in [each.offset == 2000 and each.partition == 1]
            ]

    edges = Edges(low={"t": {0: 0, 1: 0}}, high={"t": {0: 9, 1: 7}})
    taken = kafka._in_window(Client(), clients.Client(SOURCE, "source"), (1000, 2000), edges)
    assert (taken.begin, taken.end) == ({"t": {0: 4, 1: 4}}, {"t": {0: 4, 1: 7}})


def test_answers_are_sent_once_and_in_one_transaction(cluster, topic, spec, monkeypatch):
    cluster.send(topic, *messages(0, 8))
    sink = {
        "type": "kafka",
        "topic": f"{topic}-answers",
        "bootstrap_servers": cluster.servers,
    }
    airflow = {"dag_id": "d", "task_id": "t", "run_id": "one"}
    job = JobSpec.parse(spec | {"sink": sink, "airflow_run": airflow})
    with pytest.raises(JobSpecError, match="there is no topic"):
        run(job)
    cluster.create(sink["topic"])
    with monkeypatch.context() as patch:
        patch.setattr(answers, "encode_key", lambda record, key: 1 / 0)
        with pytest.raises(JobFailedError):
            run(job)
    assert cluster.messages(sink["topic"]) == [], "the transaction was aborted"
    manifest = run(job)
    assert manifest["answers_uris"] == [f"kafka://{cluster.servers}/{sink['topic']}"]
    sent = {message.key(): json.loads(message.value()) for message in cluster.messages(sink["topic"])}
    assert len(sent) == 8
    for key, row in sent.items():
        assert json.loads(key) == {name: row[name] for name in job.source.key}
    assert Counter(row["answer"] for row in sent.values()) == Counter(f"message {n}" for n in range(8))
    run(job)
    assert len(cluster.messages(sink["topic"])) == 8, "a repeated run sends nothing"


@pytest.mark.full
def test_an_answer_that_is_too_large_for_a_message_is_a_failed_row_until_a_setting_sends_it(
    cluster, topic, spec, monkeypatch
):
    text = "x" * 600_000  # the source and the answer of the echo model together are above the default of 1 MB
    rows = [{"id": "small", "text": "a"}, {"id": "large", "text": text}]
    sink = {"type": "kafka", "topic": topic, "bootstrap_servers": cluster.servers, "passthrough": ["text"]}
    sink["key"] = "id"
    cluster.create(topic)
    job = JobSpec.parse(spec | {"source": {"type": "rows", "rows": rows, "key": "id"}, "sink": sink})
    for _ in range(2):
        manifest = run(job)
        assert manifest["rows"] == {"read": 2, "answered": 1, "dead_letter": 1, "skipped": 0}
        (row,) = read_lines(Path(manifest["dead_letter_uri"]))
        error = row.pop("llmbeam_error")
        assert (row, error["kind"]) == (rows[1], "not_stored")
        assert re.search(r"MSG_SIZE_TOO_LARGE: the answer is a message of 1,200,\d\d\d bytes", error["message"])
        assert "Set `message.max.bytes` in the settings of the connection" in error["message"]
    assert [message.key() for message in cluster.messages(topic)] == [b"small"]
    monkeypatch.setenv("LLMBEAM_KAFKA_SINK_CONFIG", '{"message.max.bytes": 2000000}')
    assert run(job)["rows"]["answered"] == 2
    sent = [b"small", b"large"]
    assert [message.key() for message in cluster.messages(topic)] in (sent, sent[::-1]), "each once"


class SmallTopic:
    """A producer for a topic that takes messages of at most 145 bytes, and tells it when a batch arrives."""

    def __init__(self, sent, settings):
        self.sent, self.size = sent, settings.get("batch.num.messages", 10)
        self.batch, self.is_aborted = [], False

    def init_transactions(self, _):
        pass

    def begin_transaction(self):
        self.messages = []

    def produce(self, _, value, name, on_delivery):
        if self.is_aborted:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.batch.append((value, name, on_delivery))
        if len(self.batch) == self.size:
            self.deliver()

    def deliver(self):
        batch, self.batch = self.batch, []
        is_large = any(len(value) > 145 for value, _, _ in batch)
        self.is_aborted |= is_large
        for _, name, on_delivery in batch:
            on_delivery(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if is_large else None, None)
            self.messages.append(name)

    def commit_transaction(self, _):
        self.deliver()
        if self.is_aborted:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.sent += self.messages

    def abort_transaction(self, _):
        pass


@pytest.mark.parametrize("large", [{3}, {0, 7, 8}, {11}, set(range(12))])
def test_a_topic_that_refuses_a_batch_gets_all_messages_but_those_that_are_too_large(tmp_path, monkeypatch, large):
    sizes = [130 + number if number in large else 40 + number for number in range(12)]
    lines = [json.dumps({"id": number, "answer": "x" * size}) for number, size in enumerate(sizes)]
    (tmp_path / "answers.jsonl").write_text("\n".join(lines) + "\n")
    sent, refused = [], {}
    monkeypatch.setattr(answers, "_producer", lambda _, __, settings=None: SmallTopic(sent, settings or {}))
    sink = KafkaSink(type="kafka", topic="t", bootstrap_servers="localhost:1")
    staged, sent_uri = {0: str(tmp_path / "answers.jsonl")}, str(tmp_path / "sent.json")
    answers.publish(sink, ("id",), "job", staged, sent_uri, refused.__setitem__)
    assert {*refused} == large
    assert sent == [f'{{"id": {number}}}'.encode() for number in range(12) if number not in large]


@pytest.mark.full
def test_what_kafka_no_longer_has_fails_the_job_or_is_passed_over(cluster, topic, spec, caplog):
    cluster.send(topic, *messages(0, 8))
    job = JobSpec.parse(spec)
    edges = Edges(low={topic: {0: 2}}, high={topic: {0: 9}})
    taken = position_file.read_position(job).new_range(job.source, Edges(low={topic: {0: 0}}, high=edges.high))
    with pytest.raises(JobSpecError, match=r"`source\.on_deleted`: Kafka has deleted 2 offsets"):
        kafka._check(job, job.source, taken, edges)
    kafka._check(job, job.source.model_copy(update={"on_deleted": "skip"}), taken, edges)
    assert "has deleted 2 offsets" in caplog.text
    with pytest.raises(JobSpecError, match="the topic was created again"):
        kafka._check(job, job.source, taken, Edges(low=edges.low, high={topic: {0: -1}}))


@pytest.mark.full
def test_another_cluster_and_an_invalid_position_are_refused(cluster, topic, spec):
    cluster.send(topic, *messages(0, 1))
    job = JobSpec.parse(spec)
    kafka.take(job, job.source)
    discard(job)
    path, own = Path(position_file.position_uri(job)), position_file.read_position(job).cluster
    path.write_text(path.read_text().replace(own, "other"))
    with pytest.raises(JobSpecError, match="belongs to the Kafka cluster 'other'"):
        kafka.take(job, job.source)
    path.write_text("[]")
    with pytest.raises(JobSpecError, match="is not valid"):
        kafka.take(job, job.source)


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"topic": "no-such-topic"}, "", "UNKNOWN_TOPIC_OR_PART"),
        ({"bootstrap_servers": None}, "", "`source.bootstrap_servers`: this field is needed"),
        ({}, "not json: s3cret", "does not hold a JSON object"),
        ({}, '{"sasl.passwort": "s3cret"}', 'No such configuration property: "sasl.passwort"'),
    ],
)
def test_a_mistake_is_refused_before_anything_is_sent(spec, monkeypatch, changes, settings, message):
    monkeypatch.setenv("LLMBEAM_KAFKA_SOURCE_CONFIG", settings)
    job = JobSpec.parse(spec | {"source": spec["source"] | changes})
    with pytest.raises(JobSpecError) as raised:
        kafka.take(job, job.source)
    assert message in str(raised.value)
    assert "Nothing was sent or billed." in str(raised.value)
    assert "s3cret" not in str(raised.value)


@pytest.mark.full
def test_a_cluster_that_does_not_answer_may_be_tried_again(spec, monkeypatch):
    monkeypatch.setattr(kafka, "TIMEOUT_SECONDS", 0.3)
    job = JobSpec.parse(spec | {"source": spec["source"] | {"bootstrap_servers": "127.0.0.1:1"}})
    with pytest.raises(JobFailedError, match=r"Kafka at 127\.0\.0\.1:1: asking for topic"):
        kafka.take(job, job.source)


def test_a_message_of_a_queue_is_not_read_for_an_estimate(spec):
    from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import sample_source

    with pytest.raises(JobSpecError, match="are taken by runs of the job alone"):
        sample_source(JobSpec.parse(spec))
