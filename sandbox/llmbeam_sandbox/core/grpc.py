"""Services of Google over gRPC, for clients that use no REST: the methods of their REST APIs, and streams."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmbeam_sandbox.core.access import REFUSAL, Access
from llmbeam_sandbox.core.faults import Fault
from llmbeam_sandbox.core.rest import STATUSES, RestCall, RestError, Service

if TYPE_CHECKING:
    import grpc

HOST = "127.0.0.1"
NEEDS_CLIENT = (
    "gRPC of the sandbox needs packages that come with Beam: `pip install 'apache-beam[gcp]'` "
    "(grpcio, google-cloud-dataflow-client, google-cloud-pubsub)."
)
#: Each stream keeps one thread.
_THREADS = 32
_CHECK_SECONDS = 0.05
_LOST = frozenset({"drop", "disconnect"})
_GARBLED = frozenset({"garbage", "garbage-json", "truncated"})

#: Answers a stream: the requests, and whether the client is still there.
Stream = Callable[[Iterator[Any], Callable[[], bool]], Iterator[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rpc:
    """A method of gRPC that a method of the REST API answers.

    Attributes:
        service: Its service.
        name: Its name.
        request: Type of the request.
        answer: Type of the answer; "" for an empty one.
        verb: HTTP method.
        path: Returns the path for a request.
        body: Field that is the body: "" for none, "*" for all but `in_path`.
        in_path: Fields that REST has in the path, by their names in JSON.
    """

    service: str
    name: str
    request: str
    answer: str
    verb: str
    path: Callable[[Any], str]
    body: str
    in_path: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcApi:
    """An API of Google over gRPC.

    Attributes:
        package: Its package in the paths of gRPC.
        types: Python module with the types of its messages.
        methods: Its methods over REST.
        rpcs: Its methods over gRPC.
        streams: Streams, by service and name, each with the type of its requests and of its answers.
    """

    package: str
    types: str
    methods: Service
    rpcs: Sequence[Rpc]
    streams: Mapping[tuple[str, str], tuple[str, str, Stream]] = field(default_factory=dict)


class GrpcServer:
    """Serves gRPC on a loopback port until it is closed.

    Args:
        apis: What it serves.
        access: Admits callers.

    Raises:
        ModuleNotFoundError: A required package is not installed.
    """

    def __init__(self, apis: Sequence[GrpcApi], access: Access) -> None:
        try:
            import grpc

            types = [importlib.import_module(api.types) for api in apis]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(NEEDS_CLIENT, name=error.name) from error
        self._access = access
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="llmbeam-grpc")
        self._is_closing = False
        # Jobs list all their options, so they may be large.
        self._server = grpc.server(self._pool, options=[("grpc.max_receive_message_length", -1)])
        handlers: dict[str, dict[str, Any]] = {}
        for api, module in zip(apis, types, strict=True):
            for rpc in api.rpcs:
                handlers.setdefault(f"{api.package}.{rpc.service}", {})[rpc.name] = (
                    grpc.unary_unary_rpc_method_handler(
                        self._handler(api.methods, rpc, module),
                        request_deserializer=getattr(module, rpc.request).deserialize,
                        response_serializer=type(_answer_of(rpc, module)).SerializeToString,
                    )
                )
            for (service, name), (request, answer, stream) in api.streams.items():
                handlers.setdefault(f"{api.package}.{service}", {})[name] = grpc.stream_stream_rpc_method_handler(
                    self._stream_handler(stream),
                    request_deserializer=getattr(module, request).deserialize,
                    response_serializer=getattr(module, answer).serialize,
                )
        self._server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in handlers.items())
        )
        self.port = int(self._server.add_insecure_port(f"{HOST}:0"))
        self._server.start()

    def close(self) -> None:
        """Stops at once."""
        self._is_closing = True
        self._server.stop(0).wait()
        self._pool.shutdown()

    def _handler(self, service: Service, rpc: Rpc, types: Any) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            from google.protobuf import json_format

            fields = json_format.MessageToDict(type(request).pb(request))
            whole = {name: value for name, value in fields.items() if name not in rpc.in_path}
            sent = whole if rpc.body == "*" else fields.get(rpc.body, {})
            call = RestCall(
                names={},
                query={} if rpc.body else {name: str(value) for name, value in fields.items()},
                headers=_headers(context),
                body=json.dumps(sent).encode() if rpc.body else b"",
            )
            answer = self._answer(service, call, rpc.verb, rpc.path(request), context)
            return json_format.ParseDict(answer, _answer_of(rpc, types), ignore_unknown_fields=True)

        return handle

    def _stream_handler(self, stream: Stream) -> Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]:
        def handle(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            import grpc

            if not self._access.admits(_headers(context)):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
            try:
                yield from stream(requests, lambda: context.is_active() and not self._is_closing)
            except RestError as error:
                context.abort(getattr(grpc.StatusCode, STATUSES[error.http_status]), error.message)

        return handle

    def _answer(
        self, service: Service, call: RestCall, verb: str, path: str, context: grpc.ServicerContext
    ) -> Any:
        import grpc

        if not self._access.admits(call.headers):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSAL)
        found = service.find(verb, path, call.query)
        if found is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, f"The sandbox does not emulate this: {verb} {path}")
        route, names = found  # type: ignore[misc]
        call = RestCall(names=names, query=call.query, headers=call.headers, body=call.body)
        fault: Fault | None = service.take(route, call)
        kind = fault.kind if fault is not None else ""
        if kind == "hang":
            while context.is_active() and not self._is_closing:
                time.sleep(_CHECK_SECONDS)
            context.abort(grpc.StatusCode.CANCELLED, "The client has gone.")  # nothing is done, as over REST
        if fault is not None and fault.until is not None:
            while context.is_active() and not (self._is_closing or fault.until.is_released):
                time.sleep(_CHECK_SECONDS)
        reply = service.answer(route, call, fault)
        service.log(route, call, reply)
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


def _headers(context: grpc.ServicerContext) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in context.invocation_metadata()}


def _answer_of(rpc: Rpc, types: Any) -> Any:
    """Returns an answer without content, as a message of protobuf."""
    from google.protobuf.empty_pb2 import Empty

    return getattr(types, rpc.answer)()._pb if rpc.answer else Empty()
