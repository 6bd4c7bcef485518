"""The pages of an estimate, an evaluation and a comparison: their figures, and what others wrote as text."""

from __future__ import annotations

import base64
import gzip
import re
from typing import Any

import pytest
from pydantic import BaseModel

from airflow_provider_llmbeam.pipeline.measure import pages
from airflow_provider_llmbeam.pipeline.measure.compare import ComparisonReport, DifferingAnswers, Side, Verdicts
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import Estimate, SampleUsage
from airflow_provider_llmbeam.pipeline.measure.evaluate import EvaluationReport, WrongAnswer
from airflow_provider_llmbeam.pipeline.measure.metrics import LabelScore, Score
from airflow_provider_llmbeam.pipeline.measure.pages import page_of
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.safety.audit import AirflowRun
from tests.unit.pipeline.reporting.test_page import HOSTILE, tags_of

SCORE = Score(score=0.9, low=0.85, high=0.95, rows=40)


def evaluation(text: str = "text", **changes: Any) -> EvaluationReport:
    label = LabelScore(precision=0.5, recall=0.25, f1=0.333, rows=4)
    wrong = WrongAnswer(
        key=text, answer={text: text}, marks={text: 0.0}, expected={text: text}, notes={text: text}
    )
    refused = WrongAnswer(key=text, answer=None, failure=text, marks={text: 0.5})
    fields: dict[str, Any] = {
        "name": "nightly",
        "model": text,
        "made_at": 1000.0,
        "golden": "d",
        "rows": 40,
        "unanswered": 1,
        "scores": {text: SCORE.model_copy(update={"labels": {text: label}})},
        "faults": [text],
        "on_failure": "fail",
        "accepted_at": None,
        "requests": 39,
        "cost_usd": 1.25,
        "judge_cost_usd": 0.0,
        "usd_per_thousand_rows": 2.5,
        "wrong": [wrong, refused],
        "wrong_count": 4,
    }
    return EvaluationReport(**fields | changes)


def comparison(text: str = "text", **changes: Any) -> ComparisonReport:
    side = Side(
        model=text,
        template=text,
        answered=39,
        failed={text: 1},
        usd_per_thousand_rows=2.0,
        cost_usd=0.5,
        output_tokens_per_row=7.0,
        latency_p50_seconds=0.4,
        latency_p95_seconds=None,
    )
    verdicts = Verdicts(job=1, other=2, tie=3, inconsistent=4, equal=5, preference=None)
    different = DifferingAnswers(key=text, job=text, other=[text], verdict="other", reason=text)
    fields: dict[str, Any] = {
        "name": "nightly",
        "made_at": 1000.0,
        "job": side,
        "other": side.model_copy(update={"template": f"{text}!"}),
        "rows": 40,
        "read": 1000,
        "is_partial": True,
        "both_answered": 39,
        "agreement": {"answer": SCORE, text: SCORE},
        "verdicts": verdicts,
        "judge_cost_usd": 0.1,
        "requests": 80,
        "differences": [different],
        "difference_count": 4,
    }
    return ComparisonReport(**fields | changes)


def estimate(text: str = "text", **changes: Any) -> Estimate:
    fields: dict[str, Any] = {
        "name": "nightly",
        "model": text,
        "made_at": 1000.0,
        "rows": 12_345,
        "requests": 12_000,
        "duplicates": 300,
        "resumed": 40,
        "failed": 5,
        "is_sampled": True,
        "input_tokens": 2_000_000,
        "output_tokens": 500_000,
        "output_is_upper_bound": False,
        "error_ratio": 0.04,
        "cost_usd": 3.5,
        "cost_usd_range": (3.0, 4.0),
        "exceeds_budget": True,
        "duration_seconds": 5400.0,
        "limited_by": "requests_per_minute",
        "latency_seconds": 1.0,
        "sample_usage": SampleUsage(requests=32, failed=0, input_tokens=9, output_tokens=9, cost_usd=0.01),
        "price": None,
        "demand": Demand(rows=1, input_tokens_per_row=1.0),
    }
    return Estimate(**fields | changes)


