from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.reporting.comparison import compare
from airflow_provider_llmbeam.pipeline.reporting.history import (
    MAX_RUNS,
    History,
    RunSummary,
    add_to_history,
    history_uri,
    prompt_digest,
    read_history,
    run_of,
)


def summary(run: str = "r", finished_at: float = 1000.0, **changes: Any) -> RunSummary:
    fields: dict[str, Any] = {
        "run": run,
        "finished_at": finished_at,
        "model": "gemini:g",
        "prompt": "p",
        "rows": 1000,
        "failed": 10,
        "refused": 5,
        "empty": 0,
        "cost_usd": 1.5,
        "input_tokens": 1000,
        "output_tokens": 100,
        "duration_seconds": 60.0,
        "models": {"g-001": 990},
        "lengths": {40: 500, 44: 490},
        "labels": {"category": {"a": 500, "b": 490}},
    }
    return RunSummary(**fields | changes)


@pytest.fixture
def night(job, tmp_path):
    """Makes the spec of one night of a task, whose directories are its own but for the state."""

    def made(number: int, **changes: Any) -> Any:
        parts = {"name": f"dag.task.{number}", "owner": "dag.task", "state_uri": f"{tmp_path}/state/"}
        return job(**parts | {"sink": {"uri": f"{tmp_path}/out-{number}"}} | changes)

    return made


def test_the_nights_of_a_task_share_one_history(night) -> None:
    add_to_history(night(1), summary("dag.task.1"))
    add_to_history(night(2), summary("dag.task.2", 2000.0))
    assert [run.run for run in read_history(night(3)).runs] == ["dag.task.1", "dag.task.2"]
    assert read_history(night(3, owner="dag.other")) == History()


def test_a_files_sink_keeps_it_where_there_is_no_other_directory(job, tmp_path) -> None:
    spec = job(sink={"uri": f"{tmp_path}/out"})
    assert history_uri(spec).startswith(f"{tmp_path}/out/.llmbeam/history/")


def test_a_run_that_is_repeated_replaces_its_summary(night) -> None:
    for failed in (10, 20):
        add_to_history(night(1), summary("dag.task.1", failed=failed))
    (only,) = read_history(night(1)).runs
    assert only.failed == 20
    assert read_history(night(1)).without("dag.task.1") == ()


def test_runs_of_a_job_without_airflow_are_told_apart_by_their_start(night) -> None:
    assert run_of(night(1), 5.0) == "dag.task.1"
    assert run_of(night(1, owner=""), 5.0) == "dag.task.1 5"


def test_the_oldest_runs_are_dropped(night) -> None:
    for number in range(MAX_RUNS + 3):
        add_to_history(night(1), summary(str(number), float(number)))
    runs = read_history(night(1)).runs
    assert (len(runs), runs[0].run) == (MAX_RUNS, "3")


