from __future__ import annotations

from typing import Any

import pytest
from apache_beam.options.pipeline_options import FlinkRunnerOptions, PortableOptions
from apache_beam.runners.runner import PipelineState
from llmbeam_sandbox import Fault, FlinkSettings

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.launch import flink
from airflow_provider_llmbeam.pipeline.launch.runner import runner_of, workers_are_elsewhere
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import dataflow_name, job_identity
from airflow_provider_llmbeam.transport.flink import FlinkCluster


class Pipeline:
    """Fake of a pipeline whose run makes jobs on the cluster, at once or never."""

    def __init__(self, jobs: Any, name: str, count: int = 1, state: str = PipelineState.RUNNING) -> None:
        self.jobs, self.name, self.count, self.state = jobs, name, count, state

    def run(self) -> Pipeline:
        for _ in range(self.count):
            self.jobs.add(self.name)
        return self

    def wait_until_finish(self) -> None:
        raise RuntimeError("the job server refuses the job")


@pytest.fixture
def spec(sandbox, monkeypatch, tmp_path):
    monkeypatch.setattr(flink, "check_job_service", lambda endpoint: None)
    return JobSpec.parse(
        {
            "name": "n",
            "source": {"uri": "/mnt/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": "/mnt/out"},
            "runner": {
                "type": "flink",
                "rest_url": sandbox.flink_url,
                "job_endpoint": "localhost:8099",
                "flink_version": "1.19",
                "task_managers": 2,
                "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
                "options": {"sdk_worker_parallelism": 1},
            },
        }
    )


def test_the_spec_becomes_options_of_beam(spec, sandbox) -> None:
    runner, options = runner_of(spec, [])
    assert runner is None
    assert workers_are_elsewhere(spec, runner, options)
    assert options.view_as(FlinkRunnerOptions).flink_master == sandbox.flink_url
    assert options.view_as(FlinkRunnerOptions).flink_version == "1.19"
    assert options.view_as(FlinkRunnerOptions).parallelism == 2
    assert options.view_as(PortableOptions).job_endpoint == "localhost:8099"
    assert options.view_as(PortableOptions).environment_config == "localhost:50000"
    assert options.get_all_options()["job_name"] == dataflow_name(spec)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (FlinkSettings(version="2.0.1"), "has Flink '2.0.1'; got '1.19'"),
        (FlinkSettings(configuration={}), "has no restart strategy"),
    ],
)
def test_a_cluster_that_cannot_run_the_job_is_refused(spec, sandbox, settings, words) -> None:
    sandbox.flink.settings = settings
    with pytest.raises(JobSpecError) as caught:
        runner_of(spec, [])
    assert words in str(caught.value)
    assert str(caught.value).endswith("Nothing was sent or billed.")


@pytest.mark.parametrize(("status", "error"), [(503, JobFailedError), (403, JobSpecError)])
def test_a_cluster_that_does_not_answer_is_named(spec, sandbox, status, error) -> None:
    sandbox.faults.queue("flink.overview", Fault(kind="error", http_status=status, message="no"))
    with pytest.raises(error, match=rf"`runner\.rest_url`: Flink did not answer .* \(HTTP {status}\)"):
        runner_of(spec, [])


def test_a_warning_about_the_cluster_is_logged(spec, sandbox, caplog) -> None:
    sandbox.flink.settings = FlinkSettings(task_managers=3)
    runner_of(spec, [])
    assert "The cluster has 3 task managers" in caplog.text


def test_the_name_on_flink_has_a_digest_of_the_run(spec, sandbox) -> None:
    run = {"dag_id": "d", "task_id": "ask", "run_id": "monday", "map_index": -1}
    of_run = JobSpec.parse({**spec.model_dump(), "airflow_run": run})
    name = runner_of(of_run, [])[1].get_all_options()["job_name"]
    assert name.startswith(f"{dataflow_name(spec)}-")
    sandbox.flink.jobs.add(name)
    (job,) = FlinkCluster(sandbox.flink_url).find(job_identity(spec))
    assert (job.name, job.run) == (dataflow_name(spec), name[-8:])


def test_of_two_submissions_at_the_same_time_the_older_job_goes_on(spec, sandbox) -> None:
    jobs = sandbox.flink.jobs
    submitted = flink.submit_once(Pipeline(jobs, dataflow_name(spec), count=2), spec, spec.runner)
    states = {job.id: job.state for job in jobs.all()}
    assert states.pop(submitted) == "RUNNING"
    assert list(states.values()) == ["CANCELED"]
    assert flink.submit_once(Pipeline(jobs, dataflow_name(spec), count=0), spec, spec.runner) == submitted


def test_the_error_of_the_job_server_ends_the_submission(spec, sandbox) -> None:
    refused = Pipeline(sandbox.flink.jobs, "", count=0, state=PipelineState.FAILED)
    with pytest.raises(RuntimeError, match="the job server refuses the job"):
        flink.submit_once(refused, spec, spec.runner)


def test_a_job_that_does_not_appear_may_run(spec, sandbox, monkeypatch) -> None:
    monkeypatch.setattr(flink, "SUBMISSION_SECONDS", 0.0)
    with pytest.raises(
        JobFailedError, match=r"did not show it within 0 s\. It may be running and billing; a retry"
    ):
        flink.submit_once(Pipeline(sandbox.flink.jobs, "", count=0), spec, spec.runner)
