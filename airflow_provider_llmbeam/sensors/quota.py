"""`QuotaHealthSensor`: wait until the free quota suffices for a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError, SourceEmptyError
from airflow_provider_llmbeam.hooks.google.authentication import google_credentials, with_key
from airflow_provider_llmbeam.jobs.process import JobProcess
from airflow_provider_llmbeam.operators.errors import errors_of_airflow
from airflow_provider_llmbeam.operators.identity import job_name
from airflow_provider_llmbeam.operators.links import QuotaLink, StoresLinks, quota_url
from airflow_provider_llmbeam.operators.literal import literal_problems, plain
from airflow_provider_llmbeam.polling.schedule import SensorResult
from airflow_provider_llmbeam.sensors.base import PollingSensor
from airflow_provider_llmbeam.spec.fields.text import from_text
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model import model_data
from airflow_provider_llmbeam.spec.model.server import with_base_urls
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from airflow_provider_llmbeam.triggers.sensor import QuotaTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from airflow_provider_llmbeam.spec.demand import Demand
    from airflow_provider_llmbeam.spec.endpoint import CloudRunEndpoint, VertexEndpoint
    from airflow_provider_llmbeam.spec.limits import Limits
    from airflow_provider_llmbeam.spec.model import Model

#: Fields with an XCom key of their own, so that `sensor.output["limits"]` is an argument of the job.
_KEYS = ("limits", "model", "endpoint", "location")


class QuotaHealthSensor(StoresLinks, PollingSensor):
    """Waits until a job would finish in its window if it started now, and returns the rate for it.

    The evidence depends on what serves the model. Published or stated limit: usage by other jobs. Gemini's shared
    pool, which has no published limit: share of recent requests that were rejected, and a few probe requests.
    Provisioned Throughput: usage, and tokens that spill over. Endpoint of the project: replicas, failures, duty
    cycle. Planned endpoint: quota for its accelerators. Metrics are minutes late, and missing metrics are not a
    good sign: without evidence the verdict is `unknown`, and the sensor keeps waiting.

    Args:
        model: Model of the job, see `spec.GeminiModel`, `spec.OpenAIModel`, `spec.VertexEndpointModel`; or
        endpoint: Endpoint to be provisioned, see `spec.VertexEndpoint` and `spec.CloudRunEndpoint`.
        demand: Rows and tokens of the job, see `spec.Demand`; also `estimate.output["demand"]` of an
            `EstimateInferenceOperator`. Or a whole job, see `spec.JobSpec`: its source is read first, and each
            answer counts with the longest length that `generation` allows, since no model is called. If omitted,
            any free quota suffices.
        job_task_id: ID of the task that runs the whole job given as `demand`; its existing answers are deducted.
        window: Time in which the job must finish, from its start: a `timedelta`, or seconds.
        limits: Limits of the job, see `spec.Limits`. Rates count as the quota if none is published, and bound the
            recommended rates, as `share_ratio` does; other fields are returned in the XCom unchanged.
        locations: Locations to choose from, for a Gemini model on Vertex AI or an endpoint; by default its own.
        min_fit_ratio: Share of the job that must fit into its window. Less than 1 starts a job that does not
            finish: its answers are kept, and its next run continues.
        probe_requests: Number of probe requests per poll and location; 0 sends none. Each costs about ten tokens.
        max_probe_usd: Limit of their total cost while one process waits, in US dollars; per poll in
            `mode="reschedule"`, which keeps no state. It does not apply to a model without a list price or
            `limits.price`; 0 sends none.
        embeds: Whether the job asks for vectors; by default, if the model's name contains `embedding`.
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for metrics and quotas (`roles/monitoring.viewer`,
            `roles/cloudquotas.viewer`), and for models of Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        deferrable: Whether the task releases its worker slot while it waits; if not, `mode` applies.

    Templated:
        `model`, `endpoint`, `demand`, `window`, `limits`, `locations`, `llmbeam_conn_id`, `gcp_conn_id`,
        `impersonation_chain`.

    XCom:
        Verdict, sentence and evidence; the free `requests_per_minute` and `tokens_per_minute`; the duration of
        the job, and the `learned_rate` of an earlier job that it follows from if no other rate is known, and
        `tier_seconds`, its duration at the threshold of each usage tier. Under
        their own keys `limits`, `model` (or `endpoint`) and `location`:
        `RunInferenceOperator(limits=sensor.output["limits"], model=sensor.output["model"])`.

    Raises:
        JobSpecError: A literal argument is wrong; raised when the Dag is parsed.
        AirflowFailException: An error that waiting will not resolve, e.g. a wrong key; `soft_fail` or not.
        AirflowSensorTimeout: The quota did not suffice within `timeout`; with `soft_fail` the task is skipped.
    """

    template_fields: Sequence[str] = (
        "model",
        "endpoint",
        "demand",
        "window",
        "limits",
        "locations",
        "llmbeam_conn_id",
        "gcp_conn_id",
        "impersonation_chain",
    )
    template_fields_renderers = dict.fromkeys(("model", "endpoint", "demand", "limits"), "json")
    links = (QuotaLink(),)
    ui_color = "#e6f4ea"
    trigger_class = QuotaTrigger
    left_running = "No job was started and nothing of it was billed."

    def __init__(
        self,
        *,
        model: Model | Mapping[str, Any] | str | XComArg | None = None,
        endpoint: VertexEndpoint | CloudRunEndpoint | Mapping[str, Any] | XComArg | None = None,
        demand: Demand | Mapping[str, Any] | XComArg | None = None,
        window: timedelta | float | str | XComArg | None = None,
        limits: Limits | Mapping[str, Any] | XComArg | None = None,
        locations: Sequence[str] | XComArg = (),
        min_fit_ratio: float = 1.0,
        probe_requests: int = 8,
        max_probe_usd: float = 0.05,
        embeds: bool | None = None,
        job_task_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model_data(plain(model))
        self.endpoint = plain(endpoint)
        self.demand = from_text(plain(demand))
        self.window = window
        self.limits = plain(limits)
        self.locations = locations
        self.min_fit_ratio = min_fit_ratio
        self.probe_requests = probe_requests
        self.max_probe_usd = max_probe_usd
        self.embeds = embeds
        self.job_task_id = job_task_id
        self._process: JobProcess | None = None
        self._prompt: Any = None
        if is_job(self.demand):  # its prompt is rendered for each row, never by Airflow
            self._prompt = self.demand.get("prompt")
            self.demand = {name: value for name, value in self.demand.items() if name != "prompt"}
        data = self._question()
        problems = []
        if is_job(self.demand):
            if self.reschedule and not self.deferrable:
                raise JobSpecError(
                    f"Task {self.task_id!r}: `mode` 'reschedule' would read the whole source of `demand` at each "
                    "poll. Keep `deferrable=True`, or pass the numbers of an EstimateInferenceOperator."
                )
            del data["demand"]
            unrendered = ("prompt.template", "prompt.system", "prompt.media")
            problems += literal_problems(JobSpec, self._job_data("parsed"), unrendered)
        problems += literal_problems(QuotaQuestion, data)
        if problems:
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")

    def execute(self, context: Context) -> Any:
        """Waits until the free quota suffices."""
        self.model, self.demand = model_data(self.model), from_text(self.demand)  # as Airflow rendered them
        self.endpoint = from_text(self.endpoint)
        self.store_link(context, QuotaLink(), quota_url(self._question()))
        if is_job(self.demand):
            with errors_of_airflow():
                self.demand = self._demand(context["ti"])
        return super().execute(context)

    def on_kill(self) -> None:
        """Ends the process that reads the source."""
        if self._process is not None:
            self._process.stop()

    def condition_arguments(self) -> dict[str, Any]:
        """Returns the question."""
        return {"question": self._question()}

    def conclude(self, result: SensorResult, context: Context) -> dict[str, Any]:
        """Returns the verdict with the limits for the job."""
        found = result.value
        assert found is not None
        self.log.info("%s", found["sentence"])
        for key in _KEYS:
            if key in found:
                context["ti"].xcom_push(key=key, value=found[key])
        return {**found, "polls": result.polls, "waited_seconds": result.waited_seconds}

    def _demand(self, ti: Any) -> dict[str, Any]:
        """Returns the demand of a whole job in numbers."""
        from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook
        from airflow_provider_llmbeam.hooks.storage import files_at
        from airflow_provider_llmbeam.spec.protocol.steps import EstimateSample

        data = self._job_data(job_name(ti, self.job_task_id))
        data, environment = LLMBeamHook(self.llmbeam_conn_id).complete(data)
        spec = with_base_urls(with_key(JobSpec.parse(data), self.gcp_conn_id), os.environ, self.log)
        self._check_allowed(spec, within="demand")
        files = partial(files_at, gcp_conn_id=self.gcp_conn_id, kms_key_name=spec.kms_key_name)
        self._process = JobProcess(spec, environment, self.log, files_at=files)
        try:
            with google_credentials(spec, self.gcp_conn_id):
                nothing = EstimateSample(sample_size=0)
                demand: dict[str, Any] = self._process.run_step("estimate", nothing)["demand"]
        except SourceEmptyError:
            if spec.source.on_empty == "fail":
                raise
            return {"rows": 0, "input_tokens_per_row": 0.0}  # the job skips itself, or writes no rows
        return demand

    def _job_data(self, name: str) -> dict[str, Any]:
        prompt = {} if self._prompt is None else {"prompt": self._prompt}
        return {"name": name, "model": self.model, **self.demand, **prompt}

    def _question(self) -> dict[str, Any]:
        parts = {
            "model": self.model,
            "endpoint": self.endpoint,
            "demand": self.demand,
            "window_seconds": self.window.total_seconds() if isinstance(self.window, timedelta) else self.window,
            "limits": self.limits,
            "locations": self.locations or None,
            "min_fit_ratio": self.min_fit_ratio,
            "probe_requests": self.probe_requests,
            "max_probe_usd": self.max_probe_usd,
            "embeds": self.embeds,
        }
        return {field: value for field, value in parts.items() if value is not None}


def is_job(demand: Any) -> bool:
    """Whether a demand is a whole job rather than numbers."""
    return isinstance(demand, Mapping) and "source" in demand
