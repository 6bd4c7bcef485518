"""The public API as a Dag author uses it: checked by mypy in scripts/check, never executed.

A line with `# type: ignore[code]` is a mistake that the types must refuse: mypy runs in strict mode, which fails
where such a comment is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, assert_type

from airflow.sdk import DAG, BaseOperator, XComArg
from apache_beam.ml.inference.base import RunInference

from airflow_provider_llmbeam.beam import LLMCaller, LLMInference, LLMModelHandler
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.exceptions import JobSpecError, LLMBeamError
from airflow_provider_llmbeam.operators.compare_inference import CompareInferenceOperator
from airflow_provider_llmbeam.operators.endpoint import (
    ProvisionEndpointOperator,
    ReserveEndpointOperator,
    TeardownEndpointOperator,
)
from airflow_provider_llmbeam.operators.estimate import EstimateInferenceOperator
from airflow_provider_llmbeam.operators.evaluate_inference import EvaluateInferenceOperator
from airflow_provider_llmbeam.operators.inference_endpoint import InferenceEndpoint, inference_endpoint
from airflow_provider_llmbeam.operators.model_registry import (
    PromoteModelOperator,
    ResolveModelOperator,
    RollBackModelOperator,
)
from airflow_provider_llmbeam.operators.review_answers import (
    AddGoldenRowsOperator,
    SampleAnswersOperator,
    review_answers,
)
from airflow_provider_llmbeam.operators.run_inference import RunInferenceOperator
from airflow_provider_llmbeam.operators.sweep import SweepEndpointsOperator
from airflow_provider_llmbeam.operators.sweep_batch_inference import SweepBatchInferenceOperator
from airflow_provider_llmbeam.sensors.endpoint import EndpointReadySensor
from airflow_provider_llmbeam.sensors.quota import QuotaHealthSensor
from airflow_provider_llmbeam.spec import (
    AnthropicModel,
    Batching,
    BigQuerySink,
    BigQuerySource,
    Cache,
    CloudRunEndpoint,
    DataflowRunner,
    Demand,
    DistilledModel,
    EchoModel,
    Embedding,
    FilesSink,
    FilesSource,
    GeminiModel,
    Generation,
    Inference,
    JobSpec,
    KafkaSink,
    KafkaSource,
    Limits,
    MilvusSink,
    OpenAIModel,
    PostgresSink,
    Price,
    PromptTemplate,
    PubSubSink,
    PubSubSource,
    RowsSource,
    SqlSource,
    VertexEndpoint,
    VertexEndpointModel,
    parse_endpoint,
)
from airflow_provider_llmbeam.spec.evaluation import Alternative, Judge, LabelF1Metric


def prompt_values() -> None:
    """Values of which a job makes one for each row are frozen for the type checker only."""
    prompt = Prompt("Summarise")
    assert_type(prompt.text, str)
    prompt.text = "Translate"  # type: ignore[misc]  # frozen
    Prompt("Summarise", txt="Translate")  # type: ignore[call-arg]


def spec_values() -> JobSpec:
    """Frozen values, with the types of their fields."""
    source = FilesSource(uri="gs://b/in/*.jsonl", key=("id",))
    assert_type(source.key, tuple[str, ...])
    source.uri = "gs://b/other"  # type: ignore[misc]  # frozen
    FilesSource(uri="gs://b/in/*.jsonl", key=("id",), columns=("a",))  # type: ignore[call-arg]
    price = Price(input_usd_per_million_tokens=0.3, output_usd_per_million_tokens=2.5, priority_ratio=1.8)
    assert_type(price.priority_ratio, float | None)
    Inference(service_tier="priority")
    limits = Limits(requests_per_minute=600, budget_usd=50, price=price)
    assert_type(limits.requests_per_minute, float | None)
    spec = JobSpec(
        name="nightly",
        source=source,
        prompt=PromptTemplate(template="Summarise: {{ row.text }}"),
        model=GeminiModel(name="gemini-2.5-flash"),
        sink=FilesSink(uri="gs://b/out", format="parquet"),
        limits=limits,
    )
    assert_type(spec.source, FilesSource | BigQuerySource | SqlSource | RowsSource | KafkaSource | PubSubSource)
    assert_type(
        spec.model,
        GeminiModel | OpenAIModel | AnthropicModel | VertexEndpointModel | EchoModel | DistilledModel,
    )
    assert_type(spec.sink, FilesSink | BigQuerySink | PostgresSink | MilvusSink | KafkaSink | PubSubSink)
    assert_type(JobSpec.parse(spec.model_dump()), JobSpec)
    assert_type(parse_endpoint({"type": "vertex"}), VertexEndpoint | CloudRunEndpoint)
    return spec


def operator_of_plain_values() -> BaseOperator:
    """A task whose parts are plain dicts, which Airflow renders."""
    job: Mapping[str, Any] = {"source": {"uri": "in.csv", "key": ["id"]}, "sink": {"uri": "out"}}
    RunInferenceOperator(
        task_id="a", prompt={"template": "{{ row.Hi }}"}, model={"type": "echo"}, no_argument=1, **job
    )
    return RunInferenceOperator(
        task_id="summarise",
        source={"uri": "in.csv", "key": "id"},
        prompt="Summarise: {{ row.text }}",
        model="gemini-2.5-flash",
        inference=Inference(mode="auto", finish_by=timedelta(hours=6)),
        limits={"requests_per_minute": 600},
        sink="out",
        deferrable=False,
        retries=2,
        execution_timeout=timedelta(hours=3),
    )


def operator_of_spec_values() -> RunInferenceOperator:
    """A task whose parts are values of `spec`."""
    RunInferenceOperator(task_id="no_sink", source={}, prompt={}, model={})  # type: ignore[call-arg]
    RunInferenceOperator("by_position")  # type: ignore[arg-type, call-arg]
    return RunInferenceOperator(
        task_id="embed",
        source=BigQuerySource(type="bigquery", table="p.d.notes", key=("id",)),
        prompt=PromptTemplate(template="{{ row.text }}"),
        model=OpenAIModel(type="openai", name="e5", base_url="http://127.0.0.1:8000/v1"),
        sink=MilvusSink(type="milvus", uri="notes.db", collection="notes"),
        generation=Generation(temperature=0.0),
        embedding=Embedding(),
        limits=Limits(tokens_per_minute=1_000_000),
        batching=Batching(bucket_boundaries=(128, 512)),
        cache=Cache(scope="notes", max_age_days=90),
        runner=DataflowRunner(type="dataflow", location="europe-west1"),
        state_uri="gs://b/state",
        impersonation_chain=["a@p.iam.gserviceaccount.com"],
    )


def tasks_around_a_job() -> None:
    """Estimate, sensor, job, endpoint and sweepers in one Dag, joined by XComs.

    `airflow.sdk` types `BaseOperator.output` as `XComArg`; the `PlainXComArg` that it is has `__getitem__`.
    """
    job: dict[str, Any] = {
        "source": {"uri": "in.csv", "key": ["id"]},
        "prompt": {"template": "{{ row.Hi }}"},
        "sink": PostgresSink(type="postgres", table="answers", conn_id="warehouse"),
    }
    with DAG("typed", schedule=None):
        model = GeminiModel(name="gemini-2.5-flash", project="p", labels={"team": "data"})
        estimate = EstimateInferenceOperator(task_id="estimate", job_task_id="judge", model=model, **job)
        EvaluateInferenceOperator(
            task_id="evaluate",
            golden=FilesSource(uri="golden.csv", key=("id",)),
            metrics={"mood": "exact", "topic": LabelF1Metric(expected="gold"), "sum": {"type": "numeric"}},
            minimum={"mood": 0.9},
            on_failure="skip",
            model=model,
            **job,
        )
        EvaluateInferenceOperator(
            task_id="policy",
            golden={},
            metrics={},
            on_failure="stop",  # type: ignore[arg-type]
            **job,
        )
        CompareInferenceOperator(
            task_id="compare",
            other=Alternative(model=GeminiModel(name="gemini-2.5-pro")),
            judge=Judge(rubric="{{ row.first }} {{ row.second }}", model=GeminiModel()),
            model=model,
            **job,
        )
        night = RunInferenceOperator(task_id="night", model=model, **job)
        golden = FilesSource(uri="golden/*.jsonl", key=("id",))
        sample = SampleAnswersOperator(
            task_id="sample", manifest=night.output, seed="{{ ds_nodash }}", golden=golden, model=model, **job
        )
        review = review_answers(sample.output, response_timeout=timedelta(days=2))
        AddGoldenRowsOperator(
            task_id="add", verdicts=review.output, golden_uri="golden/reviewed.jsonl", model=model, **job
        )
        gate = QuotaHealthSensor(
            task_id="gate",
            model=model,
            demand=estimate.output["demand"],  # type: ignore[index]
            window=timedelta(hours=5),
            locations=("global", "europe-west4"),
            min_fit_ratio=0.5,
            timeout=timedelta(hours=1),
        )
        QuotaHealthSensor(task_id="numbers", model=model, demand=Demand(rows=1000, input_tokens_per_row=200))
        judge = RunInferenceOperator(
            task_id="judge",
            model=gate.output["model"],  # type: ignore[index]
            limits=gate.output["limits"],  # type: ignore[index]
            **job,
        )
        ready = EndpointReadySensor(task_id="ready", model=model, max_latency_seconds=5)
        ready >> judge
        server = VertexEndpoint(type="vertex", model="google/gemma3@gemma-3-4b-it", locations=("us-central1",))
        with inference_endpoint(endpoint=server) as gemma:
            assert_type(gemma, InferenceEndpoint)
            assert_type(gemma.model, XComArg)
            assert_type(gemma.reserve, ReserveEndpointOperator)
            assert_type(gemma.provision, ProvisionEndpointOperator)
            assert_type(gemma.teardown, TeardownEndpointOperator)
            assert_type(gemma.version, XComArg)
            RunInferenceOperator(task_id="ask", model=gemma.model, **job)
        judge >> gemma.reserve
        PromoteModelOperator(task_id="promote", model=gemma.version, alias="champion")
        PromoteModelOperator(task_id="of_nothing", alias="champion")  # type: ignore[call-arg]
        RollBackModelOperator(task_id="back", model=gemma.version, alias="champion", errors=("DriftError",))
        ResolveModelOperator(task_id="resolve", model="projects/p/locations/us-central1/models/m@champion")
        SweepEndpointsOperator(task_id="sweep", locations=["us-central1"], dry_run=True)
        SweepEndpointsOperator(task_id="everywhere")  # type: ignore[call-arg]
        SweepBatchInferenceOperator(task_id="night", model=model, deployments=["production"], dry_run=True)
        SweepBatchInferenceOperator(task_id="every_provider")  # type: ignore[call-arg]


def handler_in_a_pipeline() -> RunInference:
    """The engine as a Beam `ModelHandler`, of prompts and of examples of one's own."""
    LLMModelHandler("gemini-2.5-flash", limits={"requests_per_minute": 600})
    LLMModelHandler(5)  # type: ignore[arg-type]
    LLMModelHandler(EchoModel(type="echo"), journal="/tmp/journal")  # type: ignore[call-arg]
    handler = LLMModelHandler[Mapping[str, str]](
        GeminiModel(name="gemini-2.5-flash"),
        limits=Limits(requests_per_minute=600),
        prompt_of=lambda example: example["text"],
        fingerprint_of=lambda example: example["id"],
        output_schema={"type": "object"},
    )
    return RunInference(handler)


def beam_pipelines() -> None:
    """A caller takes a handler, and the parts of a transform are values or mappings."""
    model = GeminiModel(name="gemini-2.5-flash")
    caller = LLMCaller(LLMModelHandler[str](model), timeout_seconds=20, failures="return")
    caller(5)  # type: ignore[arg-type]
    LLMCaller(model)  # type: ignore[arg-type]
    LLMInference(PromptTemplate(template="{{ row.text }}"), model, answer_columns="flat")
    LLMInference("{{ row.text }}", {"type": "echo"}, limits={"budget_usd": 1}, error_handling={"output": "failed"})
    LLMInference("{{ row.text }}", {"type": "echo"}, answer_columns="wide")  # type: ignore[arg-type]


def errors() -> None:
    """A mistake in a spec is a `ValueError`; every error of the package has one base."""
    try:
        JobSpec.parse({})
    except JobSpecError as error:
        assert_type(error.retryable, bool)
        base: LLMBeamError = error
        mistake: ValueError = error
        print(base, mistake)
