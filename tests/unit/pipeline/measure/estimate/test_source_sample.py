"""An estimate takes the rows that the job takes, and refuses those that it refuses."""

from __future__ import annotations

import json

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import sample_source


def test_a_whole_number_as_an_integer_and_as_a_float_is_one_key_as_in_the_job(job) -> None:
    rows = [{"id": 17, "text": "a"}, {"id": 17.0, "text": "b"}]
    spec = job(source={"type": "rows", "rows": rows, "key": "id"})
    with pytest.raises(JobSpecError, match="1 key belongs to several rows"):
        sample_source(spec)


def test_a_duplicate_in_the_own_dead_letter_is_not_read_as_by_the_job(job, tmp_path) -> None:
    failures = [{"id": 1, "kind": "timeout"}, {"id": 2, "kind": "duplicate_key"}]
    path = tmp_path / "out" / "dead_letter-00000-of-00001.jsonl"
    path.parent.mkdir()
    path.write_text(
        "".join(
            json.dumps({"id": each["id"], "text": "a", "llmbeam_error": {"kind": each["kind"]}}) + "\n"
            for each in failures
        )
    )
    spec = job(source={"uri": str(path), "key": "id"}, sink={"uri": f"{path.parent}/", "on_existing": "merge"})
    assert spec.paths.dead_letter_uri == str(path)
    assert sample_source(spec).rows == 1
