"""A job service of Beam, whose jobs the cluster shows as its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llmbeam_sandbox.flink.state import Job, Jobs

if TYPE_CHECKING:
    from apache_beam.portability.api import beam_job_api_pb2_grpc


def show_jobs(endpoint: str, jobs: Jobs) -> None:
    """Adds the jobs of a job service to those of the cluster, and updates their states.

    Args:
        endpoint: Address of the job service.
        jobs: The jobs of the cluster.
    """
    from apache_beam.portability.api import beam_job_api_pb2 as api

    with _connected(endpoint) as service:
        for job in service.GetJobs(api.GetJobsRequest()).job_info:
            name = job.pipeline_options["beam:option:job_name:v1"]  # that of the request is always "job"
            jobs.show(job.job_id, str(name), api.JobState.Enum.Name(job.state))


def cancel(endpoint: str, job: Job) -> None:
    """Asks a job service to cancel a job.

    Args:
        endpoint: Address of the job service.
        job: The job that shows it.
    """
    from apache_beam.portability.api import beam_job_api_pb2 as api

    with _connected(endpoint) as service:
        service.Cancel(api.CancelJobRequest(job_id=job.beam_id))


@contextmanager
def _connected(endpoint: str) -> Iterator[beam_job_api_pb2_grpc.JobServiceStub]:
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2_grpc

    with grpc.insecure_channel(endpoint) as channel:
        yield beam_job_api_pb2_grpc.JobServiceStub(channel)
