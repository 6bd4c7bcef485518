"""Rules on the parts of a job that one part alone cannot check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_llmbeam.spec.base import NOT_SHOWN, FieldFaultError
from airflow_provider_llmbeam.spec.characters import has_whole_characters
from airflow_provider_llmbeam.spec.job.cascade_rules import cascade_fault
from airflow_provider_llmbeam.spec.job.encryption_rules import encryption_fault
from airflow_provider_llmbeam.spec.job.inference_rules import inference_fault, labels_fault
from airflow_provider_llmbeam.spec.job.output_rules import milvus_fault, output_fault
from airflow_provider_llmbeam.spec.model import GeminiModel, OpenAIModel, VertexEndpointModel, with_project
from airflow_provider_llmbeam.spec.model.media import template_fault
from airflow_provider_llmbeam.spec.model.parameters import given
from airflow_provider_llmbeam.spec.model.price import price_of
from airflow_provider_llmbeam.spec.prompt.answer_type import free_map
from airflow_provider_llmbeam.spec.runner import DataflowRunner, LocalRunner, is_in_network, missing_worker_secrets
from airflow_provider_llmbeam.spec.safety import FilesAudit
from airflow_provider_llmbeam.spec.sink import FilesSink, KafkaSink, MilvusSink, PubSubSink
from airflow_provider_llmbeam.spec.source import (
    BigQuerySource,
    FilesSource,
    KafkaSource,
    PubSubSource,
    RowsSource,
    SqlSource,
)

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job.job import JobSpec

#: Fields of a prompt that do not apply to embeddings.
_NOT_EMBEDDED = ("system", "output_schema", "media")


def job_fault(spec: JobSpec, *, has_project: bool) -> ValueError | None:
    """Returns the first fault of a job whose parts are valid by themselves, or `None`.

    Args:
        spec: The job.
        has_project: Whether the model has a project, or may get one from its connection.
    """
    return (
        _characters_fault(spec)
        or _state_fault(spec)
        or _key_fault(spec)
        or _queue_fault(spec)
        or output_fault(spec)
        or milvus_fault(spec)
        or inference_fault(spec, has_project=has_project)
        or labels_fault(spec, has_project=has_project)
        or encryption_fault(spec, has_project=has_project)
        or _embedding_fault(spec)
        or _generation_fault(spec, has_project=has_project)
        or _request_format_fault(spec)
        or _private_endpoint_fault(spec)
        or _media_fault(spec)
        or cascade_fault(spec)
        or _feature_fault(spec)
        or _price_fault(spec)
        or _shared_budget_fault(spec)
        or _local_file_fault(spec)
        or _worker_key_fault(spec, has_project=has_project)
    )


def _characters_fault(spec: JobSpec) -> FieldFaultError | None:
    # pydantic 2.13 accepts half of one in some fields of texts, and then writes no JSON.
    for field, value in spec:
        if not has_whole_characters(value):
            return FieldFaultError(field, "must have whole characters, and has half of one", NOT_SHOWN)
    return None


def _feature_fault(spec: JobSpec) -> FieldFaultError | None:
    features = (spec.safety.moderation, spec.conversation, spec.cascade, spec.safety.privacy)
    faults = (feature.find_fault(spec) for feature in features if feature is not None)
    return next((fault for fault in faults if fault is not None), None)


def _state_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.state_uri is None and not isinstance(spec.sink, FilesSink):
        return FieldFaultError(
            "state_uri",
            f"this field is needed with a sink of type {spec.sink.type!r}: journal, dead letter and report are "
            "written there",
            None,
        )
    if spec.state_uri is None and spec.cache is not None:
        return FieldFaultError(
            "state_uri", "this field is needed with `cache`: the shared answers are written there", None
        )
    if isinstance(spec.source, BigQuerySource) and not spec.paths.export_uri.startswith("gs://"):
        return FieldFaultError(
            "source.export_uri",
            "must start with gs://, or `state_uri` must: BigQuery exports to Cloud Storage alone",
            spec.source.export_uri,
            spec.paths.export_uri,
        )
    return None


def _key_fault(spec: JobSpec) -> FieldFaultError | None:
    source, sink, privacy = spec.source, spec.sink, spec.safety.privacy
    fault = None
    if source.on_duplicate_key == "allow" and not isinstance(sink, FilesSink):
        fault = f"must not be 'allow', as a sink of type {sink.type!r} has one row per key"
    elif source.picks_by_order and not isinstance(source, FilesSource | RowsSource):
        fault = f"must be 'error', 'dead_letter' or 'allow', as the rows of type {source.type!r} are in no order"
        if isinstance(source, BigQuerySource):
            fault += ": select one of them in `source.query`, with QUALIFY ROW_NUMBER() OVER (…) = 1"
        elif isinstance(source, SqlSource):
            fault += ": select one of them in `source.query`, by ROW_NUMBER() OVER (…)"
    elif source.picks_by_order and privacy is not None and privacy.dlp is not None:
        fault = "must be 'error', 'dead_letter' or 'allow', as a detector of type 'dlp' keeps no order of the rows"
    if fault is None:
        return None
    return FieldFaultError("source.on_duplicate_key", fault, source.on_duplicate_key)


def _queue_fault(spec: JobSpec) -> FieldFaultError | None:
    is_queue = isinstance(spec.source, KafkaSource | PubSubSource)
    if is_queue and getattr(spec.runner, "flex_template", None) is not None:
        return FieldFaultError(
            "runner.flex_template",
            f"must be left out with a source of type {spec.source.type!r}, which the Airflow worker reads",
            NOT_SHOWN,
        )
    source, sink = spec.source, spec.sink
    columns = (*source.key, *sink.passthrough)
    for kind, field in ((PubSubSink, "ordering_key"), (KafkaSink, "key")):
        if isinstance(sink, kind) and (column := getattr(sink, field)) is not None and column not in columns:
            return FieldFaultError(
                f"sink.{field}",
                f"must be a column of `source.key` or `sink.passthrough`: {', '.join(columns)}",
                column,
            )
    if (
        isinstance(source, KafkaSource)
        and isinstance(sink, KafkaSink)
        and sink.topic in source.topic
        and (source.bootstrap_servers, source.conn_id) == (sink.bootstrap_servers, sink.conn_id)
    ):
        return FieldFaultError(
            "sink.topic", "must be another topic: the next run would read the answers", sink.topic
        )
    return None


def _embedding_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.embedding is None:
        return None
    if spec.task != "embed":
        return FieldFaultError("task", "must be 'embed' with `embedding`", spec.task)
    unused = [f"`prompt.{name}`" for name in _NOT_EMBEDDED if getattr(spec.prompt, name) not in (None, ())]
    unused += [f"`generation.{name}`" for name in given(spec.generation)]
    if unused:
        return FieldFaultError(
            "task", f"'embed' takes no {', '.join(unused)}: only the text of `prompt.template` is embedded"
        )
    if isinstance(spec.model, OpenAIModel) and spec.embedding.task_type is not None:
        return FieldFaultError(
            "embedding.task_type",
            "the OpenAI API does not support this field: for models that need it, write it into `prompt.template`",
            spec.embedding.task_type,
        )
    if not spec.model.api.embeds:
        return FieldFaultError(
            "model.type", "must be 'gemini' or 'openai' to embed: others generate texts only", spec.model.type
        )
    if isinstance(spec.model, GeminiModel) and re.match(r"gemini-(?!.*embedding)", spec.model.name):
        return FieldFaultError(
            "model.name",
            "must be an embedding model to embed, e.g. 'gemini-embedding-001'; this one generates texts",
            spec.model.name,
        )
    return None


def _generation_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    rules = with_project(spec.model).parameters if has_project else spec.model.parameters
    for name in given(spec.generation):
        if why := rules.find_fault(name, spec.generation):
            return FieldFaultError(f"generation.{name}", why, getattr(spec.generation, name), spec.model.name)
    return _restriction_fault(spec) or _free_map_fault(spec) or _online_fault(spec) or _search_fault(spec)


def _free_map_fault(spec: JobSpec) -> FieldFaultError | None:
    schema = spec.prompt.output_schema
    if not spec.model.api.closes_objects or schema is None or (path := free_map(schema)) is None:
        return None
    return FieldFaultError(
        "prompt.output_schema",
        f"must name all `properties` of each object: {spec.model.api.service} answers with no others, and the "
        f"object at {path} may have any. Use an array of objects with a name and a value",
        NOT_SHOWN,
    )


def _restriction_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.generation.structured_outputs is None or spec.prompt.output_schema is None:
        return None
    return FieldFaultError(
        "generation.structured_outputs",
        "must be left out with `prompt.output_schema`, which restricts the answer as well",
        spec.generation.structured_outputs,
    )


def _online_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.inference.mode == "online":
        return None
    for name in ("google_search", "model_armor"):
        if getattr(spec.generation, name):
            return FieldFaultError(
                "inference.mode",
                f"must be 'online' with `generation.{name}`: it is not implemented for request files",
                spec.inference.mode,
            )
    return None


def _search_fault(spec: JobSpec) -> FieldFaultError | None:
    if not spec.generation.google_search:
        return None
    # Source: ai.google.dev/gemini-api/docs/structured-output, "Structured outputs with tools" (2026-11)
    is_refused = isinstance(spec.model, GeminiModel) and spec.model.is_before_3
    if spec.prompt.output_schema is not None and is_refused:
        return FieldFaultError(
            "generation.google_search",
            f"must be left out with `prompt.output_schema` and {spec.model.name!r}: models before Gemini 3 refuse "
            "both together",
            True,
            spec.model.name,
        )
    if (field := spec.limits.budget_field) is not None:
        return FieldFaultError(
            f"limits.{field}",
            "must be left out with `generation.google_search`: the provider bills each search besides the tokens, "
            "and a budget would not include them",
            getattr(spec.limits, field),
        )
    return None


def _request_format_fault(spec: JobSpec) -> FieldFaultError | None:
    if not isinstance(spec.model, VertexEndpointModel) or spec.model.request_format == "chat":
        return None
    if not spec.prompt.media:
        return None
    return FieldFaultError("model.request_format", "must be 'chat' for `prompt.media`", spec.model.request_format)


def _private_endpoint_fault(spec: JobSpec) -> FieldFaultError | None:
    if not isinstance(spec.model, VertexEndpointModel):
        return None
    if spec.model.predict_url is not None and spec.generation.stream:
        return FieldFaultError(
            "generation.stream",
            "must be false with `model.predict_url`: a private endpoint in a peered network cannot stream",
            True,
        )
    if spec.model.network is None or is_in_network(spec.runner, spec.model.network):
        return None
    return FieldFaultError(
        "runner",
        f"must be of type 'dataflow' with `network` or `subnetwork` in {spec.model.network!r}, which alone "
        "reaches the endpoint. If the workers of this runner reach it, too, set `reachable=True` in the spec of "
        "the endpoint, or leave `model.network` out",
        spec.runner.type,
    )


def _media_fault(spec: JobSpec) -> ValueError | None:
    reads_local, rules = isinstance(spec.runner, LocalRunner), spec.model.media
    for index, media in enumerate(spec.prompt.media):
        if fault := template_fault(media.uri, media.mime_type, rules, reads_local=reads_local):
            return ValueError(f"has `prompt.media.{index}.uri` {media.uri!r}, which {fault}")
    return None


def _price_fault(spec: JobSpec) -> FieldFaultError | None:
    if (field := spec.limits.budget_field) is None or price_of(spec.model, spec.limits.price) is not None:
        return None
    return FieldFaultError(
        "limits.price",
        f"this field is needed with `limits.{field}`, as the price of {spec.model.type} model "
        f"{spec.model.name!r} is not known, e.g. {{'input_usd_per_million_tokens': 0.3, "
        "'output_usd_per_million_tokens': 2.5}",
        NOT_SHOWN,
        spec.model.name,
    )


def _shared_budget_fault(spec: JobSpec) -> FieldFaultError | None:
    if spec.limits.budget is None:
        return None
    if spec.state_uri is None:
        return FieldFaultError("state_uri", "this field is needed with `limits.budget`: the ledger is there", None)
    if _is_local(spec.state_uri) or spec.state_uri.startswith("gs://"):
        return None
    return FieldFaultError(
        "state_uri",
        "must be on a disk or on Cloud Storage with `limits.budget`: other stores cannot refuse one of two writes "
        "at the same time, and both runs would spend what is left",
        spec.state_uri,
    )


def _local_file_fault(spec: JobSpec) -> FieldFaultError | None:
    if isinstance(spec.runner, LocalRunner):
        return None
    places = {"state_uri": spec.state_uri}
    if isinstance(spec.safety.audit, FilesAudit):
        places["safety.audit.uri"] = spec.safety.audit.uri
    if isinstance(spec.source, FilesSource):
        places["source.uri"] = spec.source.uri
    if isinstance(spec.sink, FilesSink | MilvusSink):
        places["sink.uri"] = spec.sink.uri
    if not isinstance(spec.runner, DataflowRunner):
        return _relative_path_fault(spec, places)
    local = {field: uri for field, uri in places.items() if uri is not None and _is_local(uri)}
    if local:
        named = " and ".join(f"`{field}` {uri!r}" for field, uri in local.items())
        return FieldFaultError(
            next(iter(local)),
            f"must be on Cloud Storage, gs://…: workers of Dataflow (`runner`) cannot read {named} of this "
            "machine",
            NOT_SHOWN,
            *local.values(),
        )
    if spec.runner.temp_uri is None and not spec.paths.home_uri.startswith("gs://"):
        return FieldFaultError(
            "runner.temp_uri",
            "this field, or a `state_uri` that starts with gs://, is needed: Dataflow stages files there",
            None,
            spec.paths.home_uri,
        )
    return None


def _relative_path_fault(spec: JobSpec, places: Mapping[str, str | None]) -> FieldFaultError | None:
    for field, uri in places.items():
        if uri is not None and _is_local(uri) and not uri.removeprefix("file://").startswith("/"):
            return FieldFaultError(
                field,
                "must be an address that all workers reach, such as gs://… or the absolute path of a disk that "
                f"they mount, with a runner of type {spec.runner.type!r}",
                uri,
            )
    return None


def _worker_key_fault(spec: JobSpec, *, has_project: bool) -> FieldFaultError | None:
    if not isinstance(spec.runner, DataflowRunner):
        return None
    needs_key = spec.model.api.requires_key and not has_project  # a connection may also give another address
    keys = spec.model.api.key_variables if needs_key else ()
    headers = [name for model in spec.models for name in model.api.headers.values()]
    missing = missing_worker_secrets(spec.runner, spec.sink, keys, headers)
    return FieldFaultError("runner.environment_secrets", missing, NOT_SHOWN, spec.model.name) if missing else None


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith("file://")
