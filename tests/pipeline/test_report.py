"""The report and its page, of jobs with failures, 429s and earlier runs."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest
from google.cloud.storage import Client
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.transforms import write_report
from airflow_provider_llmbeam.spec import JobSpec

SECRET = "planted-secret-of-a-row"
GENERATE = "gemini.generateContent"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "a-key")


def rows(number):
    return [{"id": n, "text": f"row number {n}."} for n in range(number)]


def page_of(ended):
    return Path(ended.manifest["report_html_uri"]).read_text()


def test_a_run_with_failures_and_429s_is_described_in_full(job, sandbox, monkeypatch):
    monkeypatch.setenv("ROW_SECRET", SECRET)
    message = f"Row <b>3</b> has a fault; password={SECRET}"
    sandbox.faults.when(GENERATE, "number 3.", Fault(kind="error", http_status=400, message=message))
    sandbox.faults.queue(GENERATE, *[Fault(kind="rate-limit", retry_delay_seconds=0.05)] * 4)
    ended = job.run([*rows(50), "not a row", {"text": f"no key, {SECRET}"}])
    report, page = ended.report, page_of(ended)
    assert report["version"] == 2

    series = report["series"]
    assert sum(series["answers"]) == report["origins"]["fresh"] == 49
    assert sum(series["rejections"]) == report["requests"]["rejected"] == 4
    assert sum(series["failed"]) == 1, "rows that were not sent have no time"
    assert sum(series["input_tokens"]) == report["tokens"]["input"]
    assert sum(series["cost_usd"]) == pytest.approx(report["cost_usd"], abs=1e-5)
    assert series.pop("gpu_busy") == [], "of a model server of others"
    assert len({len(values) for values in series.values() if isinstance(values, list)}) == 1

    failed = report["samples"]["failed"]
    assert {kind: len(found) for kind, found in failed.items()} == report["dead_letter_by_kind"]
    (refused,) = failed["bad_request"]
    assert json.loads(refused["row"]) == {"id": 3, "text": "row number 3."}
    assert refused["message"].startswith("Row <b>3</b> has a fault")
    assert len(report["samples"]["answers"]) == 5
    assert report["answers"]["models"] == {report["samples"]["answers"][0]["model"]: 49}
    assert report["costs_usd"] == {"standard": report["cost_usd"]}
    assert report["comparison"] is None

    assert "3 of 52 rows failed" in page
    assert "Row &lt;b&gt;3&lt;/b&gt; has a fault" in page
    assert SECRET not in page
    assert SECRET not in json.dumps(report)
    assert stat.S_IMODE(Path(ended.manifest["report_html_uri"]).stat().st_mode) == 0o600


def test_the_next_night_is_compared_with_this_one(echo_job, caplog):
    caplog.set_level(logging.INFO)
    state = {"owner": "dag.task", "state_uri": str(echo_job.directory / "state")}
    first = echo_job.run(rows(40), name="night-1", **state)
    assert first.manifest["changes"] == []
    second = echo_job.run(
        rows(40),
        name="night-2",
        **state,
        sink={"uri": f"{echo_job.out}-2"},
        prompt={"template": "{{ row.text }}!"},
    )
    assert second.manifest["changes"][0] == "`prompt.template` changed"
    assert second.report["comparison"]["last_run"] == "night-1"
    assert "`prompt.template` changed" in page_of(second)
    assert [record.message for record in caplog.records if record.message.startswith("Compared with")] == [
        f"Compared with the last run, until {_minute(first)} UTC: {'; '.join(second.manifest['changes'])}."
    ]
    again = echo_job.run(rows(40), name="night-2", **state, sink={"uri": f"{echo_job.out}-2"})
    assert again.report["comparison"]["runs"] == 1, "a run is not compared with its own first try"


def _minute(ended):
    from datetime import UTC, datetime

    return datetime.fromtimestamp(ended.report["finished_at"], UTC).strftime("%Y-%m-%d %H:%M")


def test_a_run_that_answers_nothing_new_has_a_report(echo_job):
    echo_job.run(rows(10))
    ended = echo_job.run(rows(10))
    assert ended.report["series"] is None
    assert ended.report["origins"]["resumed"] == 10
    assert len(ended.report["samples"]["answers"]) == 5
    assert "All 10 rows answered" in page_of(ended)


def test_labels_of_structured_answers_are_counted(openai_job):
    schema = {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]}
    ended = openai_job.run(rows(30), prompt={"template": "{{ row.text }}", "output_schema": schema})
    labels = ended.report["answers"]["labels"]["kind"]
    assert sum(labels.values()) == 30
    assert labels.keys() <= {"a", "b"}
    assert "Labels: <bdi>kind</bdi>" in page_of(ended)


def test_a_page_on_cloud_storage_has_the_type_of_a_page(google, sandbox, tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows(5)))
    manifest = run(
        JobSpec.parse(
            {
                "name": "job",
                "source": {"uri": str(source), "key": ["id"]},
                "prompt": {"template": "{{ row.text }}"},
                "model": {"type": "echo"},
                "sink": {"uri": "gs://rows/out"},
            }
        )
    )
    assert manifest["report_html_uri"] == "gs://rows/out/report.html"
    blob = Client().bucket("rows").get_blob("out/report.html")
    assert blob.content_type == "text/html; charset=utf-8"
    assert blob.download_as_text().startswith("<!doctype html>")


def test_a_page_that_cannot_be_rendered_does_not_fail_the_job(echo_job, monkeypatch, caplog):
    def fails(report):
        raise ZeroDivisionError

    monkeypatch.setattr(write_report, "render_page", fails)
    ended = echo_job.run(rows(3))
    assert ended.manifest["report_html_uri"] is None
    assert ended.report["rows"]["answered"] == 3
    assert "could not be rendered as a page" in caplog.text