REPORTS: dict[str, Any] = {"evaluation": evaluation, "comparison": comparison, "estimate": estimate}


def html_of(name: str, spec: JobSpec, found: BaseModel, text: str = "text") -> str:
    words = {"lines": [text], "budget_usd": 2.0} if name == "estimate" else {}
    page = page_of(name, spec, found, "gs://b/file", **words)
    assert page is not None
    assert page["uri"] == "gs://b/file"
    return gzip.decompress(base64.b64decode(page["html_gzip"])).decode()


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL).split())


@pytest.fixture
def spec(job: Any) -> JobSpec:
    run = AirflowRun(dag_id="nightly", task_id="gate", run_id="manual__1")
    found: JobSpec = job().model_copy(update={"airflow_run": run})
    return found


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in HOSTILE.items() if name != "surrogate"]
)
def test_a_hostile_text_is_shown_and_adds_no_tag(name: str, text: str, spec: JobSpec) -> None:
    harmless, hostile = (tags_of(html_of(name, spec, REPORTS[name](each), each)) for each in ("harmless", text))
    assert hostile.found == harmless.found
    assert hostile.attributes == harmless.attributes
    assert not {"script", "img", "link", "iframe", "a", "form"} & hostile.found


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_named_after_its_task_and_fetches_nothing(name: str, spec: JobSpec) -> None:
    written = html_of(name, spec, REPORTS[name]())
    assert "<h1><bdi>nightly · gate · manual__1</bdi></h1>" in written
    assert "default-src 'none'" in written
    assert not re.search(r"https?://|url\(|@import", written)
    assert written.count('class="card"') % 3 == 0, "complete rows"


@pytest.mark.parametrize("name", REPORTS)
def test_no_secret_of_the_job_is_in_a_page(name: str, spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "known_secrets", lambda _: ("planted-in-an-answer",))
    assert "planted-in-an-answer" not in html_of(
        name, spec, REPORTS[name]("planted-in-an-answer"), "planted-in-an-answer"
    )


def test_an_evaluation_shows_its_scores_with_intervals_and_its_wrong_answers(spec: JobSpec) -> None:
    words = words_of(html_of("evaluation", spec, evaluation("mood")))
    for expected in (
        "Not passed",
        "mood 0.900 0.850 to 0.950 40",
        "Wrong answers 4 10.0% of the rows",
        "2 of 4, those with the lowest marks",
        "expected mood",
        "mood : 0.50",
        "$1.25",
    ):
        assert expected in words
    assert "Passed" in words_of(html_of("evaluation", spec, evaluation(faults=[], wrong=[], wrong_count=0)))


def test_a_comparison_shows_the_agreement_and_the_rows_that_differ(spec: JobSpec) -> None:
    words = words_of(html_of("comparison", spec, comparison("mood")))
    for expected in (
        "Equal answers 90.0% 85.0% to 95.0%",
        "Different answers 4 of 40 rows",
        "job mood 39 1 $2.00 7 400 ms –",
        "the other is better 2",
        "Other prompt mood!",
    ):
        assert expected in words
    assert "Both have answered no row." in words_of(html_of("comparison", spec, comparison(agreement={})))


def test_an_estimate_shows_rows_tokens_cost_and_hours(spec: JobSpec) -> None:
    words = words_of(html_of("estimate", spec, estimate(), "in detail"))
    for expected in (
        "More than the budget",
        "Rows 12,345 12,000 to be asked",
        "Cost $3.50 about , budget $2.00",
        "Time 1 h 30 min",
        "Tokens in 2 M 2,000,000",
        "answered already 40",
        "in detail",
    ):
        assert expected in words
    assert "Time – " in words_of(html_of("estimate", spec, estimate(duration_seconds=None)))
    assert "Cost – price not known" in words_of(html_of("estimate", spec, estimate(cost_usd=None)))


def test_a_defect_of_the_page_does_not_fail_what_was_paid_for(
    spec: JobSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise RuntimeError("a defect")

    monkeypatch.setattr(pages, "render", fails)
    assert page_of("evaluation", spec, evaluation(), "gs://b/file") is None
    assert "could not be rendered as a page; 'gs://b/file' is complete" in caplog.text
