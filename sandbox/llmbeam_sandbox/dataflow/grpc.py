"""Dataflow over gRPC, for Beam and for asynchronous hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmbeam_sandbox.core.grpc import GrpcApi, Rpc
from llmbeam_sandbox.core.rest import Service


def grpc_api(methods: Service) -> GrpcApi:
    """Returns the methods of Dataflow over gRPC."""
    return GrpcApi(
        package="google.dataflow.v1beta3", types="google.cloud.dataflow_v1beta3", methods=methods, rpcs=_RPCS
    )


def _in(request: Any, rest: str = "") -> str:
    location = f"/locations/{request.location}" if request.location else ""
    return f"/v1b3/projects/{request.project_id}{location}{rest}"


def _job(request: Any) -> str:
    return _in(request, f"/jobs/{request.job_id}")


def _jobs(
    name: str, request: str, answer: str, verb: str, path: Callable[[Any], str], body: str = "", **given: Any
) -> Rpc:
    return Rpc(
        **{"service": "JobsV1Beta3", **given},
        name=name,
        request=request,
        answer=answer,
        verb=verb,
        path=path,
        body=body,
    )


_RPCS = (
    _jobs("CreateJob", "CreateJobRequest", "Job", "POST", lambda r: _in(r, "/jobs"), "job"),
    _jobs("GetJob", "GetJobRequest", "Job", "GET", _job),
    _jobs("UpdateJob", "UpdateJobRequest", "Job", "PUT", _job, "job"),
    _jobs("ListJobs", "ListJobsRequest", "ListJobsResponse", "GET", lambda r: _in(r, "/jobs")),
    _jobs(
        "AggregatedListJobs",
        "ListJobsRequest",
        "ListJobsResponse",
        "GET",
        lambda r: f"/v1b3/projects/{r.project_id}/jobs:aggregated",
    ),
    _jobs(
        "ListJobMessages",
        "ListJobMessagesRequest",
        "ListJobMessagesResponse",
        "GET",
        lambda r: f"{_job(r)}/messages",
        service="MessagesV1Beta3",
    ),
    _jobs(
        "GetJobMetrics",
        "GetJobMetricsRequest",
        "JobMetrics",
        "GET",
        lambda r: f"{_job(r)}/metrics",
        service="MetricsV1Beta3",
    ),
    _jobs(
        "LaunchFlexTemplate",
        "LaunchFlexTemplateRequest",
        "LaunchFlexTemplateResponse",
        "POST",
        lambda r: _in(r, "/flexTemplates:launch"),
        "*",
        service="FlexTemplatesService",
        in_path=frozenset({"projectId", "location"}),
    ),
)