def test_only_its_owner_can_read_it(night) -> None:
    add_to_history(night(1), summary())
    path = Path(history_uri(night(1)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 1, "runs": [{"rows": -1}]}', b"\xff", b"[" * 10**5])
def test_a_file_that_is_no_history_is_begun_anew(night, content, caplog) -> None:
    uri = history_uri(night(1))
    storage.make_private(uri.rpartition("/")[0])
    storage.replace(uri, content)
    assert read_history(night(1)) == History()
    assert "starts again" in caplog.text
    add_to_history(night(1), summary())
    assert len(read_history(night(1)).runs) == 1


def test_a_history_that_cannot_be_written_does_not_fail_the_job(night, caplog) -> None:
    uri = history_uri(night(1))
    Path(uri).mkdir(parents=True)
    add_to_history(night(1), summary())
    assert "cannot be written" in caplog.text


def test_a_history_that_is_needed_and_cannot_be_read_is_an_error(night) -> None:
    uri = history_uri(night(1))
    Path(uri).mkdir(parents=True)
    assert read_history(night(1)) == History()
    with pytest.raises(JobFailedError, match="no answer was published") as raised:
        read_history(night(1), is_needed=True)
    assert repr(uri) in str(raised.value)


def test_runs_that_end_at_the_same_time_are_all_kept(night) -> None:
    def end(number: int) -> None:
        add_to_history(night(number), summary(str(number), float(number)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(end, range(16)))
    assert len(read_history(night(0)).runs) == 16


def test_runs_that_end_at_the_same_time_are_all_kept_on_cloud_storage_as_well(google, night, monkeypatch) -> None:
    spec = night(1, state_uri="gs://rows/state/")
    bucket, name = storage.cloud_object(history_uri(spec))
    is_first = True

    class Between:
        """The bucket; another run ends between reading and writing."""

        def blob(self, name: str) -> Any:
            blob = bucket.blob(name)

            def upload_later(*arguments: Any, **preconditions: Any) -> None:
                nonlocal is_first
                if is_first:
                    is_first = False
                    add_to_history(spec, summary("other", 500.0))
                blob.__class__.upload_from_string(blob, *arguments, **preconditions)

            blob.upload_from_string = upload_later
            return blob

    monkeypatch.setattr(storage, "cloud_object", lambda uri: (Between() if is_first else bucket, name))
    add_to_history(spec, summary("mine"))
    assert [run.run for run in read_history(spec).runs] == ["other", "mine"]


def test_the_digest_is_that_of_the_prompt_and_not_of_its_rows(night) -> None:
    assert prompt_digest(night(1)) == prompt_digest(night(2))
    other = night(1, prompt={"template": "Another one: {{ row.text }}"})
    assert prompt_digest(other) != prompt_digest(night(1))


def test_the_first_run_is_compared_with_none() -> None:
    assert compare(summary(), ()) is None


def test_a_run_like_the_others_has_nothing_notable() -> None:
    found = compare(summary("now", 2000.0), (summary("a"), summary("b", 1500.0)))
    assert found.changes == []
    assert (found.runs, found.last_run) == (2, "b")
    assert found.lengths_psi == 0
    assert found.line == "Compared with the last 2 runs, until 1970-01-01 00:25 UTC: nothing notable has changed."
    assert found.figures["failed_ratio"].model_dump() == {"now": 0.01, "last": 0.01, "mean": 0.01}


def test_what_has_changed_is_said_in_sentences() -> None:
    now = summary(
        "now",
        model="gemini:h",
        prompt="q",
        failed=200,
        refused=150,
        models={"h-001": 800},
        lengths={200: 800},
        labels={"category": {"a": 100, "c": 700}},
    )
    found = compare(now, (summary("a"),))
    assert found.changes == [
        "the model was 'gemini:g' before",
        "the prompt or its parameters have changed",
        "model version 'h-001' is new",
        "20.0% of the rows failed, 1.0% before",
        "15.0% of the answers were refused, 0.5% before",
        f"the lengths of the answers differ (PSI {found.lengths_psi:.2f})",
        f"the labels of 'category' differ (PSI {found.labels[0].psi:.2f})",
    ]
    assert found.failed_ratio_difference == 0.19
    assert found.line.startswith("Compared with the last run, until 1970-01-01 00:16 UTC: the model was ")


def test_only_the_last_seven_runs_count() -> None:
    old = tuple(summary(str(number), labels={"category": {"z": 990}}) for number in range(5))
    found = compare(summary("now"), (*old, *(summary(f"new {number}") for number in range(7))))
    assert found.runs == 7
    assert found.changes == []


def test_a_run_without_rows_or_prices_is_compared_as_far_as_it_goes() -> None:
    nothing = summary("now", rows=0, failed=0, refused=0, cost_usd=None, models={}, lengths={}, labels={})
    found = compare(nothing, (nothing, summary("a")))
    assert found.figures["failed_ratio"].now is None
    assert found.figures["cost_usd"].model_dump() == {"now": None, "last": 1.5, "mean": 1.5}
    assert found.lengths_psi is None
