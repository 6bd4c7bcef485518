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
    read_committed,
)
from tests.processes import KILLS
from tests.stream_trials import stream_trial

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.timeout(900)]
UNREADABLE = 20


@pytest.fixture
def trial(tmp_path):
    """Returns a function that runs a trial of workers; returns it with what was counted again, and the sums."""

    def run(plan, **setting):
        with stream_trial(tmp_path, **setting) as trial:
            servers = trial.broker.servers
            producer = Producer({"bootstrap.servers": servers})
            for number in range(UNREADABLE):
                producer.produce(QUESTIONS, json.dumps({"no text": number}))
            assert producer.flush(10) == 0
            trial.run(plan)

            def records(topic):
                return [each for _, each in read_committed(servers, topic, threading.Event(), ends=True)]

            counted = count_again(records(ANSWERS), records(DEAD_LETTER), WINDOW_SECONDS)
            return trial, counted, sum_increments(records(METRICS))

    return run


def total(windows):
    return merge([{0: each} for each in windows.values()])[0]


def test_the_increments_add_up_to_a_recount_of_what_is_committed_whatever_is_killed(trial):
    trial, counted, summed = trial(steps(62, 2 * KILLS, leaves=1))
    assert find_differences(counted, summed) == []
    found = total(summed)
    assert (found.answers, found.failed) == (len(trial.keys), UNREADABLE)
    assert found.latencies.total() == found.messages
    group = GroupReader(JobSpec.parse(trial.spec()).paths.stream_uri).read(time.time())
    # What a member had not written when it was killed is missing in its files.
    assert 0.5 * found.answers < total(group.windows).answers <= found.answers
    assert group.members.keys() == {"w0", "w1"}


def test_increments_outside_the_transactions_are_seen(trial):
    program = ("-m", "tests.pipeline.wrong_stream_worker", "increments-first")
    _, counted, summed = trial(steps(61, 3), program=program)
    assert find_differences(counted, summed) != []
