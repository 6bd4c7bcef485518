"""Links to a job and to its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow_provider_llmbeam.links.stored import XComLink

if TYPE_CHECKING:
    from airflow_provider_llmbeam.spec.job import JobSpec

CONSOLE = "https://console.cloud.google.com"


class DataflowLink(XComLink):
    """Link to the job in the Google Cloud console."""

    name = "Open in Dataflow"
    xcom_key = "llmbeam_dataflow_link"


class FlinkLink(XComLink):
    """Link to the job on the page of the Flink cluster."""

    name = "Open in Flink"
    xcom_key = "llmbeam_flink_link"


class OutputLink(XComLink):
    """Link to the answers."""

    name = "Output"
    xcom_key = "llmbeam_output_link"


class ReportLink(XComLink):
    """Link to the report as a page, once the job has ended."""

    name = "Report"
    xcom_key = "llmbeam_report_link"


def dataflow_url(project: str, location: str, job_id: str) -> str:
    """Returns the page of a job in the Google Cloud console."""
    path = f"dataflow/jobs/{quote(location, safe='')}/{quote(job_id, safe='')}"
    return f"{CONSOLE}/{path}?{urlencode({'project': project})}"


def flink_url(rest_url: str, job_id: str) -> str:
    """Returns the page of a job on a Flink cluster."""
    return f"{rest_url}/#/job/running/{quote(job_id, safe='')}/overview"


def output_url(spec: JobSpec) -> str | None:
    """Returns the page of the answers; `None` if a browser cannot show them."""
    if spec.sink.type == "bigquery":
        # Of the three parts, only the project may contain dots, e.g. `example.com:project`.
        project, dataset, table = spec.sink.table.rsplit(".", 2)
        parts = {"project": project, "ws": f"!1m5!1m4!4m3!1s{project}!2s{dataset}!3s{table}"}
        return f"{CONSOLE}/bigquery?{urlencode(parts)}"
    uri = spec.sink.uri if spec.sink.type in ("files", "milvus") else spec.output_uri
    if uri.startswith("gs://"):
        return f"{CONSOLE}/storage/browser/{quote(uri.removeprefix('gs://').rstrip('/'))}"
    return uri if uri.startswith(("http://", "https://")) else None


def report_url(report: Mapping[str, Any]) -> str | None:
    """Returns the address at which a browser shows a report; `None` for a file of the worker.

    Args:
        report: The manifest of a report.
    """
    uri = str(report.get("report_html_uri") or "")
    if uri.startswith("gs://"):  # the address that asks for a login, and for the permission to read the object
        return f"https://storage.cloud.google.com/{quote(uri.removeprefix('gs://'))}"
    return uri if uri.startswith(("http://", "https://")) else None
