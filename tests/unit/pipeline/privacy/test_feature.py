from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobFailedError
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow
from airflow_provider_llmbeam.pipeline.privacy.feature import RestoreAnswers
from airflow_provider_llmbeam.pipeline.transforms.rows_to_prompts import TakeRows
from airflow_provider_llmbeam.spec import JobSpec
from tests.outcomes import completion

DETECTOR = {"type": "custom", "name": "NUMBER", "pattern": r"\d{6}"}


def test_a_secret_that_was_changed_while_a_job_ran_ends_it_with_its_cause(monkeypatch):
    spec = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": "rows.jsonl", "key": "id"},
            "prompt": "{{ row.text }}",
            "model": {"type": "echo"},
            "sink": {"uri": "out"},
            "safety": {"privacy": {"detectors": [DETECTOR]}},
        }
    )
    steps = [TakeRows(spec), RestoreAnswers(spec, spec.safety.privacy)]
    for number, step in enumerate(steps):
        monkeypatch.setenv("LLMBEAM_PRIVACY_KEY", f"the secret of worker {number}")
        step.setup()
    for step in steps:
        step.start_bundle()
    (row,) = steps[0].process({"id": 1, "text": "123456"})
    with pytest.raises(JobFailedError, match=r"it was changed while the job ran. Nothing was published") as failed:
        list(steps[1].process(AnsweredRow(row, "f", completion("x"), "fresh")))
    assert "123456" not in str(failed.value)
