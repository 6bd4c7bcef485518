"""`llmbeam preview` and `llmbeam diff` against the sandbox."""

from __future__ import annotations

import datetime
import json
import logging

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.cli import llmbeam
from tests.media_files import png

GEMINI = "gemini.generateContent"
ROWS = [{"id": number, "text": "word " * number} for number in range(1, 41)]


@pytest.fixture(autouse=True)
def _log_levels(monkeypatch):
    logs = [logging.getLogger(name) for name in ("llmbeam", "airflow_provider_llmbeam", "apache_beam")]
    levels = [(log, log.level, log.propagate) for log in logs]
    monkeypatch.setenv("GOOGLE_API_KEY", "k")
    yield
    for log, level, propagate in levels:
        log.setLevel(level)
        log.propagate = propagate


@pytest.fixture
def shell(job):
    """Runs a command with the spec of the job, or with changes of it; returns what it printed."""
    job.write(ROWS)

    def run(command, *options, exit_code=0, **changes):
        path = job.directory / f"{len(list(job.directory.glob('*.json')))}.json"
        path.write_text(json.dumps(job.spec | changes))
        ended = CliRunner(catch_exceptions=False).invoke(llmbeam, [command, *map(str, options), str(path)])
        assert ended.exit_code == exit_code, ended.output
        return ended.stdout

    return run


def keys(printed):
    return [json.loads(row["key"])["id"] for row in json.loads(printed)["rows"]]


def test_what_a_preview_has_paid_for_the_job_does_not_pay_again(job, shell, sandbox):
    shown = json.loads(shell("preview", "--json"))
    assert (shown["sent"], len(sandbox.requests)) == (3, 3)
    assert {row["origin"] for row in shown["rows"]} == {"fresh"}
    assert all(row["answer"] and row["cost_usd"] for row in shown["rows"])
    again = json.loads(shell("preview", "--json"))
    assert (again["sent"], again["cost_usd"], len(sandbox.requests)) == (0, 0.0, 3)
    assert {row["origin"] for row in again["rows"]} == {"known"}
    assert job.run().origins["resumed"] == 3
    assert len(sandbox.requests) == len(ROWS)


def test_rows_are_selected_at_random_by_length_or_by_key(shell, sandbox):
    first = keys(shell("preview", "--json", "--dry"))
    assert keys(shell("preview", "--json", "--dry")) == first
    assert keys(shell("preview", "--json", "--dry", "--seed", 1)) != first
    by_length = keys(shell("preview", "--json", "--dry", "--by", "length", "--rows", 4))
    assert by_length == sorted(by_length)
    assert by_length[0] <= 10
    assert by_length[-1] >= 30
    assert sorted(keys(shell("preview", "--json", "--dry", "--key", 7, "--key", 40))) == [7, 40]
    assert not sandbox.requests, "--dry sends nothing"


def test_a_key_of_several_columns_is_a_json_list(job, shell):
    source = {"uri": str(job.source), "key": ["id", "text"]}
    shown = shell("preview", "--json", "--dry", "--key", '[1,"word "]', source=source)
    assert keys(shown) == [1]


def test_a_date_in_a_key_of_several_columns_is_named_as_text(job, shell, tmp_path):
    days = [datetime.date(2026, 1, day) for day in (1, 2)]
    pq.write_table(pa.table({"id": [1, 1], "day": days, "text": ["a", "b"]}), tmp_path / "rows.parquet")
    source = {"uri": str(tmp_path / "rows.parquet"), "key": ["id", "day"]}
    shown = shell("preview", "--json", "--dry", "--key", '[1, "2026-01-02"]', source=source)
    assert [row["prompt"] for row in json.loads(shown)["rows"]] == ["Say it: b"]


def test_a_key_that_no_row_has_is_named_and_nothing_is_sent(shell, sandbox, caplog):
    shell("preview", "--key", 7, "--key", "nobody", exit_code=2)
    assert "no row has the key 'nobody'" in caplog.text
    assert not sandbox.requests


def test_a_failure_is_shown_beside_the_answers(shell, sandbox):
    sandbox.faults.when(GEMINI, "word word", Fault(kind="error", http_status=400, message="No words."))
    printed = shell("preview", "--key", 1, "--key", 2)
    assert "Failed   No words." in printed
    assert "Answer   " in printed


def test_a_diff_says_what_is_paid_for_again_and_sends_nothing(job, shell, sandbox):
    job.run()
    paid = len(sandbox.requests)
    old = job.directory / "old.json"
    old.write_text(json.dumps(job.spec))
    assert shell("diff", old).splitlines() == [
        "The specs are equal.",
        "40 of 40 rows are answered already; 0 requests would be sent. Nothing was sent now.",
    ]
    changed = shell("diff", old, prompt={"template": "Repeat: {{ row.text }}"}, batching={"max_batch_size": 8})
    assert "prompt.template (changes the prompts)" in changed
    assert "batching.max_batch_size (changes no answer)" in changed
    assert "0 of 40 rows are answered already; 40 requests would be sent, about $" in changed
    assert " by the tokens of the last run. Nothing was sent now." in changed
    assert "40 requests would be sent, at most $" in shell("diff", old, state_uri=f"{job.directory}/other")
    warmer = json.loads(shell("diff", "--json", old, generation={"temperature": 1.5}))
    assert [(change["field"], change["effect"]) for change in warmer["changes"]] == [
        ("generation.temperature", "answers")
    ]
    assert warmer["requests"] == 40
    assert len(sandbox.requests) == paid
    assert not list(job.directory.rglob("estimate.json")), "a diff is not the estimate of the job"
    assert shell("diff").startswith("The specs are equal."), "with the report of the last run"


