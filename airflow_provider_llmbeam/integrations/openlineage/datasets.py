"""Datasets of a job as OpenLineage has them. Only a task that emits OpenLineage events imports this module."""

from __future__ import annotations

from collections.abc import Iterable

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
from openlineage.client.generated.base import InputDatasetFacet, OutputDatasetFacet
from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

from airflow_provider_llmbeam.integrations.openlineage.columns import (
    Column,
    answer_columns,
    prompt_columns,
    sink_columns,
    source_columns,
)
from airflow_provider_llmbeam.integrations.openlineage.facts import JobFacts
from airflow_provider_llmbeam.integrations.openlineage.names import (
    DatasetName,
    file_name,
    query_names,
    sink_name,
    source_name,
)
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.source import BigQuerySource


def inputs_of(facts: JobFacts) -> list[InputDataset]:
    """Returns what a job reads. The columns of a table among several of a query are not known."""
    source = facts.spec.source
    if (name := source_name(source)) is not None:
        facets: dict[str, DatasetFacet] = {"schema": _schema(source_columns(facts.spec))}
        statistics: dict[str, InputDatasetFacet] = {}
        if facts.manifest is not None:
            statistics["inputStatistics"] = InputStatisticsInputDatasetFacet(
                rowCount=facts.manifest["rows"]["read"]
            )
        return [InputDataset(name.namespace, name.name, facets=facets, inputFacets=statistics)]
    if isinstance(source, BigQuerySource) and source.query is not None:
        return [InputDataset(*name) for name in query_names(source.query, source.project)]
    return []


def outputs_of(facts: JobFacts) -> list[OutputDataset]:
    """Returns what a job writes: its answers and its dead letter; nothing for an estimate or a skipped job."""
    if not facts.has_outputs:
        return []
    spec, rows = facts.spec, facts.manifest["rows"] if facts.manifest is not None else {}
    found = [_output(file_name(spec.paths.dead_letter_uri), {}, rows.get("dead_letter"))]
    if (name := sink_name(spec.sink, facts.postgres_dsn)) is not None:
        facets: dict[str, DatasetFacet] = {"schema": _schema(sink_columns(spec))}
        if (source := source_name(spec.source)) is not None:
            facets["columnLineage"] = _column_lineage(spec, source)
        found.insert(0, _output(name, facets, rows.get("answered")))
    return found


def _output(name: DatasetName, facets: dict[str, DatasetFacet], rows: int | None) -> OutputDataset:
    statistics: dict[str, OutputDatasetFacet] = {}
    if rows is not None:
        statistics["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return OutputDataset(name.namespace, name.name, facets=facets, outputFacets=statistics)


def _schema(columns: Iterable[Column]) -> SchemaDatasetFacet:
    return SchemaDatasetFacet(fields=[_field(column) for column in columns])


def _field(column: Column) -> SchemaDatasetFacetFields:
    return SchemaDatasetFacetFields(
        name=column.name, type=column.type, fields=[_field(inner) for inner in column.fields]
    )


def _column_lineage(spec: JobSpec, source: DatasetName) -> ColumnLineageDatasetFacet:
    """Returns where the columns come from: key and passthrough are copied, an answer is made of the prompt's."""
    copied = {name: (name,) for name in (*spec.source.key, *getattr(spec.sink, "passthrough", ()))}
    made = {column.name: prompt_columns(spec) for column in answer_columns(spec)}
    return ColumnLineageDatasetFacet(
        fields={
            name: Fields(inputFields=[InputField(source.namespace, source.name, column) for column in columns])
            for name, columns in {**copied, **made}.items()
            if columns
        }
    )
