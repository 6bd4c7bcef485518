from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from apache_beam.options.pipeline_options import PortableOptions
from apache_beam.portability.api import beam_job_api_pb2_grpc
from apache_beam.runners.portability.portable_runner import PipelineResult

from airflow_provider_llmbeam.exceptions import JobFailedError, JobSpecError
from airflow_provider_llmbeam.pipeline.launch import portable
from airflow_provider_llmbeam.pipeline.launch.mark import LaunchMark
from airflow_provider_llmbeam.pipeline.launch.runner import runner_of, workers_are_elsewhere
from airflow_provider_llmbeam.spec.identity import dataflow_name
from airflow_provider_llmbeam.spec.job import JobSpec


@pytest.fixture
def job_endpoint() -> Iterator[str]:
    """Address of a job service that implements nothing."""
    server = grpc.server(ThreadPoolExecutor(1))
    beam_job_api_pb2_grpc.add_JobServiceServicer_to_server(beam_job_api_pb2_grpc.JobServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def job(directory: Any, endpoint: str) -> JobSpec:
    return JobSpec.parse(
        {
            "name": "n",
            "source": {"uri": f"{directory}/rows.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.t }}"},
            "model": {"type": "echo"},
            "sink": {"uri": f"{directory}/out"},
            "runner": {
                "type": "portable",
                "job_endpoint": endpoint,
                "environment": {"type": "EXTERNAL", "address": "localhost:50000"},
                "options": {"sdk_worker_parallelism": 2},
            },
        }
    )


def test_the_spec_becomes_options_of_beam(job_endpoint: str, tmp_path: Any) -> None:
    spec = job(tmp_path, job_endpoint)
    runner, options = runner_of(spec, [])
    portable_options = options.view_as(PortableOptions)
    assert runner is None
    assert workers_are_elsewhere(spec, runner, options)
    assert portable_options.job_endpoint == job_endpoint
    assert portable_options.environment_type == "EXTERNAL"
    assert portable_options.environment_config == "localhost:50000"
    assert portable_options.sdk_worker_parallelism == "2"
    assert options.get_all_options()["job_name"] == dataflow_name(spec)


def test_a_job_service_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "CONNECT_SECONDS", 0.1)
    with pytest.raises(JobFailedError, match=r"no job service answered at '127\.0\.0\.1:9' .* Nothing was sent"):
        portable.check_job_service("127.0.0.1:9")


def test_a_job_service_that_cannot_cancel_is_named(
    job_endpoint: str, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runner = job(tmp_path, job_endpoint).runner
    with grpc.insecure_channel(job_endpoint) as channel:
        result = PipelineResult(beam_job_api_pb2_grpc.JobServiceStub(channel), "job-1", (), ())
        with (
            caplog.at_level(logging.WARNING, "llmbeam"),
            pytest.raises(KeyboardInterrupt),
            portable.cancelled_at_interrupt(result, runner),
        ):
            raise KeyboardInterrupt
    assert f"The job service at {job_endpoint} did not cancel the job: Method not implemented!." in caplog.text


def test_a_worker_without_the_disk_of_the_launch_is_refused(tmp_path: Any) -> None:
    mark = LaunchMark.of(job(tmp_path, "localhost:8099"))
    assert mark is not None
    mark.check()
    assert LaunchMark.of(job(tmp_path, "localhost:8099")) == mark
    (tmp_path / "out/.llmbeam/n/launch").write_text("that of an earlier launch, on the disk of the worker")
    with pytest.raises(JobSpecError, match=r"`state_uri`: a worker does not see '.*/launch'.* Nothing was sent"):
        mark.check()
