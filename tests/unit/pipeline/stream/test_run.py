"""What a process of a stream opens."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline.stream import run
from airflow_provider_llmbeam.pipeline.stream.queue import KEPT
from airflow_provider_llmbeam.spec.sink import KafkaSink
from airflow_provider_llmbeam.spec.source import KafkaSource
from tests.stream_jobs import stream_job


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_processes_of_a_host_have_different_names_whatever_their_group_is_called(folder):
    with run._slot("team/a é") as first, run._slot("team/a é") as second:
        assert (first[-2:], second[-2:]) == ("-0", "-1")
    with run._slot("team/a é") as third:
        assert third == first


def test_a_lock_file_of_another_user_is_passed_over(folder, monkeypatch):
    opened = Path.open

    def open_own(path: Path, mode: str):
        if path.name == "g-0.lock":
            raise PermissionError(path)
        return opened(path, mode)

    monkeypatch.setattr(Path, "open", open_own)
    with run._slot("g") as name:
        assert name.endswith("-1")


def test_an_error_of_a_client_after_the_checks_says_that_answers_are_kept(monkeypatch):
    spec = stream_job()
    clients = []
    monkeypatch.setattr(run, "check_topics", lambda _, client, **__: clients.append(client) or 1000)
    monkeypatch.setattr(run, "JournalWriter", lambda *_: None)
    assert isinstance(spec.source, KafkaSource)
    assert isinstance(spec.sink, KafkaSink)
    run._open_kafka(spec, spec.source, spec.sink, ExitStack())
    assert clients[0].remains == KEPT
