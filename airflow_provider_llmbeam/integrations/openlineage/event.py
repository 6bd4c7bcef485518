"""What an OpenLineage event has of a job: its datasets with columns and numbers of rows, and a facet of the run.

Only a task that emits OpenLineage events imports this module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from airflow.providers.common.compat.openlineage.facet import (
    ColumnLineageDatasetFacet,
    DatasetFacet,
    Fields,
    InputDataset,
    InputField,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
    SchemaDatasetFacet,
    SchemaDatasetFacetFields,
)
from airflow.providers.openlineage.extractors import OperatorLineage
from attrs import define
from openlineage.client.generated.base import InputDatasetFacet, OutputDatasetFacet, RunFacet
from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

from airflow_provider_llmbeam import __version__
from airflow_provider_llmbeam.hooks.sql import get_hook
from airflow_provider_llmbeam.integrations.openlineage.names import (
    DatasetName,
    file_name,
    query_names,
    sink_name,
    source_name,
)
from airflow_provider_llmbeam.integrations.openlineage.task import JobFacts, log
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.prompt.answer_type import answer_type
from airflow_provider_llmbeam.spec.prompt.names import row_columns
from airflow_provider_llmbeam.spec.runner import DataflowRunner
from airflow_provider_llmbeam.spec.sink import MILVUS_DETAILS, MilvusSink
from airflow_provider_llmbeam.spec.source import BigQuerySource, SqlSource


@define
class LLMInferenceRunFacet(RunFacet):
    """What a task asked for, and what its job did; `schemas.json` describes the fields.

    The fields from `rowsRead` on are missing for a task without a result.
    """

    jobName: str
    task: str
    modelType: str
    modelName: str
    promptSha256: str
    inferenceMode: str
    runner: str
    journalUri: str
    reportUri: str
    deadLetterUri: str
    serverOrigin: str | None = None
    systemSha256: str | None = None
    outputSchemaSha256: str | None = None
    region: str | None = None
    rowsRead: int | None = None
    rowsAnswered: int | None = None
    rowsFailed: int | None = None
    failedByKind: dict[str, int] | None = None
    origins: dict[str, int] | None = None
    serviceTiers: dict[str, int] | None = None
    requests: int | None = None
    rejectedRequests: int | None = None
    inputTokens: int | None = None
    cachedInputTokens: int | None = None
    outputTokens: int | None = None
    costUsd: float | None = None
    truncatedAnswers: int | None = None
    durationSeconds: float | None = None
    skippedBecause: str | None = None

    #: The masker of Airflow takes `token` in a name for a secret, and would replace the numbers.
    _additional_skip_redact: ClassVar[list[str]] = ["inputTokens", "cachedInputTokens", "outputTokens"]

    @staticmethod
    def _get_schema() -> str:
        # A name, not an address: the schema is in the wheel.
        return f"urn:airflow-provider-llmbeam:{__version__}:lineage/schemas.json#/$defs/LLMInferenceRunFacet"


def job_lineage(facts: JobFacts) -> OperatorLineage[Any, Any]:
    """Returns the datasets of a job and the facet of its run."""
    reported = {} if facts.manifest is None else _fields_of_manifest(facts.manifest)
    facet = LLMInferenceRunFacet(**_fields_of_spec(facts.spec), **reported)
    return OperatorLineage(inputs=_inputs(facts), outputs=_outputs(facts), run_facets={"llmbeam_inference": facet})


def _fields_of_spec(spec: JobSpec) -> dict[str, Any]:
    prompt, schema = spec.prompt, spec.prompt.output_schema
    canonical = None if schema is None else json.dumps(schema, sort_keys=True, ensure_ascii=False, default=dict)
    return {
        "jobName": spec.name,
        "task": spec.task,
        "modelType": spec.model.type,
        "modelName": spec.model.name,
        "serverOrigin": spec.server.origin or None,
        "promptSha256": _sha256(prompt.template),
        "systemSha256": _sha256(prompt.system),
        "outputSchemaSha256": _sha256(canonical),
        "inferenceMode": spec.inference.mode,
        "runner": spec.runner.type,
        "region": spec.runner.location if isinstance(spec.runner, DataflowRunner) else None,
        "journalUri": spec.paths.journal_uri,
        "reportUri": spec.paths.report_uri,
        "deadLetterUri": spec.paths.dead_letter_uri,
    }


def _fields_of_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    rows, tokens, requests = manifest["rows"], manifest["tokens"], manifest["requests"]
    return {
        "rowsRead": rows["read"],
        "rowsAnswered": rows["answered"],
        "rowsFailed": rows["dead_letter"],
        "failedByKind": dict(manifest["dead_letter_by_kind"]),
        "origins": {name: count for name, count in manifest["origins"].items() if count},
        "serviceTiers": dict(manifest.get("service_tiers", {})),
        "requests": requests["sent"],
        "rejectedRequests": requests["rejected"],
        "inputTokens": tokens["input"],
        "cachedInputTokens": tokens.get("cached", 0),
        "outputTokens": tokens["output"],
        "costUsd": manifest["cost_usd"],
        "truncatedAnswers": manifest["truncated"],
        "durationSeconds": manifest["duration_seconds"],
        "skippedBecause": manifest.get("skipped_because"),
    }


def _sha256(text: str | None) -> str | None:
    """Returns the SHA-256 of a text in hexadecimal digits: it tells prompts apart, and shows none."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()


