"""Specifications of jobs, endpoints and quota questions: frozen values without I/O, clock, Airflow or Beam."""

from airflow_provider_llmbeam.spec.alerts import Alerts
from airflow_provider_llmbeam.spec.cache import Cache
from airflow_provider_llmbeam.spec.cascade import (
    Cascade,
    ExactAgreement,
    FieldScore,
    JudgeAgreement,
    LogprobScore,
    NumericAgreement,
    RepeatsScore,
    SetF1Agreement,
    Stage,
)
from airflow_provider_llmbeam.spec.conversation import Conversation
from airflow_provider_llmbeam.spec.demand import Demand, EarlierRate
from airflow_provider_llmbeam.spec.distilled import ColumnVectors, DistilledStage, ModelVectors, TfidfVectors
from airflow_provider_llmbeam.spec.endpoint import (
    Canary,
    CloudRunEndpoint,
    Endpoint,
    VertexEndpoint,
    parse_endpoint,
)
from airflow_provider_llmbeam.spec.endpoint.gpu_memory import Architecture
from airflow_provider_llmbeam.spec.inference import Inference
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.limits import Batching, Limits, PerKey, SharedBudget
from airflow_provider_llmbeam.spec.model import (
    AnthropicModel,
    Auth,
    DistilledModel,
    EchoModel,
    Embedding,
    GeminiModel,
    Generation,
    Model,
    OpenAIModel,
    VertexEndpointModel,
)
from airflow_provider_llmbeam.spec.model.price import Price
from airflow_provider_llmbeam.spec.prompt import Media, PromptTemplate
from airflow_provider_llmbeam.spec.runner import (
    DataflowRunner,
    DirectRunner,
    FlinkRunner,
    PortableRunner,
    PrismRunner,
    Runner,
    WorkerEnvironment,
)
from airflow_provider_llmbeam.spec.safety import AirflowRun, BigQueryAudit, FilesAudit, Moderation, Safety
from airflow_provider_llmbeam.spec.sink import (
    AnswerVectors,
    BigQuerySink,
    FilesSink,
    KafkaSink,
    MilvusSink,
    PostgresSink,
    PubSubSink,
    Sink,
)
from airflow_provider_llmbeam.spec.source import (
    BigQuerySource,
    CsvOptions,
    FilesSource,
    KafkaSource,
    PubSubSource,
    RowsSource,
    Source,
    SqlSource,
)
from airflow_provider_llmbeam.spec.stream import StreamOptions, StreamRun
from airflow_provider_llmbeam.spec.traces import Traces

__all__ = [
    "AirflowRun",
    "Alerts",
    "AnswerVectors",
    "AnthropicModel",
    "Architecture",
    "Auth",
    "Batching",
    "BigQueryAudit",
    "BigQuerySink",
    "BigQuerySource",
    "Cache",
    "Canary",
    "Cascade",
    "CloudRunEndpoint",
    "ColumnVectors",
    "Conversation",
    "CsvOptions",
    "DataflowRunner",
    "Demand",
    "DirectRunner",
    "DistilledModel",
    "DistilledStage",
    "EarlierRate",
    "EchoModel",
    "Embedding",
    "Endpoint",
    "ExactAgreement",
    "FieldScore",
    "FilesAudit",
    "FilesSink",
    "FilesSource",
    "FlinkRunner",
    "GeminiModel",
    "Generation",
    "Inference",
    "JobSpec",
    "JudgeAgreement",
    "KafkaSink",
    "KafkaSource",
    "Limits",
    "LogprobScore",
    "Media",
    "MilvusSink",
    "Model",
    "ModelVectors",
    "Moderation",
    "NumericAgreement",
    "OpenAIModel",
    "PerKey",
    "PortableRunner",
    "PostgresSink",
    "Price",
    "PrismRunner",
    "PromptTemplate",
    "PubSubSink",
    "PubSubSource",
    "RepeatsScore",
    "RowsSource",
    "Runner",
    "Safety",
    "SetF1Agreement",
    "SharedBudget",
    "Sink",
    "Source",
    "SqlSource",
    "Stage",
    "StreamOptions",
    "StreamRun",
    "TfidfVectors",
    "Traces",
    "VertexEndpoint",
    "VertexEndpointModel",
    "WorkerEnvironment",
    "parse_endpoint",
]
