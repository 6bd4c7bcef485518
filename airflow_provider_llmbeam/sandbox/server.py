"""The sandbox server: a daemon thread with its own event loop, bound to loopback."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from airflow_provider_llmbeam.sandbox.bigquery import api as bigquery
from airflow_provider_llmbeam.sandbox.billing.bill import Bill
from airflow_provider_llmbeam.sandbox.cloud_quotas import api as cloud_quotas
from airflow_provider_llmbeam.sandbox.cloud_run import api as cloud_run
from airflow_provider_llmbeam.sandbox.cloud_run import traffic as cloud_run_traffic
from airflow_provider_llmbeam.sandbox.cloud_run.state import Instances
from airflow_provider_llmbeam.sandbox.core import control
from airflow_provider_llmbeam.sandbox.core.backend import Backend
from airflow_provider_llmbeam.sandbox.core.clock import Clock
from airflow_provider_llmbeam.sandbox.core.control import Stats
from airflow_provider_llmbeam.sandbox.core.faults import Faults
from airflow_provider_llmbeam.sandbox.core.records import RequestLog
from airflow_provider_llmbeam.sandbox.core.rest import RestError
from airflow_provider_llmbeam.sandbox.core.timeline import Timeline
from airflow_provider_llmbeam.sandbox.dataflow import api as dataflow
from airflow_provider_llmbeam.sandbox.dataflow.grpc import GrpcServer
from airflow_provider_llmbeam.sandbox.dataflow.runs import DataflowSettings
from airflow_provider_llmbeam.sandbox.models import gemini, gemini_embeddings, openai, openai_embeddings
from airflow_provider_llmbeam.sandbox.models.answers import Tokenizer, count_bytes
from airflow_provider_llmbeam.sandbox.models.latency import Latency
from airflow_provider_llmbeam.sandbox.models.quota import Quota
from airflow_provider_llmbeam.sandbox.monitoring import api as monitoring
from airflow_provider_llmbeam.sandbox.network import credentials
from airflow_provider_llmbeam.sandbox.secret_manager import api as secret_manager
from airflow_provider_llmbeam.sandbox.storage import api as storage
from airflow_provider_llmbeam.sandbox.storage.state import ObjectStore
from airflow_provider_llmbeam.sandbox.vertex import api as vertex
from airflow_provider_llmbeam.sandbox.vertex import predictions as vertex_predictions
from airflow_provider_llmbeam.sandbox.vertex.checks import gpus_by_name

HOST = "127.0.0.1"
DEFAULT_INPUT_TOKEN_LIMIT = 1_048_576
MAX_BODY_BYTES = 64 * 1024 * 1024
BACKLOG = 2048
SHUTDOWN_SECONDS = 0.05
"""How long requests in flight may go on when the sandbox stops; aiohttp waits twice."""
NO_QUOTA = Quota()
NO_LATENCY = Latency()


class Sandbox:
    """An emulated cloud on 127.0.0.1; a context manager.

    Args:
        port: 0 takes a free one.
        quota: What each model may be asked, on Vertex AI's paths in each location; by default without limit.
        location_quotas: Location to what each model may be asked there instead, on Vertex AI's paths.
        latency: How long an answer takes; by default none.
        input_token_limit: Longest prompt a model takes, in tokens.
        openai_api_key: What OpenAI clients must bring; None lets everyone in.
        clock: Read for quotas and records, seconds since the epoch.
        seed: Of the latencies drawn.
        buckets: Of Cloud Storage, there from the start and empty again after a reset.
        job_seconds: How long each BigQuery job takes, by the clock; what it does happens at its end.
        dataflow_workers: SDK harnesses of each Dataflow job, >= 1; a job that allows fewer gets fewer.
        dataflow_bundle_repeats: How often each bundle is run besides, its outputs forgotten, as after the loss of
            a worker.
        dataflow_start_seconds: How long a Dataflow job waits before it runs, in real seconds.
        projects: Whose jobs Dataflow takes; None takes any.
        flex_launcher: The command that stands for the container of a flex template; options are added to it.
            None is this package's pipeline.
        endpoint_seconds: How long an operation on endpoints, models and services takes, by the clock.
        endpoint_warm_seconds: How long a model deployed to an endpoint answers 503 at first, by the clock.
        cold_start_seconds: How long an instance of Cloud Run that a request starts answers 503, by the clock.
        idle_seconds: After its last request, an instance that is not kept ends, by the clock.
        gpu_quota: Of each project, for endpoints and for services: location to accelerator to number, e.g.
            {"europe-west4": {"NVIDIA_L4": 2}}; what is not named is 0. None is without limit.
        monitoring_delay_seconds: How long after its minute a point of a metric is seen, by the clock.
        tokenizer: Returns the tokens of a text, of a longer one at least as many; by default UTF-8 bytes / 4.

    Raises:
        ValueError: A number is out of bounds, a bucket cannot be called so, an accelerator is unknown, or the
            launcher is empty.
    """

    __test__ = False

    def __init__(
        self,
        *,
        port: int = 0,
        quota: Quota = NO_QUOTA,
        location_quotas: Mapping[str, Quota] | None = None,
        latency: Latency = NO_LATENCY,
        input_token_limit: int = DEFAULT_INPUT_TOKEN_LIMIT,
        openai_api_key: str | None = None,
        clock: Clock = time.time,
        seed: int = 0,
        buckets: Sequence[str] = (),
        job_seconds: float = 0.0,
        dataflow_workers: int = 1,
        dataflow_bundle_repeats: int = 0,
        dataflow_start_seconds: float = 0.0,
        projects: Sequence[str] | None = None,
        flex_launcher: Sequence[str] | None = None,
        endpoint_seconds: float = 0.0,
        endpoint_warm_seconds: float = 0.0,
        cold_start_seconds: float = 0.0,
        idle_seconds: float = 900.0,
        gpu_quota: Mapping[str, Mapping[str, int]] | None = None,
        monitoring_delay_seconds: float = monitoring.DEFAULT_DELAY_SECONDS,
        tokenizer: Tokenizer = count_bytes,
    ) -> None:
        if not 0 <= port <= 65_535:
            raise ValueError(f"`port` must be 0 (any free one) to 65535; got {port!r}.")
        if input_token_limit < 1:
            raise ValueError(f"`input_token_limit` must be >= 1 token; got {input_token_limit!r}.")
        self._port = port
        self._input_token_limit = input_token_limit
        self._openai_api_key = openai_api_key
        self._backend = Backend(
            quota=quota,
            location_quotas=location_quotas,
            latency=latency,
            clock=clock,
            seed=seed,
            tokenizer=tokenizer,
        )
        try:
            store = ObjectStore(clock, buckets)
        except RestError as error:
            raise ValueError(f"`buckets` must be names of buckets. {error}") from error
        self._storage = storage.Storage(store)
        self._bigquery = bigquery.BigQuery(self._backend, store, job_seconds=job_seconds)
        self._secrets = secret_manager.SecretManager(clock)
        settings = DataflowSettings(
            workers=dataflow_workers,
            bundle_repeats=dataflow_bundle_repeats,
            start_seconds=dataflow_start_seconds,
            projects=None if projects is None else tuple(projects),
            **({} if flex_launcher is None else {"flex_launcher": tuple(flex_launcher)}),
        )
        self.dataflow = dataflow.Dataflow(self._backend, store, settings)
        self._backend.jobs_by_state = self.dataflow.by_state
        seconds = {
            "endpoint_seconds": endpoint_seconds,
            "endpoint_warm_seconds": endpoint_warm_seconds,
            "cold_start_seconds": cold_start_seconds,
            "idle_seconds": idle_seconds,
        }
        for name, value in seconds.items():
            if not value >= 0:
                raise ValueError(f"`{name}` must be >= 0; got {value!r}.")
        gpus_by_name(gpu_quota)
        timeline = Timeline(clock)
        self.bill = Bill(timeline)
        self._backend.bill = self.bill.fields
        self._vertex = vertex.Vertex(
            self._backend,
            timeline,
            self.bill,
            operation_seconds=endpoint_seconds,
            warm_seconds=endpoint_warm_seconds,
            gpu_quota=gpu_quota,
        )
        self._cloud_run = cloud_run.CloudRun(
            self._backend,
            timeline,
            self.bill,
            operation_seconds=endpoint_seconds,
            instances=Instances(
                timeline=timeline, bill=self.bill, cold_start_seconds=cold_start_seconds, idle_seconds=idle_seconds
            ),
            gpu_quota=gpu_quota,
            has_secret=self._secrets.has,
        )
        self.monitoring = monitoring.Monitoring(
            self._backend,
            self._vertex.state,
            self.bill,
            delay_seconds=monitoring_delay_seconds,
            gpu_quota=gpu_quota,
        )
        self._quotas = cloud_quotas.CloudQuotas(self._backend, self.monitoring, gpu_quota)
        self._grpc: GrpcServer | None = None
        self._grpc_lock = threading.Lock()
        self._backend.on_reset += [
            self.dataflow.clear,
            self._storage.clear,
            self._bigquery.clear,
            self._secrets.clear,
            timeline.clear,
            self._vertex.clear,
            self._cloud_run.clear,
            self.bill.clear,
            self.monitoring.clear,
        ]
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port in use; 0 before the start when any free one was asked for."""
        return self._port

    @property
    def url(self) -> str:
        """Where the sandbox answers, without a trailing slash."""
        return f"http://{HOST}:{self._port}"

    @property
    def gemini_url(self) -> str:
        """What google-genai takes as `HttpOptions(base_url=…)`, for both of its modes."""
        return self.url

    @property
    def openai_url(self) -> str:
        """What OpenAI clients take as `base_url`."""
        return f"{self.url}/v1"

    @property
    def faults(self) -> Faults:
        """The faults in front of each method."""
        return self._backend.faults

    @property
    def requests(self) -> RequestLog:
        """What was asked, answered and billed."""
        return self._backend.log

    @property
    def refused_hosts(self) -> Counter[str]:
        """What a proxy in front refused, and how often."""
        return self._backend.refused_hosts

    @property
    def endpoints(self) -> list[dict[str, Any]]:
        """Those of Vertex AI, as its API shows them."""
        return self._vertex.endpoints

    @property
    def models(self) -> list[dict[str, Any]]:
        """Those uploaded to Vertex AI, as its API shows them."""
        return self._vertex.models

    @property
    def services(self) -> list[dict[str, Any]]:
        """Those of Cloud Run, as its API shows them."""
        return self._cloud_run.services

    def stats(self) -> Stats:
        """Summarise what happened since the start or the last reset."""
        return control.stats(self._backend)

    def set_quota(self, quota: Quota, location: str | None = None) -> None:
        """Allow something else from now on, until a reset; where that is so, nothing has been used yet.

        Args:
            quota: What each model may be asked.
            location: Of Vertex AI's paths; None is all that have no quota of their own, and the other paths.
        """
        self._backend.quotas.change(self._backend.now(), quota, location)

    def reset(self) -> None:
        """Forget requests, faults, the quota used, all that is held or set and the bill; end and forget jobs."""
        self._backend.reset()

    def start(self) -> None:
        """Start to serve; returns when connections are accepted.

        Raises:
            RuntimeError: It is running already.
            OSError: The port is taken.
        """
        if self._thread is not None:
            raise RuntimeError(f"The sandbox is already running on {self.url}; stop it first.")
        ready: Future[int] = Future()
        thread = threading.Thread(target=self._run, args=(ready,), name="llmbeam-sandbox", daemon=True)
        thread.start()
        try:
            self._port = ready.result()
        except BaseException:
            thread.join()
            raise
        self._thread = thread
        self.dataflow.runs.environment = self.environment()

    def start_grpc(self) -> int:
        """Serve Dataflow over gRPC as well, without TLS; returns its port, also when it is served already.

        Raises:
            ModuleNotFoundError: What it needs is not installed.
            RuntimeError: The sandbox is not running.
        """
        with self._grpc_lock:
            if self._thread is None:
                raise RuntimeError("The sandbox is not running; start it first.")
            if self._grpc is None:
                self._grpc = GrpcServer(self.dataflow.service)
            return self._grpc.port

    def environment(self) -> dict[str, str]:
        """Return the variables under which storage and models are found without a proxy, as far as clients can."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "GOOGLE_GEMINI_BASE_URL": self.gemini_url,
            "GOOGLE_API_KEY": "sandbox",
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "sandbox",
            "NO_GCE_CHECK": "true",
        }

    def stop(self) -> None:
        """Drop what is in flight and stop; does nothing when it is not running."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self.dataflow.runs.end_all()
        with self._grpc_lock:
            if self._grpc is not None:
                self._grpc.close()
            self._grpc = None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._thread = self._loop = self._stopping = None

    def _run(self, ready: Future[int]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, self._port, backlog=BACKLOG).start()
            ready.set_result(runner.addresses[0][1])
            await self._stopping.wait()
        finally:
            await runner.cleanup()

    def _application(self) -> web.Application:
        limit = self._input_token_limit
        traffic = cloud_run_traffic.Traffic(self._backend, self._cloud_run, input_token_limit=limit)
        middlewares = [_without_those_who_left, traffic.middleware()]
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=middlewares)
        application.add_routes(control.routes(self._backend))
        application.add_routes(credentials.routes())
        application.add_routes(storage.routes(self._backend, self._storage))
        application.add_routes(bigquery.routes(self._backend, self._bigquery))
        application.add_routes(secret_manager.routes(self._backend, self._secrets))
        application.add_routes(monitoring.routes(self._backend, self.monitoring))
        application.add_routes(cloud_quotas.routes(self._backend, self._quotas))
        application.add_routes(dataflow.routes(self.dataflow))
        application.add_routes(vertex_predictions.routes(self._backend, self._vertex, input_token_limit=limit))
        application.add_routes([web.route("*", "/v2/projects/{tail:.*}", self._cloud_run.service.serve)])
        for module in (openai, openai_embeddings):
            application.add_routes(
                module.routes(self._backend, api_key=self._openai_api_key, input_token_limit=limit)
            )
        application.add_routes(gemini_embeddings.routes(self._backend, input_token_limit=limit))
        application.add_routes(gemini.routes(self._backend, input_token_limit=limit))
        return application


@web.middleware
async def _without_those_who_left(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Nobody waits for the answer of a client that was killed meanwhile, and no traceback is due."""
    try:
        return await handler(request)
    except ConnectionResetError:
        return web.Response(status=499)
