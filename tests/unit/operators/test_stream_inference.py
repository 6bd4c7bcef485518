"""When a task starts its stream worker again."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.operators import stream_inference
from airflow_provider_llmbeam.operators.stream_inference import StreamInferenceOperator

PUBSUB = {"type": "pubsub", "subscription": "projects/p/subscriptions/s"}
STORE = {"type": "postgres", "table": "answers"}
DLP = {"type": "dlp", "location": "europe-west1", "project": "my-project"}


class Clock:
    """A clock that `sleep` moves."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def run(monkeypatch):
    """Returns a function that runs a task whose workers end as given, each after some seconds."""
    clock = Clock()
    monkeypatch.setattr(stream_inference, "time", clock)
    monkeypatch.setattr(StreamInferenceOperator, "_job", lambda task, context: None)

    def run(*ends, seconds=1.0, is_killed=False, **arguments):
        task, left, given = make(**arguments), [*ends], []

        def run_step(name, asked, job, context, **_):
            given.append(asked)
            clock.now += seconds
            if is_killed:
                task.on_kill()
            if isinstance(end := left.pop(0), Exception):
                raise end
            return end

        monkeypatch.setattr(task, "_run_step", run_step)
        return task.execute({"ti": SimpleNamespace()}), given

    return run


def make(**arguments):
    given = {
        "source": {"type": "kafka", "topic": "questions", "bootstrap_servers": "localhost:9092"},
        "prompt": "{{ row.text }}",
        "model": "echo",
        "sink": {"type": "kafka", "topic": "answers", "bootstrap_servers": "localhost:9092"},
        "state_uri": "state",
    }
    return StreamInferenceOperator(task_id="answer", **{**given, **arguments})


def test_a_worker_that_fails_is_started_again_for_the_rest_of_the_time(run):
    found, given = run(JobFailedError("killed"), {"committed": 3}, seconds=20.0, run_for=timedelta(minutes=1))
    assert found == {"committed": 3, "task_restarts": 1}
    assert [each.run_for_seconds for each in given] == [60.0, 39.0]  # and a second of pause


def test_a_worker_that_fails_too_often_fails_the_task_with_its_last_error(run):
    with pytest.raises(JobFailedError, match="third"):
        run(*map(JobFailedError, ("first", "second", "third")), max_restarts=2)


def test_ten_minutes_of_work_end_a_succession_of_failures(run):
    failures = map(JobFailedError, ("first", "second", "third"))
    assert run(*failures, {}, seconds=601.0, max_restarts=1)[0] == {"task_restarts": 3}


def test_a_worker_that_ends_with_its_task_is_not_started_again(run):
    with pytest.raises(JobFailedError):
        run(JobFailedError("interrupted"), {}, is_killed=True)


def test_a_job_that_cannot_be_a_stream_is_not_tried_again(run):
    with pytest.raises(AirflowFailException, match="there is no topic"):
        run(JobSpecError("there is no topic"), {})


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"run_for": timedelta(0)}, "`run_for` must be more than 0"),
        ({"stream": {"commit_interval_ms": 0}}, "stream.commit_interval_ms"),
        (
            {"sinks": [{"type": "files", "uri": "out"}]},
            "`sinks`: must be of types 'milvus'",
        ),
        ({"source": {"uri": "in.csv", "key": "id"}}, "`source`: must be of type 'kafka' in a stream"),
        (
            {"conversation": {"key": "u", "order_by": "at"}},
            "`conversation.order_by`: must be left out of a stream",
        ),
        (
            {"safety": {"privacy": {"detectors": [DLP]}}},
            "`safety.privacy.detectors`: must have none of type 'dlp'",
        ),
        ({"source": PUBSUB}, "`sinks`: must be of types 'milvus'"),
        ({"source": PUBSUB, "sink": STORE, "conversation": {"key": "u"}}, "`conversation`: must be left out"),
        (
            {"source": PUBSUB, "sink": STORE, "stream": {"journal_topic": "j"}},
            "`stream.journal_topic`: must",
        ),
        (
            {"source": PUBSUB, "sink": STORE, "stream": {"dead_letter_topic": "d"}},
            "`stream.dead_letter_topic`: must be a topic of Pub/Sub",
        ),
        ({"safety": {"audit": {"uri": "gs://b/audit"}}}, "`safety.audit`: must be a directory of a disk"),
        ({"safety": {"audit": {"table": "my-project.d.t"}}}, "`safety.audit`: must be a directory of a disk"),
    ],
)
def test_a_literal_argument_that_is_invalid_fails_the_parsing_of_the_dag(arguments, fault):
    with pytest.raises(JobSpecError, match=fault):
        make(**arguments)


def test_further_sinks_are_part_of_the_job_and_a_template_is_checked_when_it_is_rendered():
    store = {"type": "postgres", "table": "answers", "conn_id": "{{ var.value.store }}"}
    task = make(sinks=[store], source={"type": "{{ var.value.queue }}"})
    assert "sinks" in task.template_fields
    assert task._spec_data("job", None)["sinks"] == [store]
