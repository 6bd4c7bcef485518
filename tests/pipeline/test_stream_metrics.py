"""The windows of stream workers on a real broker, beside a recount of what they have committed."""

from __future__ import annotations

import json
import threading
import time

import pytest
from confluent_kafka import Producer

from airflow_provider_llmbeam.pipeline.stream.group import GroupReader
from airflow_provider_llmbeam.pipeline.stream.windows import merge
from airflow_provider_llmbeam.spec import JobSpec
from bench.stream.plan import steps
from bench.stream.recount import count_again, find_differences, sum_increments
from bench.stream.trial import (
    ANSWERS,
    DEAD_LETTER,
    METRICS,
    QUESTIONS,
    WINDOW_SECONDS,
    Setting,
    Trial,
    read_committed,
)
from tests.kafka import kafka_broker
from tests.processes import KILLS

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]
UNREADABLE = 20


def test_the_increments_add_up_to_a_recount_of_what_is_committed_whatever_is_killed(tmp_path):
    (folder := tmp_path / "broker").mkdir()
    with kafka_broker(folder) as broker, Trial(Setting(), broker, tmp_path) as trial:
        producer = Producer({"bootstrap.servers": broker.servers})
        for number in range(UNREADABLE):
            producer.produce(QUESTIONS, json.dumps({"no text": number}))
        assert producer.flush(10) == 0
        evidence = trial.run(steps(62, 2 * KILLS, leaves=1))

        def records(topic):
            return [each for _, each in read_committed(broker.servers, topic, threading.Event(), ends=True)]

        summed = sum_increments(records(METRICS))
        assert find_differences(count_again(records(ANSWERS), records(DEAD_LETTER), WINDOW_SECONDS), summed) == []
        total = merge([{0: each} for each in summed.values()])[0]
        group = GroupReader(JobSpec.parse(trial.spec()).paths.stream_uri).read(time.time())
    assert (total.answers, total.failed) == (len(evidence.keys), UNREADABLE)
    assert total.latencies.total() == total.messages
    # What a member had not written when it was killed is missing in its files.
    left = merge([{0: each} for each in group.windows.values()])[0]
    assert 0.5 * total.answers < left.answers <= total.answers
    assert group.members.keys() == {"w0", "w1"}
