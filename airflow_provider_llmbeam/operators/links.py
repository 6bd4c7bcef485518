"""Extra links: buttons on the page of a task, whose URL the task has stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink

from airflow_provider_llmbeam.spec.endpoint.identity import run_service_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey

    from airflow_provider_llmbeam.spec.job import JobSpec

CONSOLE = "https://console.cloud.google.com"


class XComLink(BaseOperatorLink):
    """Link to the URL in the XCom `xcom_key`; the API server reads it without this package."""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Returns the URL; empty if the task wrote none."""
        from airflow.sdk.execution_time.xcom import XCom

        return str(XCom.get_value(ti_key=ti_key, key=self.xcom_key) or "")


class StoresLinks:
    """Mixin of operators with links, whose URLs the task stores itself.

    Airflow reads and writes an XCom for each link of a task that has ended, and logs an error for each that is
    missing (`task_runner.finalize`, 3.1 to 3.3): in its own process, such a task has no links. Their XComs stay
    while it is deferred (`ti_run` clears them only at the start of a try).
    """

    links: Sequence[XComLink] = ()
    _is_running = False

    if TYPE_CHECKING:
        log: Any
        operator_extra_links: Collection[BaseOperatorLink]
    else:

        @property
        def operator_extra_links(self) -> tuple[XComLink, ...]:
            """The links of the operator, for the serialized Dag."""
            # Airflow also calls this getter with a mapped operator, which is no instance of this class.
            if not isinstance(self, StoresLinks):
                return tuple(self.operator_class.links)
            return () if self._is_running else tuple(self.links)

    def store_link(self, context: Context, link: XComLink, url: str | None) -> None:
        """Stores the URL of a link, if it leads somewhere; a failure is logged, and does not end the task."""
        if url is None:
            return
        try:
            context["ti"].xcom_push(key=link.xcom_key, value=url)
        except Exception as error:  # noqa: BLE001 - of Airflow's API; the task may have a job or a GPU to wait for
            self.log.warning("The link %r could not be stored: %s", link.name, error)

    def pre_execute(self, context: Context) -> None:
        """Notes that this process executes or resumes the task."""
        self._is_running = True
        super().pre_execute(context)  # type: ignore[misc]


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
    uri = spec.sink.uri if spec.sink.type in ("files", "milvus") else spec.paths.output_uri
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


class EndpointLink(XComLink):
    """Link to the endpoint or the service in the Google Cloud console."""

    name = "Open endpoint"
    xcom_key = "llmbeam_endpoint_link"


def endpoint_url(model: Mapping[str, Any]) -> str | None:
    """Returns the page of a Vertex AI endpoint, or the list of services filtered for one on Cloud Run.

    Args:
        model: A model spec that `ProvisionEndpointOperator` returned.
    """
    if model["type"] == "vertex_endpoint":
        _, project, _, location, _, endpoint = model["endpoint"].split("/")
        path = f"vertex-ai/online-prediction/locations/{quote(location)}/endpoints/{quote(endpoint)}"
        return f"{CONSOLE}/{path}?{urlencode({'project': project})}"
    service = run_service_of(str(model.get("id_token_audience")))
    return None if service is None else f"{CONSOLE}/run?{urlencode({'filter': service})}"


class QuotaLink(XComLink):
    """Link to the quotas of a service in the Google Cloud console."""

    name = "Quotas"
    xcom_key = "llmbeam_quota_link"


def quota_url(question: Mapping[str, Any]) -> str | None:
    """Returns the page of the quotas that a sensor polls; `None` if no Google Cloud project is named.

    Args:
        question: A `spec.quota_question.QuotaQuestion` as plain data.
    """
    target = question.get("endpoint") or question.get("model")
    if not isinstance(target, Mapping) or not target.get("project"):
        return None
    service = "run" if target.get("type") == "cloud_run" else "aiplatform"
    query = urlencode({"project": target["project"], "service": f"{service}.googleapis.com"})
    return f"{CONSOLE}/iam-admin/quotas?{query}"
