from __future__ import annotations

import apache_beam as beam
import pytest

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.answer_form import AnswerForm
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.elements import FAILED, AnsweredRow, FailedRow, RenderedRow, Request
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS
from airflow_provider_llmbeam.pipeline.transforms.reuse import REUSED, MakeRequest, Reuse
from airflow_provider_llmbeam.spec import Embedding
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from tests.outcomes import completion

ROWS: list[RenderedRow] = [({"id": number}, "Hi", None, (), 0) for number in range(3)]


TEXT = AnswerForm.of(None, None)


def reuse(rows, journal, form=TEXT):
    step = Reuse("nightly", form)
    step.start_bundle()
    found = list(step.process(("f", {"rows": iter(rows), "journal": iter(journal)})))
    step.finish_bundle()
    return found


def test_equal_prompts_are_one_request() -> None:
    assert reuse(ROWS, []) == [Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"))]
    assert PROGRESS.snapshot().duplicates == 2


def test_rows_with_an_answer_in_the_journal_are_not_sent() -> None:
    answer = completion()
    found = reuse(ROWS[:2], [("nightly", answer)])
    assert all(isinstance(output, beam.pvalue.TaggedOutput) and output.tag == REUSED for output in found)
    assert [output.value for output in found] == [AnsweredRow({"id": n}, "f", answer, "resumed") for n in (0, 1)]
    assert PROGRESS.snapshot().resumed == 2


def test_an_answer_recorded_twice_is_used_once() -> None:
    assert len(reuse(ROWS[:1], [("nightly", completion())] * 2)) == 1


def test_an_answer_without_a_row_is_ignored() -> None:
    assert reuse([], [("nightly", completion())]) == reuse([], []) == []


def test_without_a_journal_equal_prompts_are_one_request() -> None:
    assert list(MakeRequest().process(("f", iter(ROWS)))) == [
        Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"))
    ]


def test_an_answer_of_another_job_is_cached_and_the_newest_one_is_taken() -> None:
    old, new = completion(answered_at=1.0), completion(answered_at=2.0)
    (output,) = reuse(ROWS[:1], [("monday", old), ("tuesday", new), ("sunday", old)])
    assert (output.value.origin, output.value.completion) == ("cached", new)


def test_an_answer_of_this_job_takes_precedence_over_a_newer_one_of_another_job() -> None:
    own = completion(answered_at=1.0)
    (output,) = reuse(ROWS[:1], [("nightly", own), ("tuesday", completion(answered_at=2.0))])
    assert (output.value.origin, output.value.completion) == ("resumed", own)


@pytest.mark.parametrize(
    ("job", "tier", "at", "error"),
    [
        ("nightly", "batch", 9.0, "bad_request: no such field"),
        ("nightly", "batch", 1.0, None),
        ("nightly", "standard", 9.0, None),
        ("tuesday", "batch", 9.0, None),
    ],
)
def test_a_request_carries_the_error_that_batch_inference_of_this_run_had(job, tier, at, error) -> None:
    failed = Failure(kind="bad_request", message="no such field", service_tier=tier, answered_at=at)
    earlier = Failure(kind="timeout", message="late", service_tier=tier, answered_at=at - 0.5)
    step = Reuse("nightly", TEXT, RunContext(batch_since=5.0))
    step.start_bundle()
    (request,) = step.process(("f", {"rows": iter(ROWS), "journal": iter([(job, failed), (job, earlier)])}))
    assert request == Request("f", ({"id": 0}, {"id": 1}, {"id": 2}), Prompt("Hi"), batch_error=error)


def refusal(**changes) -> Failure:
    return Failure(**{"kind": "truncated", "message": "cut", "attempts": 1, "answered_at": 5.0} | changes)


def test_rows_with_a_refused_answer_in_the_journal_are_not_sent() -> None:
    found = reuse(ROWS[:2], [("nightly", refusal())])
    assert [output.tag for output in found] == [FAILED] * 2
    assert [output.value for output in found] == [FailedRow({"id": n}, refusal(), "resumed") for n in (0, 1)]
    assert PROGRESS.snapshot().failed == 2


@pytest.mark.parametrize("turn", [1, -1])
def test_an_answer_of_another_job_is_better_than_a_refusal_of_this_one(turn: int) -> None:
    answer = completion()
    (output,) = reuse(ROWS[:1], [("nightly", refusal()), ("tuesday", answer)][::turn])
    assert (output.value.origin, output.value.completion) == ("cached", answer)


@pytest.mark.parametrize("turn", [1, -1])
def test_an_answer_of_this_job_is_better_than_its_refusal(turn: int) -> None:
    (output,) = reuse(ROWS[:1], [("nightly", refusal()), ("nightly", completion())][::turn])
    assert output.value.completion == completion()


@pytest.mark.parametrize(
    ("kind", "max_repairs", "refused_since", "is_known"),
    [
        ("invalid_output", 1, 0.0, True),
        ("invalid_output", 2, 0.0, False),  # the answer may be valid after one more repair
        ("truncated", 2, 0.0, True),
        ("blocked", 2, 0.0, True),
        ("truncated", 1, 5.0, True),
        ("truncated", 1, 6.0, False),
    ],
)
def test_a_refusal_is_known_unless_more_repairs_or_another_try_are_asked_for(
    kind: FailureKind, max_repairs: int, refused_since: float, is_known: bool
) -> None:
    form = AnswerForm.of(None, {}, max_repairs, refused_since)
    (found,) = reuse(ROWS[:1], [("nightly", refusal(kind=kind, max_repairs=1))], form)
    assert isinstance(found, Request) is not is_known


def test_an_empty_answer_without_a_schema_is_not_asked_for_again_whatever_the_repairs() -> None:
    (found,) = reuse(ROWS[:1], [("nightly", refusal(kind="invalid_output"))], AnswerForm.of(None, None, 1))
    assert found.tag == FAILED


@pytest.mark.parametrize("journal", [[], ["answered"]])
def test_duplicate_keys_end_the_job_before_a_request(journal) -> None:
    group = ("f", {"rows": iter(ROWS), "journal": iter([("nightly", completion()) for _ in journal])})
    with pytest.raises(JobSpecError, match="Nothing was sent or billed"):
        list(Reuse("nightly", TEXT).process(group, [b'{"id": 1}']))


VECTOR = AnswerForm.of(Embedding(dimensions=2), None)


def test_a_vector_that_could_not_be_used_is_asked_for_again() -> None:
    (found,) = reuse(ROWS[:1], [("nightly", refusal(kind="invalid_output"))], VECTOR)
    assert isinstance(found, Request)


VALUE = AnswerForm.of(None, {"type": "object"})


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (TEXT, {"parsed": {"a": 1}}),
        (TEXT, {"text": " "}),
        (VALUE, {"text": ""}),
        (VECTOR, {}),
        (VECTOR, {"parsed": "ab"}),
        (VECTOR, {"parsed": 5}),
        (VECTOR, {"parsed": {"0": 1.0, "1": 2.0}}),
        (VECTOR, {"parsed": [[1.0], [2.0]]}),
        (VECTOR, {"parsed": [True, False]}),
        (VECTOR, {"parsed": [1.0]}),
        (VECTOR, {"parsed": [1.0, 1e300]}),
        (AnswerForm.of(Embedding(), None), {"parsed": []}),
    ],
    ids=str,
)
def test_an_answer_of_another_form_is_passed_over_with_a_warning(form, answer, caplog) -> None:
    (request,) = reuse(ROWS, [("tuesday", completion(**answer))], form)
    assert isinstance(request, Request)
    (message,) = caplog.messages
    assert "job 'tuesday' to prompt f that is none of this job's form" in message


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (TEXT, {}),
        (VALUE, {"parsed": {"a": 1}}),
        (VALUE, {"text": "null", "parsed": None}),
        (VECTOR, {"text": "", "parsed": [1.0, 2]}),
        (AnswerForm.of(Embedding(), None), {"text": "", "parsed": [1.0, 2.0, 3.0]}),
    ],
    ids=str,
)
def test_an_answer_of_the_form_of_the_job_is_used(form, answer) -> None:
    (output,) = reuse(ROWS[:1], [("tuesday", completion(**answer))], form)
    assert output.value.origin == "cached"