def _inputs(facts: JobFacts) -> list[InputDataset]:
    """Returns what a job reads. The columns of a table among several of a query are not known."""
    source = facts.spec.source
    if (name := source_name(source)) is not None:
        statistics: dict[str, InputDatasetFacet] = {}
        if facts.manifest is not None:
            rows = facts.manifest["rows"]["read"]
            statistics["inputStatistics"] = InputStatisticsInputDatasetFacet(rowCount=rows)
        facets: dict[str, DatasetFacet] = {"schema": _schema(source_columns(facts.spec))}
        return [InputDataset(name.namespace, name.name, facets=facets, inputFacets=statistics)]
    if isinstance(source, BigQuerySource) and source.query is not None:
        return [InputDataset(*name) for name in query_names(source.query, source.project)]
    return [InputDataset(*name) for name in _sql_names(source)] if isinstance(source, SqlSource) else []


def _sql_names(source: SqlSource) -> list[DatasetName]:
    """Returns the tables that a query reads, as `SQLExecuteQueryOperator` names them.

    The parser of OpenLineage 1.54 finds no tables within a WITH. A database that does not answer any more, when it
    is asked for its schema, takes only these names from the event.
    """
    from airflow.providers.openlineage.sqlparser import SQLParser

    try:
        hook = get_hook(source)
        connection = hook.get_connection(source.conn_id)
        if (database := hook.get_openlineage_database_info(connection)) is None:
            return []
        parser = SQLParser(
            hook.get_openlineage_database_dialect(connection), hook.get_openlineage_default_schema()
        )
        found = parser.generate_openlineage_metadata_from_sql(source.query, hook, database, use_connection=False)
    except Exception as error:  # noqa: BLE001 - of Airflow, the driver or the parser; the rest is sent
        log.warning("The OpenLineage event lacks the tables of `source.query`: %s.", type(error).__name__)
        log.debug("The error:", exc_info=True)
        return []
    return sorted({DatasetName(each.namespace, each.name) for each in found.inputs})


def _outputs(facts: JobFacts) -> list[OutputDataset]:
    """Returns what a job writes: its answers and its dead letter; nothing for an estimate or a skipped job."""
    if not facts.has_outputs:
        return []
    rows = facts.manifest["rows"] if facts.manifest is not None else {}
    found = []
    for sink in facts.spec.sinks_by_field.values():
        spec = facts.spec.model_copy(update={"sink": sink})
        if (name := sink_name(sink, facts.postgres_dsns)) is not None:
            facets: dict[str, DatasetFacet] = {"schema": _schema(sink_columns(spec))}
            if (source := source_name(spec.source)) is not None:
                facets["columnLineage"] = _column_lineage(spec, source)
            found.append(_output(name, facets, rows.get("answered")))
    return [*found, _output(file_name(facts.spec.paths.dead_letter_uri), {}, rows.get("dead_letter"))]


def _output(name: DatasetName, facets: dict[str, DatasetFacet], rows: int | None) -> OutputDataset:
    statistics: dict[str, OutputDatasetFacet] = {}
    if rows is not None:
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return OutputDataset(name.namespace, name.name, facets=facets, outputFacets=statistics)


def _schema(columns: Iterable[str]) -> SchemaDatasetFacet:
    return SchemaDatasetFacet(fields=[SchemaDatasetFacetFields(name=column) for column in columns])


def _column_lineage(spec: JobSpec, source: DatasetName) -> ColumnLineageDatasetFacet:
    """Returns where the columns come from: key and passthrough are copied, an answer is made of the prompt's."""
    made = dict.fromkeys(_answer_columns(spec), _prompt_columns(spec))
    origins = {name: (name,) for name in _copied_columns(spec)} | made
    return ColumnLineageDatasetFacet(
        fields={
            name: Fields(inputFields=[InputField(source.namespace, source.name, column) for column in columns])
            for name, columns in origins.items()
            if columns
        }
    )


def source_columns(spec: JobSpec) -> tuple[str, ...]:
    """Returns the columns of the source that the job is known to read: of key, passthrough and prompt."""
    return tuple(dict.fromkeys((*_copied_columns(spec), *_prompt_columns(spec))))


def sink_columns(spec: JobSpec) -> tuple[str, ...]:
    """Returns the columns of an output row."""
    if isinstance(spec.sink, MilvusSink):
        details = [name for name in spec.detail_columns if name in MILVUS_DETAILS]
        return ("llmbeam_id", *_copied_columns(spec), *_answer_columns(spec), *details)
    return (*_copied_columns(spec), *_answer_columns(spec), *spec.detail_columns)


def _copied_columns(spec: JobSpec) -> tuple[str, ...]:
    return (*spec.source.key, *spec.sink.passthrough)


def _prompt_columns(spec: JobSpec) -> tuple[str, ...]:
    """Returns the columns of the source that the templates of the prompt name."""
    prompt = spec.prompt
    texts = (prompt.template, prompt.system or "", *(media.uri for media in prompt.media))
    return tuple(dict.fromkeys(name for text in texts for name in row_columns(text)))


def _answer_columns(spec: JobSpec) -> tuple[str, ...]:
    """Returns the columns that hold the answer: one, or with `sink.answer_columns` 'flat' one per field."""
    if isinstance(spec.sink, MilvusSink):  # which stores vectors alone
        return ("vector",)
    if spec.prompt.output_schema is None or getattr(spec.sink, "answer_columns", "json") != "flat":
        return ("answer",)
    return tuple(name for name, _ in answer_type(spec.prompt.output_schema).fields)
