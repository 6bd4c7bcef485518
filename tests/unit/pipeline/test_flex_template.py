"""The entry point of a Flex Template's container."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline import flex_template
from airflow_provider_llmbeam.pipeline.command import Command
from airflow_provider_llmbeam.spec.job.paths import LAUNCH_ERROR_NAME


def run(monkeypatch, tmp_path, command):
    """Runs the entry point with another `execute`; returns the status and the error that it left."""
    monkeypatch.setattr(flex_template, "execute", command)
    status = flex_template.main([f"--spec={tmp_path}/spec.json", "--runner=DataflowRunner"])
    error = tmp_path / LAUNCH_ERROR_NAME
    return status, error.read_text() if error.exists() else None


def test_a_job_that_was_written_leaves_no_error(monkeypatch, tmp_path):
    seen = []
    assert run(monkeypatch, tmp_path, lambda command: seen.append(command) or (0, {"job": {}})) == (0, None)
    options = ["--runner=DataflowRunner"]
    assert seen == [Command(spec=f"{tmp_path}/spec.json", step="submit", beam_options=options, is_child=True)]


def test_an_error_of_this_package_is_left_beside_the_spec_with_its_class(monkeypatch, tmp_path):
    def refuse(command):
        return 2, {"error": {"type": "JobSpecError", "message": "No column 'x'.", "page": None}}

    left = "airflow_provider_llmbeam.exceptions.JobSpecError: No column 'x'."
    assert run(monkeypatch, tmp_path, refuse) == (2, left)


def test_any_other_error_is_left_as_its_traceback(monkeypatch, tmp_path, capsys):
    def fail(command):
        raise ImportError("no module named 'torch'")

    status, left = run(monkeypatch, tmp_path, fail)
    assert status == 1
    assert left.endswith("ImportError: no module named 'torch'\n")
    assert left in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["--template_location=gs://rows/staging/job_object"]])
def test_a_submission_names_the_job_or_in_a_template_the_file_that_describes_it(monkeypatch, given):
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult

    from airflow_provider_llmbeam.pipeline import job
    from airflow_provider_llmbeam.pipeline.prepared_job import PreparedJob
    from airflow_provider_llmbeam.spec import JobSpec

    class Pipeline:
        options = PipelineOptions(["--project=p", "--region=r", "--job_name=n", *given])

    class Started:
        id = "2026-01"
        current_state = None

    # Beam returns the result of no job where it wrote one to a file.
    result = DataflowPipelineResult(None if given else Started(), None, None)
    monkeypatch.setattr(job, "_started", lambda *_: result)
    spec = JobSpec.parse(
        {
            "name": "nightly",
            "source": {"uri": "gs://rows/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "gs://rows/out"},
            "runner": {"type": "dataflow", "project": "my-project", "location": "europe-west1"},
        }
    )
    where = {"name": "n", "project": "p", "location": "r"}
    expected = {"template": "gs://rows/staging/job_object"} if given else {"id": "2026-01"}
    assert job._submitted(PreparedJob(Pipeline, None, None), spec) == expected | where
