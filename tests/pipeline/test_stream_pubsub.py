"""Stream workers on a subscription of Pub/Sub: nothing is lost, and what was recorded is not paid again."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import sys
import time

import pytest
import sessions
from llmbeam_sandbox import Fault, Latency, ModelSettings, Sandbox
from llmbeam_sandbox.models.answers import prompt_sha256
from waiting import scaled, until

from tests.processes import KILLS

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = "projects/llmbeam-sandbox"
QUESTIONS, ANSWERS, DEAD_LETTER = (f"{PROJECT}/topics/{name}" for name in ("questions", "answers", "dead-letter"))
SUBSCRIPTION = f"{PROJECT}/subscriptions/questions"


@pytest.fixture
def sandbox():
    """A sandbox whose model takes a fifth of a second."""
    with Sandbox(models=ModelSettings(latency=Latency(mean_seconds=0.2, sigma=0.4))) as running:
        yield running


class Stream:
    """Workers of one job."""

    def __init__(self, sandbox, directory):
        self.sandbox, self.directory = sandbox, directory
        self.workers = []
        for topic in (QUESTIONS, ANSWERS, DEAD_LETTER):
            sandbox.pubsub.add_topic(topic)
        sandbox.pubsub.add_subscription(SUBSCRIPTION, QUESTIONS, {"enableMessageOrdering": True})
        self.spec = {
            "name": "trial",
            "source": {"type": "pubsub", "subscription": SUBSCRIPTION},
            "prompt": "{{ row.text }}",
            "model": {"type": "openai", "name": "sandbox-model", "base_url": sandbox.openai_url},
            "limits": {"max_in_flight": 16},
            "sink": {"type": "pubsub", "topic": ANSWERS},
            "state_uri": str(directory / "state"),
            "stream": {"dead_letter_topic": DEAD_LETTER, "report_seconds": 1},
        }

    def publish(self, *values, key=""):
        """Publishes messages; values other than bytes as JSON. Returns their ids."""
        data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in values]
        fields = [{"data": base64.b64encode(each).decode(), "orderingKey": key} for each in data]
        return self.sandbox.pubsub.publish(QUESTIONS, fields)

    def start(self, **run):
        (spec := self.directory / "job.json").write_text(json.dumps(self.spec))
        (given := self.directory / "input.json").write_text(json.dumps(run))
        command = [sys.executable, "-m", "airflow_provider_llmbeam.pipeline", "--spec", spec, "--step", "stream"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command += ["--input", given]
        with self.log.open("ab") as log:
            self.workers.append(sessions.start(command, stdout=log, stderr=log, env=environment))

    @property
    def log(self):
        return self.directory / "workers.log"

    def counts(self):
        """The last line of counts."""
        return json.loads([line for line in self.log.read_text().splitlines() if line.startswith('{"at"')][-1])

    def kill(self):
        """Kills the oldest worker; its leases end at once, as at any time they may.

        Returns the time, and the texts of the answers that were recorded until then.
        """
        worker = self.workers.pop(0)
        sessions.kill([worker])
        worker.wait()
        killed_at, recorded = time.time(), self.recorded()
        for each in self.sandbox.pubsub.subscription(SUBSCRIPTION).deliveries:
            each.leased_until = 0.0
        return killed_at, recorded

    def end(self):
        """Ends all workers with SIGTERM."""
        for worker in self.workers:
            worker.terminate()
            assert worker.wait(scaled(60)) == 0, self.log.read_text()[-3000:]

    def records(self, topic):
        """The records of a topic, each with the id of its message."""
        found = self.sandbox.pubsub.messages(topic)
        return [
            (each.fields["attributes"]["llmbeam_message_id"], json.loads(base64.b64decode(each.fields["data"])))
            for each in found
        ]

    def recorded(self):
        files = self.directory.glob("state/trial/journal*@stream/*.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return {json.loads(line)["text"].partition(" [")[0] for line in lines if line.endswith("}")}


@pytest.fixture
def stream(sandbox, google, tmp_path):
    made = Stream(sandbox, tmp_path)
    yield made
    sessions.kill(made.workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_kills_lose_nothing_and_pay_twice_at_most_what_was_not_recorded(stream, workers):
    chance = random.Random(61 + workers)
    texts = {}
    for number in range(200 * KILLS):
        key = f"user {number % 7}" if number % 2 else ""
        text = f"message {number} of {key or 'nobody'}"
        (message_id,) = stream.publish({"text": text}, key=key)
        texts[message_id] = text, key
    for _ in range(workers):
        stream.start()
    kills = []
    for _ in range(2 * KILLS):
        begun = len(stream.records(ANSWERS))
        until(lambda begun=begun: len(stream.records(ANSWERS)) > begun + 10, stream.log.read_text)
        time.sleep(chance.uniform(0, 1))
        kills.append(stream.kill())
        stream.start()
    until(lambda: {name for name, _ in stream.records(ANSWERS)} == set(texts), stream.log.read_text)
    stream.end()
    answers = stream.records(ANSWERS)
    assert all(texts[name][0] in record["answer"] for name, record in answers)
    assert len({(name, record["answer"]) for name, record in answers}) == len(texts), "a repetition is the same"
    first = list(dict.fromkeys(name for name, _ in answers))
    for key in {key for _, key in texts.values() if key}:
        of_key = [name for name in first if texts[name][1] == key]
        assert of_key == sorted(of_key, key=int)
    hashes = {prompt_sha256(text): text for text, _ in texts.values()}
    asked = [
        (each.received_at, hashes[each.prompt_sha256]) for each in stream.sandbox.requests if each.prompt_sha256
    ]
    unrecorded = 0
    for killed_at, recorded in kills:
        unrecorded += len({text for at, text in asked if at < killed_at} - recorded)
        assert not {text for at, text in asked if at > killed_at} & recorded
    print(f"{len(texts)} messages, {len(kills)} kills: {len(answers) - len(texts)} answers and", end=" ")
    print(f"{len(asked) - len(texts)} requests twice, {unrecorded} unrecorded")
    assert len(asked) - len(texts) <= unrecorded
    assert stream.sandbox.pubsub.subscription(SUBSCRIPTION).deliveries == []


def test_a_message_that_cannot_be_read_goes_to_the_dead_letter_topic_with_its_id(stream):
    ids = [*stream.publish({"text": "good"}), *stream.publish(b"\xff\xfe", b"", b"[1]", {"other": 1}, key="k")]
    stream.start(drain=True)
    assert stream.workers[0].wait(scaled(90)) == 0, stream.log.read_text()
    assert [name for name, _ in stream.records(ANSWERS)] == ids[:1]
    failed = stream.records(DEAD_LETTER)
    assert [name for name, _ in failed] == ids[1:]
    assert {record["llmbeam_error"]["kind"] for _, record in failed} == {"unreadable_row", "template_error"}
    assert stream.sandbox.pubsub.subscription(SUBSCRIPTION).deliveries == []


def test_an_answer_that_the_topic_refuses_goes_to_the_dead_letter_and_the_others_stay_in_order(stream, sandbox):
    stream.spec["sink"]["ordering_key"] = "pubsub_ordering_key"
    stream.spec["sink"]["passthrough"] = ["pubsub_ordering_key"]
    ids = [name for number in range(6) for name in stream.publish({"text": f"m{number}"}, key="k")]
    fault = Fault(kind="error", http_status=400, message="No schema.")
    refused = f'pubsub_message_id\\": \\"{ids[2]}\\"'
    sandbox.faults.when("pubsub.topics.publish", refused, fault)
    stream.start(drain=True)
    assert stream.workers[0].wait(scaled(90)) == 0, stream.log.read_text()
    sandbox.faults.clear()
    assert [name for name, _ in stream.records(ANSWERS)] == [*ids[:2], *ids[3:]]
    assert {each.fields["orderingKey"] for each in sandbox.pubsub.messages(ANSWERS)} == {"k"}
    ((name, record),) = stream.records(DEAD_LETTER)
    assert (name, record["llmbeam_error"]["kind"]) == (ids[2], "not_stored")
    assert "No schema." in record["llmbeam_error"]["message"]


def test_missing_topics_are_created_with_a_subscription_or_named(stream, sandbox):
    del stream.spec["stream"]["dead_letter_topic"]
    stream.publish(b"no JSON")
    stream.start(drain=True)
    assert stream.workers.pop().wait(scaled(90)) != 0
    assert "or set `stream.create_topics`" in stream.log.read_text()
    stream.spec["stream"]["create_topics"] = True
    stream.start(drain=True)
    assert stream.workers[0].wait(scaled(90)) == 0, stream.log.read_text()
    name = re.search(r"llmbeam-trial-[0-9a-f]+-dead-letter", stream.log.read_text())[0]
    assert len(sandbox.pubsub.subscription(f"{PROJECT}/subscriptions/{name}").deliveries) == 1
