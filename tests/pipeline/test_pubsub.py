"""Batches of Pub/Sub's messages: each is answered once, and none is lost between the delivery and the answer."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path

import pytest
from google.api_core.exceptions import InvalidArgument
from google.pubsub_v1 import PublisherClient, SubscriberClient
from llmbeam_sandbox import Fault
from requests import ReadTimeout

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.queues.deliveries_file import Batches
from airflow_provider_llmbeam.pipeline.sinks import pubsub as sink_of_pubsub
from airflow_provider_llmbeam.pipeline.sources import pubsub
from airflow_provider_llmbeam.spec import JobSpec, PubSubSink
from tests.pipeline.conftest import read_lines

pytestmark = [pytest.mark.promise(1), pytest.mark.slow]

TOPIC = "projects/llmbeam-sandbox/topics/tickets"
SUBSCRIPTION = "projects/llmbeam-sandbox/subscriptions/labels"


@pytest.fixture
def send(google):
    """Returns a function that publishes texts, to a topic with a subscription."""
    with PublisherClient(transport="rest") as publisher, SubscriberClient(transport="rest") as subscriber:
        publisher.create_topic(name=TOPIC)
        subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=600)

        def sent(*texts):
            messages = [{"data": json.dumps({"text": text}).encode(), "ordering_key": "k"} for text in texts]
            publisher.publish(topic=TOPIC, messages=messages)

        yield sent


@pytest.fixture
def redeliver(send):
    """Returns a function that lets the acknowledgements since the last call be lost."""

    def again(sandbox):
        for each in sandbox.pubsub.subscription(SUBSCRIPTION).deliveries:
            each.leased_until = 0.0

    return again


@pytest.fixture
def spec(tmp_path):
    return {
        "name": "job",
        "source": {"type": "pubsub", "subscription": SUBSCRIPTION},
        "prompt": "{{ row.text }}",
        "model": {"type": "echo"},
        "limits": {"max_dead_letter_ratio": 1},
        "sink": {"uri": str(tmp_path / "out")},
        "state_uri": str(tmp_path / "state"),
    }


def of_run(spec, run_id):
    airflow = {"dag_id": "d", "task_id": "t", "run_id": run_id}
    return JobSpec.parse(spec | {"name": run_id, "owner": "d.t", "airflow_run": airflow})


def texts(manifest):
    return Counter(row["answer"] for uri in manifest["answers_uris"] for row in read_lines(Path(uri)))


def taken(job):
    return Counter(
        json.loads(row["llmbeam_value"])["text"] for row in read_lines(Path(pubsub.take(job, job.source)))
    )


def test_a_run_has_what_has_come_and_a_message_that_cannot_be_parsed_is_in_the_dead_letter(send, spec, google):
    send("a", "b")
    with PublisherClient(transport="rest") as publisher:
        publisher.publish(topic=TOPIC, messages=[{"data": b"\xff", "attributes": {"lang": "en"}}])
    manifest = run(JobSpec.parse(spec))
    assert texts(manifest) == Counter("ab")
    (failed,) = read_lines(Path(manifest["dead_letter_uri"]))
    assert (failed["pubsub_message_id"], failed["pubsub_attributes"]) == ("3", {"lang": "en"})
    manifest = run(JobSpec.parse(spec))
    assert manifest["skipped_because"].startswith(f"`source.subscription` {SUBSCRIPTION!r} has no rows")
    assert not storage.match(f"{spec['state_uri']}/queues/*/*"), "what is published is deleted"


def test_a_run_that_is_killed_before_it_acknowledges_has_each_message_once(
    send, spec, sandbox, redeliver, monkeypatch
):
    job = of_run(spec, "one")
    send("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(pubsub, "_acknowledge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pubsub.take(job, job.source)
    redeliver(sandbox)
    send("c")
    assert taken(job) == Counter("abc")
    send("d")
    assert taken(job) == Counter("abc"), "every attempt has the same messages"


@pytest.mark.full
def test_messages_that_were_published_and_not_acknowledged_are_recognised(
    send, spec, sandbox, redeliver, monkeypatch
):
    one, two = of_run(spec, "one"), of_run(spec, "two")
    send("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(pubsub, "_acknowledge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pubsub.take(one, one.source)
    assert taken(one) == Counter("ab")
    Batches(one).publish()
    redeliver(sandbox)
    send("c")
    assert taken(two) == Counter("c")


@pytest.mark.full
def test_the_next_run_has_the_messages_of_one_that_is_given_up_and_only_one_publishes_them(send, spec):
    one, two = of_run(spec, "one"), of_run(spec, "two")
    send("a")
    assert taken(one) == Counter("a")
    send("b")
    assert taken(two) == Counter("ab")
    Batches(one).check()
    Batches(two).publish()
    with pytest.raises(JobFailedError, match="Another run of job 'one' has published messages of this one"):
        Batches(one).check()
    send("c")
    assert taken(one) == Counter("c")
    assert taken(two) == Counter(), "a run that is published takes no more"
    Batches(two).check()


@pytest.mark.full
def test_a_run_that_is_cleared_after_its_success_keeps_its_answers_whatever_on_empty_is(send, spec):
    spec["source"]["on_empty"] = "write"
    send("a", "b")
    published = run(of_run(spec, "one"))
    send("c")
    cleared = run(of_run(spec, "one"))
    assert cleared["skipped_because"].endswith(
        "has no rows of this run any more: they are published, so the output was left as it is."
    )
    assert texts(published) == Counter("ab")
    assert texts(run(of_run(spec, "two"))) == Counter("c")
    assert texts(run(of_run(spec, "three"), ["--direct_runner_bundle_repeat=1"])) == Counter()


def bounded(spec, run_id, maximum):
    return of_run(spec | {"source": spec["source"] | {"max_messages": maximum}}, run_id)


@pytest.mark.full
def test_a_run_takes_its_maximum_and_the_next_ones_the_rest_though_a_run_is_killed(
    send, spec, caplog, monkeypatch
):
    caplog.set_level("INFO", "llmbeam")
    monkeypatch.setattr(pubsub, "_PULLED", 2)
    send(*map(str, range(12)))
    with monkeypatch.context() as patch:
        patch.setattr(pubsub, "_acknowledge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            pubsub.take(bounded(spec, "one", 5), bounded(spec, "one", 5).source)
    found = [texts(run(bounded(spec, run_id, 5))) for run_id in ("one", "two", "three")]
    assert [counts.total() for counts in found] == [5, 5, 2]
    assert sum(found, Counter()) == Counter(map(str, range(12)))
    assert caplog.text.count("The run has `source.max_messages`") == 2


@pytest.mark.full
def test_the_next_run_has_a_part_of_the_messages_of_a_run_that_took_too_many(send, spec, monkeypatch):
    monkeypatch.setattr(pubsub, "_PULLED", 2)
    send(*map(str, range(6)))
    assert len(taken(bounded(spec, "one", 6))) == 6
    send("6")
    found = []
    for run_id in ("two", "three"):
        found.append(taken(bounded(spec, run_id, 5)))
        assert taken(bounded(spec, run_id, 1)) == found[-1], "every attempt has the same messages"
        Batches(of_run(spec, run_id)).publish()
    assert [counts.total() for counts in found] == [4, 3], "batches are taken as a whole"
    assert sum(found, Counter()) == Counter(map(str, range(7)))


@pytest.mark.full
def test_a_subscription_that_sends_nothing_for_a_while_is_empty(send, spec, monkeypatch):
    def wait(*_, **__):
        raise ReadTimeout

    monkeypatch.setattr(SubscriberClient, "pull", wait)
    assert taken(of_run(spec, "one")) == Counter()


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault(kind="error", http_status=403), JobSpecError, "not authorized"),
        (Fault(kind="error", http_status=503), JobFailedError, "unable to fulfill"),
        (Fault(kind="disconnect"), JobFailedError, "Nothing was sent"),
    ],
)
def test_what_pubsub_refuses_is_told_before_anything_is_sent(send, spec, sandbox, fault, error, message):
    sandbox.faults.queue("pubsub.subscriptions.pull", fault)
    job = JobSpec.parse(spec)
    with pytest.raises(error, match=message) as raised:
        pubsub.take(job, job.source)
    assert str(raised.value).startswith(f"`source.subscription` {SUBSCRIPTION!r}")


def test_answers_are_sent_once_with_their_key_and_their_ordering_key(send, spec, sandbox, monkeypatch):
    answers = f"{TOPIC}-answers"
    sink = {"type": "pubsub", "topic": answers, "ordering_key": "lang", "passthrough": ["lang"]}
    rows = [{"id": "i" * 2000 * (n == 2) + str(n), "text": f"t{n}", "lang": "en" if n else None} for n in range(3)]
    job = of_run(spec | {"source": {"type": "rows", "rows": rows, "key": ["id"]}, "sink": sink}, "one")
    with pytest.raises(JobSpecError, match="Resource not found"):
        run(job)
    with PublisherClient(transport="rest") as publisher:
        publisher.create_topic(name=answers)
    monkeypatch.setattr(sink_of_pubsub, "_MESSAGES", 2)
    sandbox.faults.queue("pubsub.topics.publish", Fault(kind="error", http_status=403))
    with pytest.raises(JobFailedError, match="a retry sends nothing to the model, and all messages again"):
        run(job)
    assert run(job)["answers_uris"] == [f"pubsub://{answers}"]
    assert run(job)["rows"]["answered"] == 3
    sent = [message.fields for message in sandbox.pubsub.messages(answers)]
    assert len(sent) == 3, "a repeated run sends nothing"
    found = {json.loads(base64.b64decode(fields["data"]))["answer"]: fields for fields in sent}
    assert [found[f"t{n}"].get("orderingKey") for n in range(3)] == [None, "en", "en"]
    assert found["t0"]["attributes"] == {"llmbeam_key": '{"id": "0"}'}
    assert len(found["t2"]["attributes"]["llmbeam_key"]) == 64, "the key is too long for an attribute"


def test_an_answer_that_the_topic_refuses_is_a_failed_row_and_the_others_are_sent_once(
    google, spec, sandbox, monkeypatch
):
    answers = f"{TOPIC}-answers"
    rows = [{"id": n, "text": f"t{n}", "note": n} for n in range(12)]
    sink = {"type": "pubsub", "topic": answers}
    job = JobSpec.parse(spec | {"source": {"type": "rows", "rows": rows, "key": ["id"]}, "sink": sink})
    with PublisherClient(transport="rest") as publisher:
        publisher.create_topic(name=answers)
    original = PublisherClient.publish

    def publish(self, *, messages, **options):
        if any(b'"t3"' in message["data"] for message in messages):
            raise InvalidArgument("Message failed schema validation.")
        return original(self, messages=messages, **options)

    with monkeypatch.context() as patched:
        patched.setattr(PublisherClient, "publish", publish)
        for _ in range(2):
            manifest = run(job)
            (row,) = read_lines(Path(manifest["dead_letter_uri"]))
            error = row.pop("llmbeam_error")
            assert (row, error["kind"]) == (rows[3], "not_stored")
            assert "Message failed schema validation." in error["message"]
            assert len(sandbox.pubsub.messages(answers)) == 11
    assert run(job)["rows"]["answered"] == 12
    assert len(sandbox.pubsub.messages(answers)) == 12, "the refused one alone is sent by a later run"


@pytest.mark.full
def test_a_bundle_that_the_runner_repeats_sends_each_answer_once(google, spec, sandbox):
    answers = f"{TOPIC}-answers"
    with PublisherClient(transport="rest") as publisher:
        publisher.create_topic(name=answers)
    source = {"type": "rows", "rows": [{"id": n, "text": f"t{n}"} for n in range(3)], "key": ["id"]}
    job = JobSpec.parse(spec | {"source": source, "sink": {"type": "pubsub", "topic": answers}})
    assert run(job, ["--direct_runner_bundle_repeat=1"])["answers_uris"] == [f"pubsub://{answers}"]
    run(job)
    assert len(sandbox.pubsub.messages(answers)) == 3


@pytest.mark.full
def test_a_topic_that_does_not_answer_is_asked_again_and_then_fails_the_publication(
    google, tmp_path, sandbox, monkeypatch
):
    def publish():
        sink = PubSubSink(type="pubsub", topic=TOPIC)
        sent_uri = str(tmp_path / "sent.json")
        return sink_of_pubsub.publish(
            sink, ("id",), {0: str(staged)}, sent_uri, lambda *refused: pytest.fail(str(refused))
        )

    def wait(*_, **__):
        raise ReadTimeout

    staged = tmp_path / "answers.jsonl"
    staged.write_text('{"id": 1, "answer": "a"}\n')
    with PublisherClient(transport="rest") as publisher:
        publisher.create_topic(name=TOPIC)
    with monkeypatch.context() as patch:
        patch.setattr(PublisherClient, "publish", wait)
        with pytest.raises(JobFailedError, match=r"ReadTimeout.*all messages again"):
            publish()
    sandbox.faults.queue("pubsub.topics.publish", Fault(kind="disconnect"))
    assert publish() == [f"pubsub://{TOPIC}"]


@pytest.mark.full
def test_a_subscription_that_does_not_exist_and_an_invalid_state_are_refused(google, spec):
    job = JobSpec.parse(spec)
    with pytest.raises(JobSpecError, match="Resource not found"):
        pubsub.take(job, job.source)
    batches = Batches(job)
    batches.begin(())
    Path(batches._uri).write_text("[]")
    with pytest.raises(JobSpecError, match="is not valid"):
        pubsub.take(job, job.source)
