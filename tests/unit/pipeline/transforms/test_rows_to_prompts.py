from __future__ import annotations

import json
from typing import Any

import apache_beam as beam
import pytest

from airflow_provider_llmbeam.pipeline.elements import FAILED, failed_row
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import TALLIES, Render, TakeRows
from airflow_provider_llmbeam.spec.model.fingerprint import Fingerprinter
from tests.unit.pipeline.conftest import job_of


def taker(key: tuple[str, ...]) -> TakeRows:
    step = TakeRows(job_of(source={"uri": "in/*.jsonl", "key": key}))
    step.setup()
    return step


def check_key(*key: str, row: Any) -> Any:
    step = taker(key)
    step.start_bundle()
    (found,) = step.process(row)
    list(step.finish_bundle())
    return found


def test_each_bundle_has_the_number_of_its_rows_with_and_without_a_key() -> None:
    step, found = taker(("id",)), []
    for rows in ([{"id": 1}, {"text": "a"}, {"id": 2}], [], [{"id": 3}] * 1500):
        step.start_bundle()
        for row in rows:
            list(step.process(row))
        (tallied,) = step.finish_bundle()
        assert tallied.tag == TALLIES
        found.append(tallied.value.value.read)
    assert found == [3, 0, 1500]
    assert (PROGRESS.snapshot().rows, PROGRESS.snapshot().failed) == (1503, 1)


def test_a_row_with_its_key_is_passed_on() -> None:
    row = {"id": 0, "part": "", "text": None}
    assert check_key("id", "part", row=row) is row
    assert (PROGRESS.snapshot().rows, PROGRESS.snapshot().failed) == (1, 0)


@pytest.mark.parametrize("row", [{"text": "a"}, {"id": None, "text": "a"}])
def test_a_row_without_a_key_fails_and_lists_its_columns(row: dict[str, Any]) -> None:
    found = check_key("id", row=row)
    assert isinstance(found, beam.pvalue.TaggedOutput)
    assert found.tag == FAILED
    assert found.value.row is row
    assert found.value.failure.kind == "missing_key"
    assert found.value.failure.message == f"no value in key column 'id'; the row has {sorted(row)}"
    assert (PROGRESS.snapshot().rows, PROGRESS.snapshot().failed) == (1, 1)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), [1, float("nan")], {"a": float("nan")}]
)
def test_a_row_whose_key_is_no_number_fails(value: Any) -> None:
    """NaN equals no other key, itself included, and neither is a number of JSON."""
    found = check_key("id", row={"id": value})
    assert found.value.failure.kind == "missing_key"
    assert found.value.failure.message == f"no number in key column 'id' but {value!r}"


@pytest.mark.parametrize("value", [1.5, -0.0, [1, "a", None], {"a": [True]}, 10**30])
def test_a_row_with_any_other_key_is_passed_on(value: Any) -> None:
    row = {"id": value}
    assert check_key("id", row=row) is row


@pytest.mark.parametrize("levels", [101, 900, 100_000])
def test_a_row_of_any_source_that_is_nested_too_deep_fails(levels: int) -> None:
    deep: Any = []
    for _ in range(levels):
        deep = [deep]
    found = check_key("id", row={"id": 7, "deep": deep})
    assert found.value.failure.kind == "unreadable_row"
    assert found.value.failure.message == "nested more than 100 levels deep; it has ['deep', 'id']"
    assert json.loads(found.value.row["llmbeam_raw"])["id"] == 7


def test_an_unreadable_line_is_passed_on_unchanged() -> None:
    failed = failed_row({"llmbeam_raw": "{"}, "unreadable_row", "not JSON")
    assert check_key("id", row=failed).value is failed
    assert (PROGRESS.snapshot().rows, PROGRESS.snapshot().failed) == (1, 1)


def test_a_row_that_asks_for_too_much_fails_and_the_next_one_is_rendered(job) -> None:
    step = Render(job(prompt={"template": "{{ 'ab' * row.n }}"}))
    step.setup()
    step.start_bundle()
    (output,) = step.process({"n": 10**10})
    ((_, rendered),) = step.process({"n": 2})
    step.finish_bundle()
    assert output.value.failure.kind == "template_error"
    assert output.value.failure.message == (
        "TemplateLimitError: a text of 20,000,000,000 characters; at most 67,108,864"
    )
    assert rendered[1] == "abab"


def test_the_step_names_a_row_by_its_fingerprint(job) -> None:
    spec = job()
    step = Render(spec)
    step.setup()
    ((fingerprint, rendered),) = step.process({"id": 1, "text": "hi"})
    assert rendered == ({"id": 1, "text": "hi"}, "Say hi", None, (), 0)
    assert fingerprint == Fingerprinter(spec.model, spec.generation, None)("Say hi", None)


def test_a_row_that_cannot_be_rendered_becomes_a_failed_row(job) -> None:
    step = Render(job(prompt={"template": "{{ 1 / row.count }}"}))
    step.setup()
    step.start_bundle()
    (output,) = step.process({"count": 0})
    step.finish_bundle()
    assert isinstance(output, beam.pvalue.TaggedOutput)
    assert output.tag == FAILED
    assert output.value.row == {"count": 0}
    assert output.value.failure.kind == "template_error"
    assert output.value.failure.message == "ZeroDivisionError: division by zero"
    assert PROGRESS.snapshot().failed == 1
