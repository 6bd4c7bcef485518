"""A budget of each hour or day of a stream: all members share it, and wait for the next one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from kafka_broker import create_topics

from airflow_provider_llmbeam.engine.pacing.ledger import Ledger
from airflow_provider_llmbeam.exceptions import BudgetExceededError, JobSpecError
from airflow_provider_llmbeam.pipeline.shared_budget import RenewedBudget, check_budget, name_window
from airflow_provider_llmbeam.pipeline.stream.run import run_stream
from airflow_provider_llmbeam.spec import JobSpec, StreamRun
from airflow_provider_llmbeam.spec.limits import OVER_WINDOWS
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from tests.kafka import kafka_broker

MESSAGES, USD = 60, 400.0


def job(directory: Path, sandbox, servers: str = "127.0.0.1:1", over: str = "hour", **changes: Any) -> JobSpec:
    queue = {"type": "kafka", "bootstrap_servers": servers}
    return JobSpec.parse(
        {
            "name": "budgeted",
            "source": {**queue, "topic": "questions"},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "openai", "name": "m", "base_url": sandbox.openai_url},
            "sink": {**queue, "topic": "answers"},
            "state_uri": str(directory / "state"),
            "limits": {
                "price": {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 1e6},
                "budget": {"usd": USD, "over": over},
                "max_in_flight": 4,
            },
            "stream": {"create_topics": True},
            **changes,
        }
    )


@pytest.fixture
def servers(tmp_path, monkeypatch):
    """A broker with `MESSAGES` questions."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    (tmp_path / "broker").mkdir()
    with kafka_broker(tmp_path / "broker") as broker:
        create_topics(broker.servers, 2, "questions")
        producer = Producer({"bootstrap.servers": broker.servers})
        for number in range(MESSAGES):
            producer.produce("questions", json.dumps({"text": f"message {number}"}), f"{number}")
        assert producer.flush(10) == 0
        yield broker.servers


def test_each_hour_and_each_day_has_a_ledger(tmp_path, sandbox):
    hourly, daily = job(tmp_path, sandbox), job(tmp_path, sandbox, over="day")
    names = {name_window(hourly, at).limits.budget.over for at in (0.0, 3599.9, 3600.0)}
    assert {each.rpartition("-")[2] for each in names} == {"01T000000Z", "01T010000Z"}
    assert name_window(daily, 0.0) == name_window(daily, 86_399.0) != name_window(daily, 86_400.0)
    assert hourly.limits.budget.seconds_to_next(3590.0) == 10.0

    now = 100.0
    budget = RenewedBudget(hourly, lambda: now)
    first = budget.account
    assert budget.account is first
    now = 3600.0
    assert budget.account is not first


def test_a_run_has_no_budget_of_an_hour(tmp_path, sandbox):
    with pytest.raises(JobSpecError, match=r"`limits.budget.over`: 'hour' is of a stream, which waits"):
        check_budget(job(tmp_path, sandbox))


@pytest.mark.full
def test_a_stream_that_has_spent_its_hour_waits_for_the_next_one(servers, tmp_path, sandbox, monkeypatch):
    monkeypatch.setitem(OVER_WINDOWS, "hour", 5)
    counts = run_stream(job(tmp_path, sandbox, servers), StreamRun(drain=True))
    answered = read(servers)
    assert counts["committed"] == MESSAGES
    assert answered == Counter({f"{number}".encode(): 1 for number in range(MESSAGES)})
    assert len(sandbox.requests) == MESSAGES, "nothing is asked twice"
    ledgers = [*(tmp_path / "state" / "budgets").glob("hour-budgeted*.json")]
    taken = [Ledger.read(each.read_bytes(), USD, str(each)).taken_nano_usd for each in ledgers]
    assert len(ledgers) > 1
    assert max(taken) <= USD * NANO


@pytest.mark.full
def test_the_budget_of_a_guard_is_not_that_of_the_job(servers, tmp_path, sandbox):
    model = {"type": "openai", "name": "m", "base_url": sandbox.openai_url}
    price = {"input_usd_per_million_tokens": 1e6, "output_usd_per_million_tokens": 1e6}
    guard = {"model": model, "template": "{text}", "on": ["output"], "limits": {"budget_usd": 1e9, "price": price}}
    safety = {"moderation": {**guard, "action": "flag"}}
    spec = job(tmp_path, sandbox, servers, safety=safety, limits={"budget_usd": USD, "price": price})
    with pytest.raises(BudgetExceededError, match=r"`limits.budget_usd` is \$400\."):
        run_stream(spec, StreamRun(drain=True))


def read(servers: str) -> Counter[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "r",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe(["answers"])
    found, ended = Counter[bytes](), set()
    while len(ended) < 2:
        for record in consumer.consume(100, 0.1):
            if record.error() is None:
                found[record.key()] += 1
            else:
                ended.add(record.partition())
    consumer.close()
    return found
