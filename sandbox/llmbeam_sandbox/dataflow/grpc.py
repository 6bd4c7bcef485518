"""Dataflow over gRPC, for Beam and for asynchronous hooks: the methods of the REST API."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from llmbeam_sandbox.core.access import REFUSAL, Access
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.rest import RestCall, Service

if TYPE_CHECKING:
    import grpc

HOST = "127.0.0.1"
NEEDS_CLIENT = (
    "gRPC of the emulated Dataflow needs packages that come with Beam: `pip install 'apache-beam[gcp]'` "
    "(grpcio, google-cloud-dataflow-client)."
)
_PACKAGE = "google.dataflow.v1beta3"
_THREADS = 16
_CHECK_SECONDS = 0.05
_LOST = frozenset({"drop", "disconnect"})
_GARBLED = frozenset({"garbage", "garbage-json", "truncated"})


def _in(request: Any, rest: str = "") -> str:
    location = f"/locations/{request.location}" if request.location else ""
    return f"/v1b3/projects/{request.project_id}{location}{rest}"


def _job(request: Any) -> str:
    return _in(request, f"/jobs/{request.job_id}")


# Service, RPC, type of request and answer, verb, path, and the field that is the body ("" has none, "*" is all).
_RPCS: tuple[tuple[str, str, str, str, str, Callable[[Any], str], str], ...] = (
    ("JobsV1Beta3", "CreateJob", "CreateJobRequest", "Job", "POST", lambda r: _in(r, "/jobs"), "job"),
    ("JobsV1Beta3", "GetJob", "GetJobRequest", "Job", "GET", _job, ""),
    ("JobsV1Beta3", "UpdateJob", "UpdateJobRequest", "Job", "PUT", _job, "job"),
    ("JobsV1Beta3", "ListJobs", "ListJobsRequest", "ListJobsResponse", "GET", lambda r: _in(r, "/jobs"), ""),
    (
        "JobsV1Beta3",
        "AggregatedListJobs",
        "ListJobsRequest",
        "ListJobsResponse",
        "GET",
        lambda r: f"/v1b3/projects/{r.project_id}/jobs:aggregated",
        "",
    ),
    (
        "MessagesV1Beta3",
        "ListJobMessages",
        "ListJobMessagesRequest",
        "ListJobMessagesResponse",
        "GET",
        lambda r: f"{_job(r)}/messages",
        "",
    ),
    (
        "MetricsV1Beta3",
        "GetJobMetrics",
        "GetJobMetricsRequest",
        "JobMetrics",
        "GET",
        lambda r: f"{_job(r)}/metrics",
        "",
    ),
    (
        "FlexTemplatesService",
        "LaunchFlexTemplate",
        "LaunchFlexTemplateRequest",
        "LaunchFlexTemplateResponse",
        "POST",
        lambda r: _in(r, "/flexTemplates:launch"),
        "*",
    ),
)


class GrpcServer:
    """Serves gRPC on a loopback port until it is closed.

    Args:
        service: The methods of Dataflow.
        access: Admits callers.

    Raises:
        ModuleNotFoundError: A required package is not installed.
    """

    def __init__(self, service: Service, access: Access) -> None:
        try:
            import grpc
            from google.cloud import dataflow_v1beta3
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(NEEDS_CLIENT, name=error.name) from error
        self._service = service
        self._access = access
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="dataflow-grpc")
        self._is_closing = False
        # Jobs list all their options, so they may be large.
        self._server = grpc.server(self._pool, options=[("grpc.max_receive_message_length", -1)])
        handlers: dict[str, dict[str, Any]] = {}
        for name, rpc, request, answer, verb, path, body in _RPCS:
            request_type, answer_type = getattr(dataflow_v1beta3, request), getattr(dataflow_v1beta3, answer)
            handlers.setdefault(name, {})[rpc] = grpc.unary_unary_rpc_method_handler(
                self._handler(answer_type, verb, path, body),
                request_deserializer=request_type.deserialize,
                response_serializer=answer_type.serialize,
            )
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(f"{_PACKAGE}.{name}", methods)
                for name, methods in handlers.items()
            )
        )
        self.port = int(self._server.add_insecure_port(f"{HOST}:0"))
        self._server.start()

    def close(self) -> None:
        """Stops at once."""
        self._is_closing = True
        self._server.stop(0).wait()
        self._pool.shutdown()

    def _handler(
        self, answer_type: Any, verb: str, path: Callable[[Any], str], body: str
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            from google.protobuf import json_format

            fields = json_format.MessageToDict(type(request).pb(request))
            call = RestCall(
                names={},
                query={} if body else {name: str(value) for name, value in fields.items()},
                headers={str(name).lower(): str(value) for name, value in context.invocation_metadata()},
                body=json.dumps(fields if body == "*" else fields.get(body, {})).encode() if body else b"",
            )
            answer = self._answer(call, verb, path(request), context)
            return json_format.ParseDict(answer, answer_type()._pb, ignore_unknown_fields=True)

        return handle

    def _answer(self, call: RestCall, verb: str, path: str, context: grpc.ServicerContext) -> Any:
        import grpc

        if not self._access.admits(call.headers):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
        found = self._service.find(verb, path, call.query)
        if found is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"The sandbox does not emulate this: {verb} {path}")
        route, names = found  # type: ignore[misc]
        call = RestCall(names=names, query=call.query, headers=call.headers, body=call.body)
        fault: Fault | None = self._service.take(route, call)
        kind = fault.kind if fault is not None else ""
        if kind == "hang":
            while context.is_active() and not self._is_closing:
                time.sleep(_CHECK_SECONDS)
            context.abort(grpc.StatusCode.CANCELLED, "The client has gone.")  # nothing is done, as over REST
        if fault is not None and fault.until is not None:
            while context.is_active() and not (self._is_closing or fault.until.is_released):
                time.sleep(_CHECK_SECONDS)
        reply = self._service.answer(route, call, fault)
        self._service.log(route, call, reply)
        if kind in _LOST:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if kind in _GARBLED:
            context.abort(grpc.StatusCode.UNKNOWN, "Stream removed")
        value = json.loads(reply.body)
        if reply.http_status != 200:
            error = value["error"]
            code = getattr(grpc.StatusCode, error["status"], grpc.StatusCode.UNKNOWN)
            context.abort(code, error["message"])
        return value
