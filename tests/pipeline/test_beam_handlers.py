"""`LLMModelHandler` in what Beam offers around a handler: keys, functions before and after, exception handling."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.ml.inference.base import (
    KeyedModelHandler,
    KeyModelMapping,
    MaybeKeyedModelHandler,
    ModelMetadata,
    RunInference,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.beam import LLMModelHandler
from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.spec import EchoModel, GeminiModel, Limits, OpenAIModel

GEMINI = "gemini.generateContent"
NUMBERS = range(40)
PROMPTS = [f"prompt {number}" for number in NUMBERS]
ROWS = [{"id": number, "text": f"prompt {number}"} for number in NUMBERS]
KEYED = [(row["id"], row["text"]) for row in ROWS]
WRAPPED = {
    "alone": (PROMPTS, lambda handler: handler, lambda result: (result.example, result.inference)),
    "with_preprocess_fn": (
        ROWS,
        lambda handler: handler.with_preprocess_fn(lambda row: row["text"]),
        lambda result: (result.example, result.inference),
    ),
    "with_postprocess_fn": (
        PROMPTS,
        lambda handler: handler.with_postprocess_fn(lambda result: [result.example, result.inference]),
        tuple,
    ),
    "with_no_batching": (
        [PROMPTS[:13], PROMPTS[13:]],
        lambda handler: handler.with_no_batching(),
        lambda result: (result.example, result.inference),
    ),
    "KeyedModelHandler": (KEYED, KeyedModelHandler, lambda result: (PROMPTS[result[0]], result[1].inference)),
    "KeyedModelHandler with functions": (
        ROWS,
        lambda handler: (
            KeyedModelHandler(handler)
            .with_preprocess_fn(lambda row: (row["id"], row["text"]))
            .with_postprocess_fn(lambda pair: (PROMPTS[pair[0]], pair[1].inference))
        ),
        tuple,
    ),
    "MaybeKeyedModelHandler with keys": (
        KEYED,
        MaybeKeyedModelHandler,
        lambda result: (PROMPTS[result[0]], result[1].inference),
    ),
    "MaybeKeyedModelHandler without keys": (
        PROMPTS,
        MaybeKeyedModelHandler,
        lambda result: (result.example, result.inference),
    ),
}


def reject(sandbox, number=8):
    """Answers the next requests with 429; the fixture checks that all of them were received."""
    sandbox.faults.queue(GEMINI, *[Fault(kind="rate-limit", retry_delay_seconds=0.01)] * number)


def gemini(sandbox, **arguments):
    return LLMModelHandler(GeminiModel(base_url=sandbox.gemini_url), **arguments)


def answered(prompts):
    """Returns a check that each prompt has an answer, its own."""

    def check(results):
        assert sorted(prompt for prompt, _ in results) == sorted(prompts)
        for prompt, outcome in results:
            assert isinstance(outcome, Completion)
            assert outcome.text.startswith(f"{prompt} [")

    return check


def infer(examples, transform):
    """Runs a pipeline; `transform` is applied to the examples and checks the results."""
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        transform(pipeline | beam.Create(examples))
    return pipeline.result


@pytest.mark.parametrize(
    "name", [next(iter(WRAPPED)), *(pytest.param(name, marks=pytest.mark.full) for name in [*WRAPPED][1:])]
)
def test_each_row_has_its_answer_with_every_wrapper_of_beam_in_spite_of_429s(sandbox, name):
    examples, wrap, read = WRAPPED[name]
    reject(sandbox)
    infer(
        examples,
        lambda rows: assert_that(rows | RunInference(wrap(gemini(sandbox))) | beam.Map(read), answered(PROMPTS)),
    )
    assert len(sandbox.requests.paid(GEMINI)) == len(PROMPTS)


def test_equal_prompts_of_a_batch_are_sent_once_with_a_journal(sandbox, tmp_path):
    prompts = ["a", "b", *["a"] * 8]
    handler = gemini(sandbox, journal_uri=str(tmp_path / "journal/"))
    infer(
        prompts,
        lambda rows: assert_that(
            rows | RunInference(handler) | beam.Map(lambda result: (result.example, result.inference)),
            answered(prompts),
        ),
    )
    assert len(sandbox.requests) == 2


def test_the_prompt_of_a_keyed_example_is_made_by_prompt_of(sandbox):
    reject(sandbox)
    handler = KeyedModelHandler(gemini(sandbox, prompt_of=lambda row: row["text"]))
    infer(
        [(row["id"], row) for row in ROWS],
        lambda rows: assert_that(
            rows | RunInference(handler) | beam.MapTuple(lambda key, result: (PROMPTS[key], result.inference)),
            answered(PROMPTS),
        ),
    )


def test_each_key_can_have_a_model_of_its_own(sandbox):
    reject(sandbox)
    openai = LLMModelHandler(OpenAIModel(type="openai", name="gemma-3-4b-it", base_url=sandbox.openai_url))
    handler = KeyedModelHandler([KeyModelMapping(["gold"], gemini(sandbox)), KeyModelMapping(["silver"], openai)])
    tiers = [("gold" if number % 2 else "silver", prompt) for number, prompt in enumerate(PROMPTS)]

    def check(results):
        assert sorted((tier, result.example) for tier, result in results) == sorted(tiers)
        assert {(tier, result.model_id, type(result.inference)) for tier, result in results} == {
            ("gold", "gemini-3.5-flash-lite", Completion),
            ("silver", "gemma-3-4b-it", Completion),
        }

    infer(tiers, lambda rows: assert_that(rows | RunInference(handler), check))


def test_with_exception_handling_a_failed_prompt_is_a_result_and_no_batch_fails(sandbox):
    sandbox.faults.when(GEMINI, "prompt 13", Fault(kind="error", http_status=400, message="no"))
    reject(sandbox)

    def check(results):
        assert sorted(result.example for result in results) == sorted(PROMPTS)
        assert [result.example for result in results if isinstance(result.inference, Failure)] == ["prompt 13"]

    def transform(prompts):
        results, errors = prompts | RunInference(gemini(sandbox)).with_exception_handling(timeout=600)
        assert_that(results, check, "results")
        assert_that(errors.failed_inferences | beam.combiners.Count.Globally(), equals([0]), "errors")

    infer(PROMPTS, transform)


def test_with_exception_handling_a_spent_budget_gives_the_rows_of_the_batch_to_the_dead_letter(sandbox):
    handler = gemini(sandbox, limits=Limits(budget_usd=1e-9, max_in_flight=1))

    def check(failed):
        ((batch, (_, message, _)),) = failed
        assert sorted(batch) == sorted(PROMPTS)
        assert "BudgetExceededError" in message

    def transform(prompts):
        results, errors = prompts | RunInference(handler).with_exception_handling()
        assert_that(results | beam.combiners.Count.Globally(), equals([0]), "results")
        assert_that(errors.failed_inferences, check, "errors")

    infer(PROMPTS, transform)
    assert len(sandbox.requests) == 1


def equals(expected):
    def check(found):
        assert found == expected

    return check


def test_an_example_without_a_prompt_is_a_failure_and_its_neighbours_are_answered(sandbox):
    handler = gemini(sandbox, prompt_of=lambda row: row["text"])

    def check(results):
        outcomes = {result.example["id"]: result.inference for result in results}
        assert len(outcomes) == len(ROWS) + 2
        failures = {number: each for number, each in outcomes.items() if isinstance(each, Failure)}
        assert failures.keys() == {100, 101}
        assert failures[100].message == "`prompt_of` raised KeyError: 'text'"
        assert "not a value of type 'NoneType'" in failures[101].message

    examples = [*ROWS, {"id": 100}, {"id": 101, "text": None}]
    infer(examples, lambda rows: assert_that(rows | RunInference(handler), check))
    assert len(sandbox.requests) == len(ROWS)


def test_pairs_without_a_keyed_handler_are_not_sent(sandbox):
    def check(results):
        assert len(results) == len(KEYED)
        for result in results:
            assert result.inference.kind == "template_error"
            assert "not a value of type 'tuple'" in result.inference.message
            assert "wrap the handler in `KeyedModelHandler`" in result.inference.message

    infer(KEYED, lambda rows: assert_that(rows | RunInference(gemini(sandbox)), check))
    assert len(sandbox.requests) == 0


def test_inference_args_are_rejected_when_the_pipeline_is_built():
    inference = RunInference(LLMModelHandler(EchoModel(type="echo")), inference_args={"temperature": 1})
    with pytest.raises(ValueError, match="`inference_args` are not used, set `generation` instead"):
        beam.Pipeline() | beam.Create(PROMPTS) | inference


def test_a_model_from_a_side_input_is_rejected_before_anything_is_sent(sandbox):
    def transform(prompts):
        model = prompts.pipeline | "Model" >> beam.Create([ModelMetadata("gemini-2.5-pro", "pro")])
        return prompts | RunInference(gemini(sandbox), model_metadata_pcoll=model)

    with pytest.raises(Exception, match=r"`model_metadata_pcoll` .* got 'gemini-2.5-pro'\. Nothing of this batch"):
        infer(PROMPTS, transform)
    assert len(sandbox.requests) == 0


def test_the_metrics_of_beam_have_the_namespace_that_is_asked_for_and_the_counts_their_own(sandbox):
    reject(sandbox)
    inference = RunInference(gemini(sandbox), metrics_namespace="reviews")
    metrics = infer(PROMPTS, lambda prompts: prompts | inference).metrics().query()
    counters = {(each.key.metric.namespace, each.key.metric.name): each.committed for each in metrics["counters"]}
    assert counters["reviews", "num_inferences"] == len(PROMPTS)
    assert counters["llmbeam", "answered"] == len(PROMPTS)
    assert counters["llmbeam", "requests"] == len(sandbox.requests)
    assert counters["llmbeam", "rejections"] == 8
