"""The audit of a job: where a record of each request is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from airflow_provider_llmbeam.spec.base import SpecModel, plain_directory, without_user
from airflow_provider_llmbeam.spec.source import full_table_name


class FilesAudit(SpecModel):
    """Writes audit records to JSON lines below a directory, while the job runs.

    A worker makes new files only, and deletes none, so that the bucket may have a retention policy.

    Attributes:
        uri: The directory; the files are below `date=YYYY-MM-DD/`, the UTC day on which each was begun.
        include_text: Whether a record has the texts of the prompt and of the answer.
    """

    type: Literal["files"] = "files"
    uri: Annotated[str, Field(min_length=1)]
    include_text: bool = False

    _no_password = field_validator("uri")(without_user)
    _directory = field_validator("uri")(plain_directory)


class BigQueryAudit(SpecModel):
    """Appends audit records to a BigQuery table, before the answers are published.

    The records are stored below the state of the job while it runs. Those of a run that was killed are loaded when
    the job starts again. The table is partitioned by the day of `at`, and made if it does not exist.

    Attributes:
        table: Name of the table, `project.dataset.table`; the dataset must exist.
        project: Google Cloud project that runs the load. `None`: that of the table.
        include_text: Whether a record has the texts of the prompt and of the answer.
    """

    type: Literal["bigquery"] = "bigquery"
    table: str
    project: str | None = None
    include_text: bool = False

    _full_name = field_validator("table")(full_table_name)


def _type_by_field(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    return {"type": "bigquery" if "table" in data else "files", **data}


Audit = Annotated[FilesAudit | BigQueryAudit, Field(discriminator="type"), BeforeValidator(_type_by_field)]


class AirflowRun(SpecModel):
    """The task instance that runs a job, as its audit and its reports name it.

    Attributes:
        dag_id: Id of the Dag.
        task_id: Id of the task.
        run_id: Id of the Dag run.
        map_index: Index of a mapped task; -1 for others.
        names_job: Whether the job is named after this run, so that other runs have another journal.
        planned_job: Name of the job of the same task and logical date before its run exists, as `llmbeam estimate`
            names it: its estimate is that of this run. Empty if all runs have one name, or there is no date.
    """

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1
    names_job: bool = False
    planned_job: str = ""