def test_a_check_shows_what_would_be_asked_and_sends_nothing(job, shell, sandbox, caplog):
    caplog.set_level("INFO", "llmbeam")
    shown = shell("check", limits={"budget_usd": 1, "requests_per_minute": 600})
    assert "Limits    requests_per_minute 600.0, budget_usd 1.0\n" in shown
    assert "Rows      40 = 40 requests + 0 duplicate + 0 answered already + 0 for the dead letter" in shown
    assert "Prompt   Say it: word" in shown
    assert shown.endswith("\nNothing was sent or billed.\n")
    assert "Sample" not in shown
    assert caplog.text.count("Files of the source: ") == 1, "it is read once"
    found = json.loads(shell("check", "--json", "--key", "7", "--rows", "2"))
    assert ([row["origin"] for row in found["preview"]["rows"]], found["exceeds_budget"]) == (["not_sent"], False)
    assert "is exceeded: the job would fail before" in shell("check", exit_code=3, limits={"budget_usd": 1e-6})
    assert shell("check", exit_code=2, prompt="{{ row.no_such }}") == ""
    source = job.spec["source"]
    job.write([])
    assert shell("check", exit_code=99, source={**source, "on_empty": "skip"}) == "", "the task would be skipped"
    assert not sandbox.requests


def test_a_check_and_a_diff_count_refused_answers_as_failed_rows_with_the_reason(job, shell):
    """They said "41 answered already + 1 for the dead letter"."""
    texts = ['"a"'] * 3 + [f'"{number}"' for number in range(28)] + [f"no JSON {number}" for number in range(10)]
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    job.write([*rows, {"id": 41}])
    asked = {
        "model": {"type": "echo"},
        "prompt": {"template": "{{ row.text }}", "output_schema": {"type": "string"}, "max_repairs": 0},
        "limits": {"max_dead_letter_ratio": 1},
    }
    assert job.run(**asked).kinds == {"invalid_output": 10, "template_error": 1}
    shown = shell("check", **asked)
    assert "Rows      42 = 0 requests + 0 duplicate + 31 answered already + 11 for the dead letter" in shown
    assert 'Failed    1 template_error, e.g. {"id": 41}: ' in shown
    assert "Failed    10 invalid_output by an earlier run, e.g. " in shown
    counted = "31 of 42 rows are answered already, 11 are for the dead letter; 0 requests would be sent."
    assert counted in shell("diff", **asked)


def test_a_check_names_a_file_that_does_not_exist_with_the_key_of_its_row(job, shell):
    job.write([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}])
    (job.directory / "a.png").write_bytes(png(8, 8))
    media = [{"uri": f"{job.directory}/{{{{ row.text }}}}.png"}]
    shown = shell("check", prompt={"template": "Describe it.", "media": media})
    assert 'Failed    1 media_error, e.g. {"id": 2}: `prompt.media.0`: the file ' in shown


def test_an_estimate_is_printed_and_json_only_if_it_is_asked_for(shell, caplog):
    caplog.set_level("INFO", "llmbeam")
    over = shell("estimate", "--sample-size", "0", exit_code=3, limits={"budget_usd": 1e-6})
    assert over.startswith("Rows      40 = 40 requests + 0 duplicate + 0 answered already + 0 for the dead letter")
    assert "Sample" not in over
    assert "Sample    2 requests, " in shell("estimate", "--sample-size", "2")
    assert "Sample" not in shell("estimate", "--sample-size", "2"), "known answers are no requests"
    assert "Rows  " not in caplog.text
    assert json.loads(shell("estimate", "--json", "--sample-size", "2"))["exceeds_budget"] is False


def test_a_notebook_shows_a_preview_without_a_dag_run(job, sandbox, monkeypatch):
    from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator

    job.write(ROWS)
    value = {"conn_type": "llmbeam", "host": sandbox.gemini_url, "password": "secret-key"}
    monkeypatch.setenv("AIRFLOW_CONN_LLMBEAM_DEFAULT", json.dumps(value))
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    operator = RunInferenceOperator(
        task_id="ask",
        source=job.spec["source"],
        prompt="Say it: {{ row.text }}",
        model="gemini-2.5-flash",
        sink=str(job.out),
    )
    shown = operator.preview(2, by="length")
    assert shown.sent == 2
    assert "<table>" in shown._repr_html_()
    assert len(sandbox.requests) == 2
