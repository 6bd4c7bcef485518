"""Embedding jobs with `inference.mode` 'batch' against the emulated providers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llmbeam_sandbox import Fault
from llmbeam_sandbox.batch_inference.settings import BatchSettings

from airflow_provider_llmbeam.exceptions import BudgetExceededError
from airflow_provider_llmbeam.pipeline.batch_inference.run import PILOT_ROWS
from airflow_provider_llmbeam.pipeline.job import run
from airflow_provider_llmbeam.pipeline.measure.estimate.run import make_estimate
from airflow_provider_llmbeam.spec import JobSpec
from tests.clouds import trust_in_aiohttp
from tests.pipeline.test_batch_inference import report_of

pytestmark = [pytest.mark.promise(4), pytest.mark.usefixtures("quick_batch_polls")]

ROWS = 120
DIMENSIONS = 16
TOKENS = 1000
#: The sandbox has one price for all models.
PRICE = {"input_usd_per_million_tokens": 0.30, "output_usd_per_million_tokens": 2.50}


@pytest.fixture
def developer(sandbox, tmp_path):
    """An embedding job with a model of the Developer API."""
    rows = tmp_path / "in.jsonl"
    # Each has 4,000 bytes, a multiple of four: the estimate of their tokens, which the pilot records as the online
    # API tells none, is what the sandbox counts.
    rows.write_text("".join(json.dumps({"id": n, "text": f"row {n:04}" * 500}) + "\n" for n in range(ROWS)))
    return {
        "name": "night",
        "task": "embed",
        "embedding": {"dimensions": DIMENSIONS},
        "source": {"uri": str(rows), "key": ["id"]},
        "prompt": {"template": "{{ row.text }}"},
        "model": {"type": "gemini", "name": "gemini-embedding-001", "base_url": sandbox.gemini_url},
        "inference": {"mode": "batch"},
        "limits": {"price": PRICE},
        "sink": {"uri": f"{tmp_path}/out", "format": "jsonl"},
    }


@pytest.fixture(params=["developer", pytest.param("openai", marks=pytest.mark.full)])
def job(request, sandbox, monkeypatch):
    """An embedding job of each provider that has batch inference of embeddings."""
    developer = request.getfixturevalue("developer")
    if request.param == "developer":
        return developer
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    trust_in_aiohttp(request.getfixturevalue("google"), monkeypatch)
    return developer | {"model": {"type": "openai", "name": "text-embedding-3-small"}}


def vectors_of(manifest):
    answers = {}
    for uri in manifest["answers_uris"]:
        for row in map(json.loads, Path(uri).read_text().splitlines()):
            assert row["id"] not in answers
            answers[row["id"]] = row["answer"]
    return answers


def online(job, tmp_path):
    return job | {"inference": {}, "name": "day", "sink": {"uri": f"{tmp_path}/online", "format": "jsonl"}}


def test_every_row_has_the_vector_of_an_online_run_at_half_the_price_and_a_second_run_pays_nothing(
    job, sandbox, tmp_path
):
    manifest = run(JobSpec.parse(job))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["batch"] == ROWS - PILOT_ROWS
    charged = {charge.tier: charge.input_tokens for charge in sandbox.token_bill.charges}
    assert charged == {"batch": TOKENS * (ROWS - PILOT_ROWS), "standard": TOKENS * PILOT_ROWS}
    report = report_of(manifest)
    assert report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)
    half = sandbox.token_bill.by_tier()["batch"]
    found, bill = vectors_of(manifest), sandbox.token_bill.nano_usd
    assert run(JobSpec.parse(job))["origins"]["resumed"] == ROWS
    assert sandbox.token_bill.nano_usd == bill
    sandbox.reset()
    assert vectors_of(run(JobSpec.parse(online(job, tmp_path)))) == found
    assert {len(vector) for vector in found.values()} == {DIMENSIONS}
    per_row = sandbox.token_bill.nano_usd / ROWS
    assert half == pytest.approx(per_row / 2 * (ROWS - PILOT_ROWS))


@pytest.mark.full
def test_rows_that_the_batch_does_not_answer_are_sent_online(developer, sandbox, tmp_path):
    sandbox.batches.settings = BatchSettings(fail_ratio=0.1, malformed_ratio=0.05, missing_ratio=0.02)
    manifest = run(JobSpec.parse(developer))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    rest = ROWS - PILOT_ROWS - manifest["origins"]["batch"]
    assert manifest["origins"]["fresh"] == rest > 0.15 * (ROWS - PILOT_ROWS)
    assert vectors_of(manifest) == vectors_of(run(JobSpec.parse(online(developer, tmp_path))))


@pytest.mark.full
def test_a_vector_of_another_length_is_requested_again_online(developer, sandbox, monkeypatch):
    from llmbeam_sandbox.models.embedding import gemini

    def answer(self, call, answer, answer_id):
        return gemini.json_reply({"embedding": {"values": [0.5] * 3072}, "tokenCount": TOKENS})

    monkeypatch.setattr(gemini.RowDialect, "answer", answer)
    with pytest.raises(BudgetExceededError, match=r"88 unanswered rows would .* has 3072 dimensions"):
        run(JobSpec.parse(developer))
    manifest = run(JobSpec.parse({**developer, "limits": {**developer.get("limits", {}), "budget_usd": 1.0}}))
    assert manifest["rows"] == {"read": ROWS, "answered": ROWS, "dead_letter": 0, "skipped": 0}
    assert manifest["origins"]["batch"] == 0
    assert report_of(manifest)["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)


@pytest.mark.full
def test_a_vector_without_reported_tokens_costs_what_is_estimated(developer, sandbox, monkeypatch):
    from llmbeam_sandbox.models.embedding import gemini

    def answer(self, call, answer, answer_id):
        values = gemini.vector(call.texts[0], model=call.model, dimensions=call.dimensions)
        return gemini.json_reply({"embedding": {"values": values}})

    monkeypatch.setattr(gemini.RowDialect, "answer", answer)
    report = report_of(run(JobSpec.parse(developer)))
    assert report["cost_usd"] == pytest.approx(sandbox.token_bill.nano_usd / 1e9, abs=1e-6)


@pytest.mark.full
def test_the_estimate_shows_the_ways_that_embeddings_have(developer):
    spec = JobSpec.parse(developer | {"inference": {"mode": "auto", "finish_by": "PT3H"}})
    found = make_estimate(spec)
    by_tier = {way.tier: way for way in found.ways}
    assert set(by_tier) == {"standard", "batch"}, "no flex tier for vectors"
    assert by_tier["batch"].cost_usd < by_tier["standard"].cost_usd


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "price"),
    [
        ({"type": "gemini", "name": "gemini-embedding-001"}, 0.15),
        ({"type": "openai", "name": "text-embedding-3-small"}, 0.02),
        ({"type": "openai", "name": "text-embedding-4"}, None),
    ],
)
def test_the_price_of_an_embedding_model_is_that_of_the_list_or_unknown(developer, model, price):
    found = make_estimate(JobSpec.parse(developer | {"model": model, "limits": {}}), sample_size=0)
    standard, batch = found.ways
    if price is None:
        assert (found.price, standard.cost_usd, batch.cost_usd) == (None, None, None)
        assert any("unknown" in line for line in found.lines())
        return
    assert found.price.input_usd_per_million_tokens == price
    assert standard.cost_usd == pytest.approx(ROWS * TOKENS * price / 1e6, rel=0.01)


@pytest.mark.full
def test_a_text_that_the_provider_refuses_fails_alone(developer, sandbox):
    message = "This text is not welcome."
    fault = Fault(kind="error", http_status=400, message=message)
    sandbox.faults.when("batch.geminiRow", "row 0077", fault)
    sandbox.faults.when("gemini.batchEmbedContents", "row 0077", fault)
    limits = {"price": PRICE, "max_dead_letter_ratio": 1.0}
    manifest = run(JobSpec.parse(developer | {"limits": limits}))
    assert manifest["rows"]["answered"] == ROWS - 1
    (dead,) = map(json.loads, Path(manifest["dead_letter_uri"]).read_text().splitlines())
    assert (dead["id"], message in dead["llmbeam_error"]["message"]) == (77, True)
