"""The services of the emulated cloud, connected with each other."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

from llmbeam_sandbox.batch_inference import anthropic as anthropic_batches
from llmbeam_sandbox.batch_inference import gemini as gemini_batches
from llmbeam_sandbox.batch_inference import openai as openai_batches
from llmbeam_sandbox.batch_inference import vertex as vertex_batches
from llmbeam_sandbox.batch_inference.settings import BatchSettings
from llmbeam_sandbox.batch_inference.state import Batches
from llmbeam_sandbox.bigquery import api as bigquery
from llmbeam_sandbox.billing.settings import EndpointSettings
from llmbeam_sandbox.billing.state import Bill
from llmbeam_sandbox.cloud_quotas import api as cloud_quotas
from llmbeam_sandbox.cloud_run import api as cloud_run
from llmbeam_sandbox.cloud_run import traffic as cloud_run_traffic
from llmbeam_sandbox.core.backend import Backend
from llmbeam_sandbox.core.clock import Clock, Timeline
from llmbeam_sandbox.core.grpc import GrpcApi
from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.rest import RestError
from llmbeam_sandbox.dataflow import api as dataflow
from llmbeam_sandbox.dataflow import grpc as dataflow_grpc
from llmbeam_sandbox.dataflow.api import Dataflow
from llmbeam_sandbox.dataflow.settings import DataflowSettings
from llmbeam_sandbox.dlp import api as dlp
from llmbeam_sandbox.dlp.state import DlpState
from llmbeam_sandbox.flink import api as flink
from llmbeam_sandbox.iam import api as iam
from llmbeam_sandbox.iam.state import IamState
from llmbeam_sandbox.models import anthropic, cached_content_routes, cached_contents, gemini, openai
from llmbeam_sandbox.models.embedding import gemini as gemini_embeddings
from llmbeam_sandbox.models.embedding import openai as openai_embeddings
from llmbeam_sandbox.models.server import ModelServer
from llmbeam_sandbox.models.settings import ModelSettings
from llmbeam_sandbox.monitoring import api as monitoring
from llmbeam_sandbox.monitoring.state import Monitoring
from llmbeam_sandbox.network import credentials
from llmbeam_sandbox.pubsub import api as pubsub
from llmbeam_sandbox.pubsub import grpc as pubsub_grpc
from llmbeam_sandbox.pubsub.state import PubSubState
from llmbeam_sandbox.secret_manager import api as secret_manager
from llmbeam_sandbox.secret_manager.state import SecretStore
from llmbeam_sandbox.storage import api as storage
from llmbeam_sandbox.storage.state import ObjectStore
from llmbeam_sandbox.vertex import api as vertex
from llmbeam_sandbox.vertex import predictions as vertex_predictions

METHODS = Methods.joined(
    module.METHODS
    for module in (
        gemini,
        cached_contents,
        gemini_embeddings,
        openai,
        openai_embeddings,
        anthropic,
        storage,
        bigquery,
        pubsub,
        secret_manager,
        dlp,
        dataflow,
        flink,
        vertex_predictions,
        vertex,
        vertex_batches,
        gemini_batches,
        openai_batches,
        anthropic_batches,
        cloud_run,
        cloud_run_traffic,
        monitoring,
        cloud_quotas,
        iam,
    )
)
"""The methods of all services; a service that is missing here cannot make a route."""


class Services:
    """All services of one sandbox.

    Args:
        clock: Returns seconds since the epoch.
        seed: Seed of the drawn latencies.
        buckets: Buckets that exist from the start, and after a reset.
        models: Settings of the models.
        dataflow: Settings of Dataflow jobs.
        endpoints: Settings of the provisioning of endpoints and services.
        batch: Settings of the jobs of batch inference.
        bigquery_job_seconds: Duration of each BigQuery job, in seconds of the clock.
        monitoring_delay_seconds: Delay after the end of a minute until its points are visible, in seconds.

    Raises:
        ValueError: The name of a bucket is invalid, or a number is negative.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        seed: int,
        buckets: Sequence[str],
        models: ModelSettings,
        dataflow: DataflowSettings,
        endpoints: EndpointSettings,
        batch: BatchSettings,
        bigquery_job_seconds: float,
        monitoring_delay_seconds: float,
    ) -> None:
        self.backend = Backend(clock, METHODS)
        self.models = ModelServer(self.backend, models, seed)
        self.caches = cached_contents.CachedContents(
            self.backend,
            self.models.token_bill,
            gemini.cache_texts,
            min_tokens=models.min_cached_tokens,
            storage_usd=models.cache_storage_usd,
        )
        self.prompt_cache = anthropic.PromptCache(self.backend.now)
        self.models.token_bill.storage_nano_usd = self.caches.storage_nano_usd
        try:
            store = ObjectStore(clock, buckets)
        except RestError as error:
            raise ValueError(f"`buckets` must be names of buckets. {error}") from error
        self.storage = storage.Storage(store)
        self.bigquery = bigquery.BigQuery(clock, store, job_seconds=bigquery_job_seconds)
        self.dataflow = Dataflow(self.backend, store, dataflow)
        self.flink = flink.Flink(self.backend)
        self.secrets = SecretStore(clock)
        self.iam = IamState()
        self.dlp = DlpState(clock)
        self.pubsub = PubSubState(clock)
        self.pubsub_service = pubsub.make_service(self.backend, self.pubsub)
        timeline = Timeline(clock)
        self.bill = Bill(timeline)
        self.vertex = vertex.Vertex(self.backend, timeline, self.bill, endpoints)
        self.batches = Batches(Timeline(clock), batch, seed)
        self.models.token_bill.on_read.append(self.batches.settle)
        self.vertex_batches = vertex_batches.VertexBatches(
            self.backend, self.batches, self.models, store, self.prompt_cache
        )
        self.gemini_batches = gemini_batches.GeminiBatches(self.backend, self.batches, self.models)
        self.openai_batches = openai_batches.OpenAIBatches(self.backend, self.batches, self.models)
        self.anthropic_batches = anthropic_batches.AnthropicBatches(
            self.backend, self.batches, self.models, self.prompt_cache
        )
        self.cloud_run = cloud_run.CloudRun(
            self.backend, timeline, self.bill, endpoints, has_secret=self.secrets.has
        )
        self.monitoring = Monitoring(
            self.models, self.vertex.state, self.bill, delay_seconds=monitoring_delay_seconds
        )
        self.quotas = cloud_quotas.CloudQuotas(self.models, self.monitoring.requested_models, endpoints.gpu_quota)
        self.backend.on_reset += [
            self.batches.clear,
            self.caches.clear,
            self.prompt_cache.clear,
            self.vertex_batches.jobs.clear,
            self.gemini_batches.clear,
            self.openai_batches.clear,
            self.anthropic_batches.clear,
            self.models.clear,
            self.dataflow.clear,
            self.flink.clear,
            self.storage.clear,
            self.bigquery.clear,
            self.secrets.clear,
            self.iam.clear,
            self.dlp.clear,
            self.pubsub.clear,
            timeline.clear,
            self.vertex.clear,
            self.cloud_run.clear,
            self.bill.clear,
            self.monitoring.clear,
        ]

    def middleware(self) -> Middleware:
        """Returns the middleware that answers requests to services of Cloud Run, by their hosts."""
        return cloud_run_traffic.Traffic(self.models, self.cloud_run).middleware()

    def grpc_apis(self) -> list[GrpcApi]:
        """Returns the services that are served over gRPC, too."""
        return [
            dataflow_grpc.grpc_api(self.dataflow.service),
            pubsub_grpc.grpc_api(self.pubsub_service, self.pubsub),
        ]

    def routes(self) -> list[web.AbstractRouteDef]:
        """Returns the routes of all services; the last of an application, as Gemini's match every POST.

        Models, metrics and quotas need no token: they run nothing, and keep nothing but the batches, files and
        caches of callers with an API key or a token of their own.
        """
        access = self.backend.access
        return [
            *credentials.routes(access),
            *access.guarded(iam.routes(self.backend, iam.Iam(self.iam, self.secrets.has_secret))),
            *access.guarded(storage.routes(self.backend, self.storage)),
            *access.guarded(bigquery.routes(self.backend, self.bigquery)),
            *access.guarded(pubsub.routes(self.pubsub_service)),
            *access.guarded(secret_manager.routes(self.backend, self.secrets)),
            *access.guarded(dlp.routes(self.backend, self.dlp)),
            *monitoring.routes(self.backend, self.monitoring),
            *cloud_quotas.routes(self.backend, self.quotas),
            *access.guarded(dataflow.routes(self.dataflow)),
            *access.guarded(flink.routes(self.flink)),
            *vertex_predictions.routes(self.models, self.vertex),
            *access.guarded(vertex_batches.routes(self.vertex_batches)),
            *cached_content_routes.routes(self.caches),
            *access.guarded(vertex.routes(self.vertex)),
            *access.guarded(cloud_run.routes(self.cloud_run)),
            *anthropic.routes(self.models, self.prompt_cache),
            *anthropic_batches.routes(self.anthropic_batches),
            *openai.routes(self.models, anthropic.list_dialect(self.prompt_cache)),
            *openai_batches.routes(self.openai_batches),
            *openai_embeddings.routes(self.models),
            *gemini_batches.routes(self.gemini_batches),
            *gemini_embeddings.routes(self.models),
            *gemini.routes(self.models, self.caches, self.gemini_batches.files.find_upload),
        ]
