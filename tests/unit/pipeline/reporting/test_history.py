from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline import storage
from airflow_provider_llmbeam.pipeline.reporting.history import (
    MAX_RUNS,
    History,
    RunSummary,
    add_to_history,
    history_uri,
    known_rows_line,
    part_digests,
    read_history,
    run_of,
)
from airflow_provider_llmbeam.spec.protocol.counts import Counts


def summary(run: str = "r", finished_at: float = 1000.0, **changes: Any) -> RunSummary:
    fields: dict[str, Any] = {
        "run": run,
        "finished_at": finished_at,
        "model": "gemini:g",
        "parts": {"prompt.template": "p"},
        "rows": 1000,
        "failed": 10,
        "refused": 5,
        "empty": 0,
        "cost_usd": 1.5,
        "paid": 990,
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
    assert part_digests(night(1)) == part_digests(night(2))
    other = night(1, prompt={"template": "Another one: {{ row.text }}"})
    assert part_digests(other) != part_digests(night(1))


COUNTS = Counts(rows=50_000, resumed=12_300, requests=1)


def last_run(spec, **changes):
    model = f"{spec.model.type}:{spec.model.name}"
    return summary(**{"model": model, "cost_usd": 5.0, "paid": 50_000, "parts": part_digests(spec), **changes})


@pytest.fixture
def spec(job):
    return job(model={"type": "gemini"})


def test_the_rest_has_the_cost_of_the_last_runs_answers(spec):
    assert known_rows_line(spec, COUNTS, [last_run(spec)]) == (
        "12,300 of 50,000 rows are answered already; the other 37,700 are sent, for about $3.77 by the last run's "
        "cost of an answer."
    )


def test_rows_with_an_equal_prompt_and_those_without_any_cost_nothing(spec):
    """The cost was that of all rows: of a job whose rows have few prompts, many times what it paid."""
    counts = Counts(rows=10_000, resumed=500, duplicates=8_000, failed=500, requests=1)
    assert known_rows_line(spec, counts, [last_run(spec, cost_usd=1.0, paid=1000)]) == (
        "500 of 10,000 rows are answered already; the other 9,500 are sent as 1,000 prompts, for about $1.00 by "
        "the last run's cost of an answer."
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt": {"template": "Other: {{ row.text }}"}}, ": `prompt.template` changed since then."),
        (
            {"prompt": {"template": "Other: {{ row.text }}", "system": "Be brief."}, "generation": {"seed": 1}},
            ": `prompt.template`, `prompt.system` and `generation` changed since then.",
        ),
    ],
)
def test_what_changed_since_the_last_run_is_named(job, spec, changes, why):
    changed = job(model={"type": "gemini"}, **changes)
    line = known_rows_line(changed, COUNTS, [last_run(spec)])
    assert line.endswith(f"by the last run's cost of an answer{why}")


def test_another_model_has_no_cost_from_the_last_run(spec):
    assert known_rows_line(spec, COUNTS, [last_run(spec, model="openai:gpt-5-mini")]).endswith(
        "are sent, as the model was 'openai:gpt-5-mini' in the last run, whose answers are not used for "
        "'gemini:gemini-3.5-flash-lite'."
    )


def test_a_first_run_and_one_without_a_row_to_send_have_nothing_to_explain(spec):
    assert known_rows_line(spec, COUNTS, []) == "12,300 of 50,000 rows are answered already."
    all_known = Counts(rows=10, resumed=10, requests=1)
    assert known_rows_line(spec, all_known, [last_run(spec)]) == "10 of 10 rows are answered already."
