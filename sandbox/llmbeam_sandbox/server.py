"""The sandbox server: a daemon thread with its own event loop, bound to loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from llmbeam_sandbox import control
from llmbeam_sandbox.batch_inference.files import GeminiFiles
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from llmbeam_sandbox.batch_inference.state import Batches
from llmbeam_sandbox.billing.settings import EndpointSettings
from llmbeam_sandbox.billing.state import Bill
from llmbeam_sandbox.billing.tokens import TokenBill
from llmbeam_sandbox.core.access import USER, Access
from llmbeam_sandbox.core.clock import Clock
from llmbeam_sandbox.core.faults import Faults
from llmbeam_sandbox.core.grpc import GrpcServer
from llmbeam_sandbox.core.records import RequestLog
from llmbeam_sandbox.dataflow.api import Dataflow
from llmbeam_sandbox.dataflow.settings import DataflowSettings
from llmbeam_sandbox.dlp.state import DlpState
from llmbeam_sandbox.flink.api import PATH as FLINK_PATH
from llmbeam_sandbox.flink.api import Flink
from llmbeam_sandbox.iam.state import IamState
from llmbeam_sandbox.models.cached_contents import CachedContents
from llmbeam_sandbox.models.quota import Quota
from llmbeam_sandbox.models.settings import ModelSettings
from llmbeam_sandbox.monitoring.state import DEFAULT_DELAY_SECONDS, Monitoring
from llmbeam_sandbox.network.guard import refuse_web_pages
from llmbeam_sandbox.network.loop_thread import HOST, LoopThread, Server, stop_accepting
from llmbeam_sandbox.pubsub.state import PubSubState
from llmbeam_sandbox.services import Services

MAX_BODY_BYTES = 500 * 1024 * 1024
"""Maximum size of a request: that of Gemini on Vertex AI, the largest of all model servers."""
BACKLOG = 2048
SHUTDOWN_SECONDS = 0.05
"""Time that requests in flight have when the sandbox stops, in seconds; aiohttp waits twice."""


class Sandbox(Server):
    """An emulated cloud on 127.0.0.1; a context manager.

    Args:
        port: Port of the server; 0 selects a free one.
        clock: Clock of quotas, records and durations; returns seconds since the epoch.
        seed: Seed of the drawn latencies.
        buckets: Buckets of Cloud Storage that exist from the start, and are empty again after a reset.
        models: Settings of the models.
        dataflow: Settings of Dataflow jobs.
        endpoints: Settings of the provisioning of Vertex AI endpoints and Cloud Run services.
        batch: Settings of the jobs of batch inference.
        bigquery_job_seconds: Duration of each BigQuery job, in seconds of the clock; its effects are at its end.
        monitoring_delay_seconds: Delay after the end of a minute until metrics show its points, in seconds of the
            clock.

    Raises:
        ValueError: A number is out of bounds, or the name of a bucket is invalid.
    """

    __test__ = False

    def __init__(
        self,
        *,
        port: int = 0,
        clock: Clock = time.time,
        seed: int = 0,
        buckets: Sequence[str] = (),
        models: ModelSettings | None = None,
        dataflow: DataflowSettings | None = None,
        endpoints: EndpointSettings | None = None,
        batch: BatchSettings | None = None,
        bigquery_job_seconds: float = 0.0,
        monitoring_delay_seconds: float = DEFAULT_DELAY_SECONDS,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise ValueError(f"`port` must be 0 (any free one) to 65535; got {port!r}.")
        self._port = port
        self._services = Services(
            clock=clock,
            seed=seed,
            buckets=buckets,
            models=models or ModelSettings(),
            dataflow=dataflow or DataflowSettings(),
            endpoints=endpoints or EndpointSettings(),
            batch=batch or BatchSettings(),
            bigquery_job_seconds=bigquery_job_seconds,
            monitoring_delay_seconds=monitoring_delay_seconds,
        )
        self._grpc: GrpcServer | None = None
        self._grpc_lock = threading.Lock()
        self._thread = LoopThread("llmbeam-sandbox", self._serve)

    @property
    def port(self) -> int:
        """Port of the server; 0 before the start if a free one was requested."""
        return self._port

    @property
    def url(self) -> str:
        """Address of the sandbox, without a trailing slash."""
        return f"http://{HOST}:{self._port}"

    @property
    def access(self) -> Access:
        """Who may use the services that run code or keep state."""
        return self._services.backend.access

    @property
    def token(self) -> str:
        """Token of this start, without which only models, metrics and statistics answer."""
        return self.access.token

    @property
    def authorized_url(self) -> str:
        """Address with the token, for clients without credentials, e.g. in `STORAGE_EMULATOR_HOST`."""
        return f"http://{USER}:{self.token}@{HOST}:{self._port}"

    @property
    def gemini_url(self) -> str:
        """Address for `HttpOptions(base_url=…)` of google-genai, in both of its modes."""
        return self.url

    @property
    def openai_url(self) -> str:
        """Address for `base_url` of OpenAI clients."""
        return f"{self.url}/v1"

    @property
    def faults(self) -> Faults:
        """The faults of each method."""
        return self._services.backend.faults

    @property
    def requests(self) -> RequestLog:
        """The log of all requests, with their answers and what was billed."""
        return self._services.backend.log

    @property
    def refused_hosts(self) -> Counter[str]:
        """Number of requests that a proxy refused, by host."""
        return self._services.backend.refused_hosts

    @property
    def bill(self) -> Bill:
        """The bill for accelerators."""
        return self._services.bill

    @property
    def token_bill(self) -> TokenBill:
        """The bill for tokens."""
        return self._services.models.token_bill

    @property
    def caches(self) -> CachedContents:
        """The cached contents of Gemini."""
        return self._services.caches

    @property
    def gemini_files(self) -> GeminiFiles:
        """The files of the Gemini Developer API."""
        return self._services.gemini_batches.files

    @property
    def batches(self) -> Batches:
        """Batch inference, whose settings tests change."""
        return self._services.batches

    @property
    def dataflow(self) -> Dataflow:
        """Dataflow and its jobs."""
        return self._services.dataflow

    @property
    def pubsub(self) -> PubSubState:
        """Topics and subscriptions of Pub/Sub, and their messages."""
        return self._services.pubsub

    @property
    def flink(self) -> Flink:
        """The Flink cluster, whose settings and jobs tests change."""
        return self._services.flink

    @property
    def flink_url(self) -> str:
        """Address of the REST API of the Flink cluster, with the token."""
        return f"{self.url}{FLINK_PATH}/{self.token}"

    @property
    def monitoring(self) -> Monitoring:
        """The metrics, and the methods with which tests change them."""
        return self._services.monitoring

    @property
    def iam(self) -> IamState:
        """Permissions, APIs, accounts, subnetworks and keys, which tests change."""
        return self._services.iam

    @property
    def dlp(self) -> DlpState:
        """Sensitive Data Protection: what it has inspected, and its limits."""
        return self._services.dlp

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """Endpoints of Vertex AI, as its API returns them."""
        return self._services.vertex.endpoints

    @property
    def models(self) -> list[dict[str, Any]]:
        """Models uploaded to Vertex AI, as its API returns them."""
        return self._services.vertex.models

    @property
    def contexts(self) -> list[dict[str, Any]]:
        """All contexts of the metadata stores of Vertex AI: experiments and their runs."""
        return self._services.vertex.contexts

    @property
    def services(self) -> list[dict[str, Any]]:
        """Services of Cloud Run, as its API returns them."""
        return self._services.cloud_run.services

    @property
    def job_environments(self) -> list[dict[str, str]]:
        """Environment variables of Dataflow jobs, which get the last ones; a proxy adds its own while it runs."""
        return self.dataflow.runs.environments

    def stats(self) -> control.Stats:
        """Returns statistics of all requests since the start or the last reset."""
        return control.stats(self._services)

    def set_quota(self, quota: Quota, location: str | None = None) -> None:
        """Changes the limits of the models from now on, until a reset; nothing of the new quota is used yet.

        Args:
            quota: New limits of each model.
            location: Location in Vertex AI's paths; None is every location without limits of its own, and all
                other paths.
        """
        self._services.models.set_quota(quota, location)

    def reset(self) -> None:
        """Clears the request log, faults, used quota, the bill and the state of all services; kills jobs."""
        self._services.backend.reset()

    def start(self) -> None:
        """Starts to serve; returns when connections are accepted.

        Raises:
            RuntimeError: It is running already.
            OSError: The port is in use.
        """
        if self._thread.is_running:
            raise RuntimeError(f"The sandbox is already running on {self.url}; stop it first.")
        self.access.renew()
        self._port = self._thread.start()
        self.job_environments[:] = [self.environment()]

    def start_grpc(self) -> int:
        """Starts to serve Dataflow and Pub/Sub over gRPC without TLS, unless they are, and returns the port.

        Raises:
            ModuleNotFoundError: A required package is not installed.
            RuntimeError: The sandbox is not running.
        """
        with self._grpc_lock:
            if not self._thread.is_running:
                raise RuntimeError("The sandbox is not running; start it first.")
            if self._grpc is None:
                self._grpc = GrpcServer(self._services.grpc_apis(), self.access)
            return self._grpc.port

    def environment(self) -> dict[str, str]:
        """Returns the variables with which clients of storage and models reach the sandbox without a proxy."""
        return {
            "STORAGE_EMULATOR_HOST": self.authorized_url,
            "GOOGLE_GEMINI_BASE_URL": self.gemini_url,
            "GOOGLE_API_KEY": "sandbox",
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "sandbox",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "sandbox",
            "NO_GCE_CHECK": "true",
        }

    def stop(self) -> None:
        """Drops the requests in flight and stops; does nothing when it is not running."""
        if not self._thread.is_running:
            return
        self.dataflow.runs.end_all()
        with self._grpc_lock:
            if self._grpc is not None:
                self._grpc.close()
            self._grpc = None
        self._thread.stop()

    async def _serve(self, ready: Callable[[int], None], stopping: asyncio.Event) -> None:
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        with socket.create_server((HOST, self._port)) as listener:
            try:
                await web.SockSite(runner, listener, backlog=BACKLOG).start()
                ready(runner.addresses[0][1])
                await stopping.wait()
                await stop_accepting(listener)
            finally:
                await runner.cleanup()

    def _application(self) -> web.Application:
        middlewares = [_ignore_lost_clients, refuse_web_pages, self._services.middleware()]
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=middlewares)
        application.add_routes(control.routes(self._services))
        application.add_routes(self._services.routes())
        return application


@web.middleware
async def _ignore_lost_clients(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Ends a request without a traceback if its client has disconnected."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response(status=499)
