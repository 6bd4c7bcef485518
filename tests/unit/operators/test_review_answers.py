"""Arguments of the operators of a review, as they are checked when a Dag is parsed."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.review_answers import AddGoldenRowsOperator, SampleAnswersOperator
from tests.unit.operators.test_arguments import SIMPLE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": 0}, "`rows`: must be greater than or equal to 1; got 0."),
        ({"rows": 501}, "`rows`: must be less than or equal to 500; got 501."),
        ({"golden": "golden.jsonl"}, "`golden`: needs a key, the columns that identify a row"),
        ({"review_uri": "out/review.csv"}, "`review_uri`: must end in .jsonl: its rows are written as JSON lines"),
        ({"review_uri": "out/*.jsonl"}, "`review_uri`: must be one file, not a glob"),
    ],
)
def test_an_invalid_selection_is_refused(arguments, message):
    with pytest.raises(JobSpecError) as caught:
        SampleAnswersOperator(manifest={}, **SIMPLE, **arguments)
    assert str(caught.value).startswith(f"Task 'judge': {message}")


def test_a_template_is_checked_when_it_is_rendered():
    arguments = {"manifest": {}, "rows": "{{ params.rows }}", "golden": "{{ params.golden }}"}
    SampleAnswersOperator(**arguments, seed="{{ ds_nodash }}", review_uri="{{ ds }}.jsonl", **SIMPLE)
    AddGoldenRowsOperator(verdicts=[], golden_uri="{{ params.golden }}", **SIMPLE)


@pytest.mark.parametrize("manifest", [None, [], {}, "night"])
def test_the_manifest_of_a_run_is_needed(manifest):
    with pytest.raises(AirflowFailException, match=r"`manifest`: must be the manifest of a run"):
        SampleAnswersOperator(manifest=manifest, **SIMPLE).execute({})


def test_a_golden_set_of_another_format_is_refused():
    with pytest.raises(JobSpecError, match="Task 'judge': `golden_uri`: must end in"):
        AddGoldenRowsOperator(verdicts=[], golden_uri="golden.csv", **SIMPLE)
