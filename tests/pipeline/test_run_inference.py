"""`RunInference(LLMModelHandler(...))` in a custom pipeline."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.ml.inference.base import PredictionResult, RunInference
from apache_beam.ml.inference.gemini_inference import GeminiModelHandler, generate_from_string
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.beam import LLMModelHandler
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.spec import Batching, EchoModel, GeminiModel, Limits

ROWS = 200


def predict(handler, examples, check):
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        results = pipeline | beam.Create(examples) | RunInference(handler)
        assert_that(results, check)


@pytest.mark.parametrize(
    "batch_size", [7, *(pytest.param(size, marks=pytest.mark.full) for size in (1, 64, 2048))]
)
def test_200_rows_give_200_prediction_results_for_every_batch_size(sandbox, batch_size):
    handler = LLMModelHandler(
        GeminiModel(base_url=sandbox.gemini_url), batching=Batching(max_batch_size=batch_size)
    )
    prompts = [f"prompt {number}" for number in range(ROWS)]

    def check(results):
        assert len(results) == ROWS
        assert {result.example for result in results} == set(prompts)
        for result in results:
            assert isinstance(result, PredictionResult)
            assert isinstance(result.inference, Completion)
        assert len({result.inference.text for result in results}) == ROWS

    predict(handler, prompts, check)
    assert len(sandbox.requests) == ROWS


def test_a_failed_row_gives_a_failure_and_its_neighbours_give_completions(sandbox):
    fault = Fault(kind="error", http_status=400, message="no")
    sandbox.faults.when("gemini.generateContent", "prompt 13", fault)
    handler = LLMModelHandler(GeminiModel(base_url=sandbox.gemini_url))

    def check(results):
        failed = [result.example for result in results if isinstance(result.inference, Failure)]
        assert (len(results), failed) == (50, ["prompt 13"])

    predict(handler, [f"prompt {number}" for number in range(50)], check)


def test_prompts_longer_than_the_weight_limit_of_a_batch_get_a_result_too():
    handler = LLMModelHandler(EchoModel(type="echo"), batching=Batching(max_batch_size=2))
    prompts = ["x" * 500_000, "a", "y" * 500_000, "b", "c"]

    def check(results):
        assert sorted(result.example for result in results) == sorted(prompts)

    predict(handler, prompts, check)


def test_a_row_of_any_kind_can_carry_its_prompt(sandbox):
    handler = LLMModelHandler(
        GeminiModel(base_url=sandbox.gemini_url),
        limits=Limits(requests_per_minute=60_000),
        prompt_of=lambda row: row["text"],
    )

    def check(results):
        assert sorted(result.example["id"] for result in results) == [1, 2]

    predict(handler, [{"id": 1, "text": "one"}, {"id": 2, "text": "two"}], check)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_gemini_handler_of_beam_answers_a_tenth_of_the_rows(sandbox, monkeypatch):
    """The reason for `LLMModelHandler`. If this test fails, Beam has fixed its handler: reconsider ours.

    Beam 2.77 puts all prompts of a batch into one message and gives one result for it.
    """
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", sandbox.gemini_url)
    handler = GeminiModelHandler("gemini-2.5-flash", generate_from_string, api_key="k")
    prompts = [f"prompt {number}" for number in range(ROWS)]
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        results = pipeline | beam.Create(prompts) | RunInference(handler)
        assert_that(results | beam.combiners.Count.Globally(), lambda counts: _between(counts[0], 9, 25))


def _between(count, low, high):
    assert low <= count <= high, f"{count} of {ROWS} rows came out"
