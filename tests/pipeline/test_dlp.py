"""Rows whose texts Sensitive Data Protection inspects: hostile texts, its limits, its quota and its refusals."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import Any

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.exceptions import JobRefusedError
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.pipeline.privacy.dlp import steps, table
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import trust_in_aiohttp
from tests.leaks import CopyingModel
from tests.pipeline.private_jobs import job_of, leaks

METHOD = "dlp.content.inspect"
#: Values that only a service finds, after characters of two to four bytes and of several code points.
PLANTED = (
    "Zoë Müller",
    "zoe@example.com",
    "李雷",
    "Müllerstraße 12",
    "Ольга Иванова",
    "987-65-4321",
    "+49 30 9018207",
)
ROWS: list[Any] = [
    {"id": 1, "text": "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301: Zoë Müller wrote 📧 to zoe@example.com ✅"},
    {"id": 2, "text": "\u202eشكرا\u202c 𝔘𝔫𝔦: 李雷 wohnt in der Müllerstraße 12, 東京"},
    {"id": 3, "text": "nothing", "ssn": "987-65-4321", "more": {"note": ["🎉 Ольга Иванова"]}},
    {"id": 4, "text": "nothing"},
    {"id": "🎉 zoe@example.com", "text": '\ud83d half, "quotes" and \\ then +49 30 9018207'},
    {"id": 6, "txt": "of Zoë Müller"},
    "Zoë Müller is no row",
]


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "the secret of the tests")


@pytest.fixture
def dlp(sandbox, google, monkeypatch):
    """The emulated service, at the address of the real one."""
    trust_in_aiohttp(google, monkeypatch)
    return sandbox.dlp


def detector(project: str, **fields: Any) -> dict[str, Any]:
    return {"detectors": [{"type": "dlp", "project": project, **fields}]}


def test_values_after_emoji_and_in_several_scripts_are_masked_everywhere_and_restored(dlp, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    with CopyingModel() as model:
        job = job_of(tmp_path, model, **detector("p-hostile"))
        prompt = {"template": "{{ row.text }}{{ row.ssn | default('') }}{{ row.more | default('') }}"}
        ended, logged = job.run(ROWS, prompt=prompt), caplog.text
        billed = sum(request.text_bytes for request in dlp.inspected)
        again = job.run(prompt=prompt)
        # Five prompts: row 6 has no text, and the last line is no row.
        assert len(model.received) == 5
        received = b"".join(each.body for each in model.received).decode()
    planted = {*PLANTED, *(json.dumps(value)[1:-1] for value in PLANTED)}
    assert [value for value in planted if value in received] == []
    assert leaks(tmp_path, planted, job.source) == []
    assert [value for value in planted if value in logged] == []
    answers = {row["id"]: row["answer"] for row in ended.answers}
    assert answers[1] == ROWS[0]["text"]
    assert answers[2] == ROWS[1]["text"]
    assert "987-65-4321" in answers[3]
    assert "🎉 Ольга Иванова" in answers[3]
    assert "+49 30 9018207" in answers["🎉 zoe@example.com"]
    assert ended.kinds == Counter(template_error=1, unreadable_row=1)
    privacy = ended.report["privacy"]
    assert privacy["masked"] == {
        "EMAIL": 2,
        "PERSON_NAME": 5,
        "PHONE": 1,
        "STREET_ADDRESS": 1,
        "US_SSN": 1,
    }
    texts = Counter(each for request in dlp.inspected for each in request.texts)
    assert ("text", "nothing") in texts
    assert set(texts.values()) == {1}, "each distinct text of a column is inspected once"
    assert {request.location for request in dlp.inspected} == {"global"}
    assert sum(request.text_bytes for request in dlp.inspected) == billed, "findings are kept, without the texts"
    assert again.report["privacy"] == privacy | {"inspection": None}
    assert privacy["inspection"]["bytes"] == billed
    assert privacy["inspection"]["requests"] == len(dlp.inspected)
    assert privacy["inspection"]["list_price_usd"] == pytest.approx(3 * billed / 2**30, abs=1e-6)


@pytest.mark.full
def test_many_rows_are_sent_within_the_limits_and_a_truncated_reply_is_asked_for_in_parts(
    dlp, sandbox, echo_job, monkeypatch
):
    monkeypatch.setattr(table, "MAX_BYTES", 20_000)
    monkeypatch.setattr(steps, "BATCH_TEXTS", 1_000)
    dlp.max_findings = 60
    rows = [{"id": number, "text": f"{'🎉' * (number % 40)} mail{number}@example.com"} for number in range(300)]
    privacy = {"columns": ["text"], **detector("p-limits", location="europe-west3")}
    ended = echo_job.run(rows, safety={"privacy": privacy})
    assert {row["id"]: row["answer"] for row in ended.answers} == {
        row["id"]: f"Say it: {row['text']}" for row in rows
    }
    requests = [record for record in sandbox.requests if record.method == METHOD]
    assert {record.http_status for record in requests} == {200}
    assert max(record.received_bytes for record in requests) <= 20_000
    whole = [request for request in dlp.inspected if not request.is_truncated]
    assert Counter(text for request in whole for text in request.texts) == Counter(
        ("text", row["text"]) for row in rows
    )
    assert 0 < len(dlp.inspected) - len(whole) <= 8
    assert ended.report["privacy"]["masked"] == {"EMAIL": 300}
    assert ended.report["privacy"]["inspection"]["bytes"] == sum(request.text_bytes for request in dlp.inspected)
    assert "inspected bytes" in (echo_job.out / "report.html").read_text()
    estimate = make_estimate(JobSpec.parse(echo_job.spec | {"safety": {"privacy": privacy}}))
    assert estimate.inspected_bytes == sum(len(row["text"].encode()) for row in rows)
    assert any(f"{estimate.inspected_bytes:,} bytes to inspect once, $0.0" in line for line in estimate.lines())
    assert len([record for record in sandbox.requests if record.method == METHOD]) == len(requests)


@pytest.mark.full
def test_429s_and_errors_of_the_service_are_retried_and_no_row_is_lost(dlp, sandbox, tmp_path):
    sandbox.faults.queue(METHOD, Fault(kind="rate-limit"), Fault(kind="error", http_status=503))
    with CopyingModel() as model:
        ended = job_of(tmp_path, model, **detector("p-quota")).run(ROWS[:4])
        assert len(model.received) == 3, "two rows have one prompt"
    statuses = Counter(record.http_status for record in sandbox.requests if record.method == METHOD)
    assert statuses[429] == statuses[503] == 1
    assert len(ended.answers) == 4


def test_an_api_that_is_not_enabled_ends_the_job_before_a_request_to_the_model(dlp, sandbox, tmp_path):
    dlp.disabled_projects.add("p-disabled")
    with CopyingModel() as model:
        job = job_of(tmp_path, model, **detector("p-disabled"))
        with pytest.raises(JobRefusedError, match=r"roles/dlp\.user on project 'p-disabled'") as caught:
            job.run(ROWS[:4])
        assert model.received == []
    assert "it is disabled" in str(caught.value)
    assert dlp.inspected == []


def test_texts_that_cannot_be_inspected_fail_their_rows_and_are_not_sent(dlp, sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr(table, "MAX_BYTES", 2_000)
    dlp.max_findings = 2
    rows = [
        {"id": 1, "text": "a" * 2_000},
        {"id": 2, "text": "a@b.de, c@d.de, e@f.de"},
        {"id": 3, "text": "a@b.de"},
    ]
    with CopyingModel() as model:
        ended = job_of(tmp_path, model, **detector("p-long")).run(rows)
        assert len(model.received) == 1
    messages = {row["id"]: row["llmbeam_error"]["message"] for row in ended.dead_letter}
    assert ended.kinds == Counter(personal_data=2)
    assert "does not fit into a request to Sensitive Data Protection" in messages[1]
    assert "has found more values in it than it returns" in messages[2]
    assert [row["answer"] for row in ended.answers] == ["Say it: a@b.de"]
