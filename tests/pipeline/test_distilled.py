"""A classifier that has learned from `model` answers first, for the price of an embedding or of nothing."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from llmbeam_sandbox import Latency, Sandbox
from llmbeam_sandbox.models.answers import answer_text
from llmbeam_sandbox.models.embedding.base import Separation
from llmbeam_sandbox.models.skill import RIGHT

from airflow_provider_llmbeam.pipeline.cascade.run import begin_cascade
from airflow_provider_llmbeam.pipeline.cascade.state import read_calibration
from airflow_provider_llmbeam.pipeline.transforms.reuse import journal_entries
from airflow_provider_llmbeam.spec import JobSpec
from tests.pipeline.conftest import Job
from tests.pipeline.test_cascade import (
    EMBEDDING,
    MAX_IN_FLIGHT,
    ROWS,
    SCHEMA,
    agreement,
    by_model,
    kill_when,
    limits,
    make,
    models,
    paid,
    text,
)
from tests.pipeline.test_no_answer_is_paid_for_twice import content

VECTORS = {name: Separation(schema=SCHEMA, degree=degree) for name, degree in EMBEDDING.items()}


@pytest.fixture(scope="module")
def separating():
    with Sandbox(models=models(separations=VECTORS)) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(separating):
    separating.reset()
    return separating


def distilled(sandbox: Sandbox, name: str = "near", **fields: Any) -> dict[str, Any]:
    model = {"type": "openai", "name": name, "base_url": sandbox.openai_url}
    return {
        "type": "distilled",
        "embedding": {"model": model, "dimensions": 16},
        "prompt": "{{ row.text }}",
        "limits": limits(name),
        "max_labels": 0,
        **fields,
    }


def label(text: str) -> str:
    found: str = json.loads(answer_text(text, model=RIGHT, schema=SCHEMA).text)["label"]
    return found


def vector(text: str, noise: float = 0.3) -> list[float]:
    source = random.Random(text)
    return [(each == label(text)) + noise * source.gauss(0, 1) for each in "ab"]


@pytest.mark.promise(4)
def test_a_classifier_on_embeddings_keeps_rows_and_each_vector_is_paid_once(tmp_path, sandbox):
    job = make(tmp_path, sandbox, stages=[distilled(sandbox)])
    ended = job.run()
    report = ended.report["cascade"]
    assert [each["name"] for each in report["stages"]] == ["distilled near", "large"]
    assert agreement(ended.answers) >= 0.85
    assert report["stages"][0]["answered"] > 300
    assert by_model(sandbox)["large"] < 250
    assert set(paid(sandbox).values()) == {1}, "nothing is paid twice"
    facts = report["stages"][0]["distilled"]
    assert facts["learning_curve"][-1]["agreement"] > 0.8
    assert sum(each["draws"] for each in facts["confusion"]) == 100, "the draws that test"
    sent = len(sandbox.requests)
    again = job.run()
    assert len(sandbox.requests) == sent
    assert content(again.answers) == content(ended.answers)


@pytest.mark.parametrize("kind", ["column", "tfidf"])
def test_vectors_of_a_column_and_hashed_words_are_free(tmp_path, sandbox, kind):
    rows = [
        {**row, "vector": vector(row["text"]), "hint": f"{label(row['text'])} word {row['id'] % 7}"}
        for row in ROWS
    ]
    embedding = {"type": "column", "column": "vector"} if kind == "column" else "tfidf"
    prompt = {} if kind == "column" else {"prompt": "{{ row.hint }}"}
    stages = [{"type": "distilled", "embedding": embedding, "max_labels": 0, **prompt}]
    job = make(tmp_path, sandbox, stages=stages)
    began = int(time.time())
    ended = job.run(rows)
    report = ended.report["cascade"]
    assert agreement(ended.answers) >= 0.85
    assert report["stages"][0]["answered"] > 300
    assert report["stages"][0]["requests"] == 0
    assert report["stages"][0]["cost_usd"] == 0
    assert set(by_model(sandbox)) == {"large"}
    assert ended.report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    page = Path(ended.manifest["report_html_uri"]).read_text()
    assert "Draws that the classifier has not seen" in page
    assert ended.report["series"]["started_at"] >= began, "free answers have a time, too"
    fit = report["stages"][0]["distilled"]["fit_uri"]
    sent = len(sandbox.requests)
    alone = job.run(
        [*rows, {"id": 10_000, "text": "", "hint": "", "vector": "[1]"}],
        name="alone",
        cascade=None,
        model={"type": "distilled", "fit": fit},
        prompt={
            "template": "{{ row.vector | tojson }}" if kind == "column" else "{{ row.hint }}",
            "output_schema": SCHEMA,
        },
        limits={"price": None},
        sink={"uri": str(tmp_path / "alone")},
    )
    assert len(sandbox.requests) == sent, "no model is asked"
    assert agreement([each for each in alone.answers if each["id"] != 10_000]) >= 0.85
    if kind == "column":
        (failed,) = alone.dead_letter
        assert failed["llmbeam_error"]["message"].startswith("the prompt must be a list of 2 numbers")


def test_vectors_that_say_nothing_leave_every_row_to_model(tmp_path, sandbox):
    ended = make(tmp_path, sandbox, stages=[distilled(sandbox, "far")], target_agreement=0.95).run()
    answered = Counter(row["llmbeam_answered_by"] for row in ended.answers)
    assert answered["large"] > 0.85 * len(ROWS)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[: len(content) // 2], "EOF"),
        (lambda content: content.replace(b'"intercepts":[', b'"intercepts":[0.0,'), "are not 2 rows"),
        (lambda content: content.replace(b'"intercepts":[', b'"intercepts":[NaN,'), "finite number"),
        (lambda content: content.replace(b'"size":16', b'"size": 16'), "not the one that was tested"),
    ],
    ids=["cut", "shape", "nan", "other"],
)
def test_a_damaged_fit_leaves_every_row_to_model_with_one_sentence(tmp_path, sandbox, damage, reason):
    job = make(tmp_path, sandbox, stages=[distilled(sandbox)])
    first = job.run()
    path = Path(first.report["cascade"]["stages"][0]["distilled"]["fit_uri"])
    path.write_bytes(damage(path.read_bytes()))
    later = job.run(name="tuesday", sink={"uri": str(job.out), "on_existing": "take_over"})
    assert {row["llmbeam_answered_by"] for row in later.answers} == {"large"}
    said = later.report["cascade"]["reason"]
    assert said.startswith("the fit is damaged: ")
    assert reason in said
    assert "to learn it again, delete" in said


def test_rows_that_drift_make_the_next_run_learn_again(tmp_path, sandbox, caplog):
    stages = [{"type": "distilled", "embedding": {"type": "column", "column": "vector"}, "max_labels": 0}]
    job = make(tmp_path, sandbox, stages=stages, target_agreement=0.95)
    rows = [{**row, "vector": vector(row["text"], noise=0.5)} for row in ROWS]
    first = job.run(rows)
    kept = first.report["cascade"]["stages"][0]["answered"]
    assert kept > 100
    drifted = [{**row, "id": row["id"] + 1000, "text": f"new {row['text']}", "vector": [0.5, 0.5]} for row in ROWS]
    later = {"sink": {"uri": str(job.out), "on_existing": "take_over"}}
    second = job.run(drifted, name="tuesday", **later)
    assert second.report["cascade"]["stages"][0]["distilled"]["has_drifted"]
    third = job.run(drifted, name="wednesday", **later)
    assert third.report["cascade"]["is_guaranteed"], "it has a sample of these rows"
    assert "distilled column kept another share of the rows" in caplog.text


def test_more_labels_are_asked_for_while_they_pay(tmp_path, sandbox):
    source = random.Random(0)
    rows: list[dict[str, Any]] = []
    for number in range(4000):
        useless = [source.gauss(0, 1) for _ in range(40)]
        rows.append({"id": number, "text": text(number), "vector": [*vector(text(number), 0.2), *useless]})
    stages = [{"type": "distilled", "embedding": {"type": "column", "column": "vector"}, "max_labels": 1000}]
    ended = make(tmp_path, sandbox, stages=stages, target_agreement=0.9).run(rows)
    curve = ended.report["cascade"]["stages"][0]["distilled"]["learning_curve"]
    assert len(curve) > 3
    assert ended.report["cascade"]["draws"] == 200, "the draws that test are as many as before"
    assert curve[-1]["labels"] <= 1100


def test_examples_of_disagreements_are_masked_where_rows_are(tmp_path, sandbox, monkeypatch):
    monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", "a secret of more than thirty-two characters")
    job = make(tmp_path, sandbox, stages=[distilled(sandbox, "half")])
    rows = [{**row, "text": f"mail{row['id']}@example.com\n{row['text']}"} for row in ROWS]
    ended = job.run(rows, safety={"privacy": {}})
    facts = ended.report["cascade"]["stages"][0]["distilled"]
    assert 0 < len(facts["uncertain"]) <= 10
    assert 0 < len(facts["confident"]) <= 10
    assert "@example.com" not in json.dumps(ended.report)


@pytest.mark.promise(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("vectors of the sample", marks=pytest.mark.full),
        "fit",
        pytest.param("vectors of the rows", marks=pytest.mark.full),
        pytest.param("rows are classified", marks=pytest.mark.full),
    ],
)
def test_a_job_killed_with_kill_9_while_it_learns_or_answers_pays_for_nothing_twice(tmp_path, phase):
    with Sandbox(models=models(separations=VECTORS, latency=Latency(mean_seconds=0.01))) as sandbox:
        undisturbed = make(tmp_path / "undisturbed", sandbox, stages=[distilled(sandbox, "half")])
        begin_cascade(JobSpec.parse(undisturbed.spec), lambda: beam.Pipeline(runner=FnApiRunner()))
        sampled, sample_usd = by_model(sandbox), sandbox.token_bill.nano_usd / 1e9
        expected = content(undisturbed.run().answers)
        whole, usd = by_model(sandbox), sandbox.token_bill.nano_usd / 1e9
        model, share = {
            "vectors of the sample": ("half", 0.5 * sampled["half"]),
            "fit": ("large", sampled["large"]),
            "vectors of the rows": ("half", fmean([sampled["half"], whole["half"]])),
            "rows are classified": ("large", fmean([sampled["large"], whole["large"]])),
        }[phase]
        sandbox.reset()
        job = make(tmp_path / "killed", sandbox, stages=[distilled(sandbox, "half")])
        kill_when(lambda: by_model(sandbox)[model] >= share, phase, job)
        is_calibrated = read_calibration(JobSpec.parse(job.spec)) is not None
        assert is_calibrated == (phase not in {"vectors of the sample", "fit"})
        before = journal_usd(job)
        ended = job.run()
        assert content(ended.answers) == expected
        sent = paid(sandbox)
        assert Counter(name for name, _ in sent) == whole
        assert sent.total() - len(sent) <= MAX_IN_FLIGHT
        assert journal_usd(job) == pytest.approx(usd, abs=1e-6), "each answer once"
        # The calibration of an earlier try is in the report of the one that publishes.
        by_this_try = usd - before + (sample_usd if is_calibrated else 0)
        assert ended.report["cost_usd"] == pytest.approx(by_this_try, abs=1e-6)


def journal_usd(job: Job) -> float:
    entries = journal_entries(JobSpec.parse(job.spec), 0)
    cost = {each.fingerprint: each.outcome.cost_nano_usd or 0 for each in entries}
    return sum(cost.values()) / 1e9
