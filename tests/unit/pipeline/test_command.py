"""What a command says of an address or an option that does not fit it, and of a signal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_provider_llmbeam.pipeline import steps
from airflow_provider_llmbeam.pipeline.command import (
    EXIT_BAD_SPEC,
    EXIT_INTERRUPTED,
    EXIT_OK,
    Command,
    execute,
)
from airflow_provider_llmbeam.pipeline.launch.interruption import stopped_at_signal


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ({"when": "2026-11-03"}, "`--date`: the runs are those of a task, FILE::TASK; got"),
        ({"map_index": 0}, "`--map-index`: the runs are those of a task, FILE::TASK; got"),
        (
            {"step": "evaluate"},
            "`evaluate` needs a JSON file after the job, or a task that says what it asks for: ",
        ),
        ({"step": "forget", "given": {}}, "`keys`: needs the key of a row (`--key`), or the fingerprint"),
        (
            {"spec": "missing.json"},
            "'missing.json' cannot be read: No such file or directory. Expected the JSON of a spec, or a task,",
        ),
        ({"spec": "dag.py:classify", "step": "run"}, "`run` takes JOB.json; Airflow runs a task"),
        ({"spec": "dag.py", "step": "run"}, "`run` takes JOB.json; Airflow runs a task"),
    ],
)
def test_what_does_not_fit_a_command_is_one_sentence_and_nothing_is_sent(job, tmp_path: Path, command, sentence):
    spec = tmp_path / "job.json"
    spec.write_text(job(sink={"uri": str(tmp_path / "out")}).model_dump_json())
    code, outcome = execute(Command(**{"spec": str(spec), "step": "estimate", **command}))
    assert code == EXIT_BAD_SPEC
    assert outcome["error"]["message"].startswith(sentence)
    assert outcome["error"]["message"].endswith("Nothing was sent or billed.")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("step", "begins", "code"),
    [("stream", False, EXIT_OK), ("stream", True, EXIT_INTERRUPTED), ("estimate", False, EXIT_INTERRUPTED)],
)
def test_a_stream_worker_that_is_stopped_before_it_has_begun_ends_in_order(
    job, tmp_path, monkeypatch, step, begins, code
):
    def signalled(*_, **__):
        if begins:  # a worker that does not end within its grace
            with stopped_at_signal(lambda: None):
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it goes on")

    monkeypatch.setattr(steps, "run_step", signalled)
    spec = tmp_path / "job.json"
    spec.write_text(job().model_dump_json())
    assert execute(Command(spec=str(spec), step=step, given={})) == (code, {})
