from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobCancelledError, JobFailedError
from airflow_provider_llmbeam.pipeline.launch import interruption
from airflow_provider_llmbeam.pipeline.launch.interruption import (
    signals_handled,
    stopped_at_signal,
    what_remains,
)
from airflow_provider_llmbeam.spec import JobSpec


def test_a_job_on_flink_may_go_on() -> None:
    spec = JobSpec.parse(
        {
            "name": "n",
            "source": {"uri": "/mnt/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "/mnt/out"},
            "runner": {
                "type": "flink",
                "rest_url": "http://jm:8081",
                "job_endpoint": "localhost:8099",
                "flink_version": "1.19",
                "environment": {"type": "DOCKER", "image": "i"},
            },
        }
    )
    assert what_remains(spec).startswith(
        "The job may be running, and billing, on the Flink cluster at http://jm:8081"
    )


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Those of Python, which are there again afterwards; a shell starts its background with SIGINT ignored."""
    handlers: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    alarm = signal.getsignal(signal.SIGALRM)
    yield
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert signal.getsignal(signal.SIGALRM) == alarm
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> signal.Signals:
    """A signal that ends a process."""
    return signal.Signals(request.param)


def test_a_signal_while_nothing_is_answered_interrupts_at_once(number: signal.Signals) -> None:
    with stopped_at_signal(lambda: pytest.fail("this batch is answered")):
        pass
    with pytest.raises(KeyboardInterrupt), signals_handled():
        signal.raise_signal(number)


def test_the_first_signal_ends_the_sending_of_each_batch_and_the_second_one_interrupts(
    number: signal.Signals,
) -> None:
    stopped: list[str] = []

    def answer_two_batches() -> None:
        with stopped_at_signal(lambda: stopped.append("a")), stopped_at_signal(lambda: stopped.append("b")):
            signal.raise_signal(number)
            assert stopped == ["a", "b"]
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt), signals_handled():
        answer_two_batches()
    assert stopped == ["a", "b"]


def test_requests_that_are_not_answered_are_given_up_after_the_time_for_them(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def answer() -> None:
        signal.raise_signal(number)
        threading.Event().wait(60)

    monkeypatch.setattr(interruption, "GRACE_SECONDS", 0.01)
    with pytest.raises(KeyboardInterrupt), signals_handled(), stopped_at_signal(lambda: None):
        answer()


def test_a_batch_that_fails_after_a_signal_has_interrupted_the_job(number: signal.Signals) -> None:
    def answer() -> None:
        signal.raise_signal(number)
        raise JobCancelledError("what was in flight is recorded")

    with pytest.raises(KeyboardInterrupt), signals_handled(), stopped_at_signal(lambda: None):
        answer()


def test_without_a_signal_the_error_of_a_job_is_its_own() -> None:
    with pytest.raises(JobFailedError), signals_handled(), stopped_at_signal(lambda: None):
        raise JobFailedError("no")


def test_a_signal_that_a_shell_ignores_for_its_background_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals_handled():
        signal.raise_signal(signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) == signal.SIG_IGN
