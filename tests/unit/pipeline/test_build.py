from __future__ import annotations

import apache_beam as beam
from apache_beam.ml.inference.base import PredictionResult

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.pipeline.build import FanOut
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, Request
from tests.outcomes import completion

REQUEST = Request("f", ({"id": 0}, {"id": 1}), Prompt("Hi"))


def test_an_answer_is_assigned_to_every_row_and_is_fresh_once() -> None:
    answer = completion()
    assert list(FanOut().process(PredictionResult(REQUEST, answer))) == [
        AnsweredRow({"id": 0}, "f", answer, "fresh"),
        AnsweredRow({"id": 1}, "f", answer, "duplicate"),
    ]


def test_an_answer_that_needed_a_repair_is_repaired() -> None:
    first, second = FanOut().process(PredictionResult(REQUEST, completion(repairs=1)))
    assert (first.origin, second.origin) == ("repaired", "duplicate")


def test_a_failure_is_assigned_to_every_row_and_paid_for_once() -> None:
    failure = Failure(kind="blocked", message="no")
    found = list(FanOut().process(PredictionResult(REQUEST, failure)))
    assert all(isinstance(output, beam.pvalue.TaggedOutput) and output.tag == FAILED for output in found)
    assert [output.value for output in found] == [
        FailedRow({"id": 0}, failure, "fresh"),
        FailedRow({"id": 1}, failure, "duplicate"),
    ]


def test_the_dead_letter_quotes_the_error_that_batch_inference_had() -> None:
    request = Request("f", ({"id": 0},), Prompt("Hi"), batch_error="bad_request: no such field")
    (found,) = FanOut().process(PredictionResult(request, Failure(kind="not_sent", message="All failed.")))
    assert found.value.failure.message == (
        "All failed. Batch inference has failed it before: bad_request: no such field"
    )
    answer = completion()
    assert list(FanOut().process(PredictionResult(request, answer))) == [
        AnsweredRow({"id": 0}, "f", answer, "fresh")
    ]
