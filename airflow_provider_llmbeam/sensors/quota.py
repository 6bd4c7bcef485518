"""`QuotaHealthSensor`: wait until a job has room to finish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.google_cloud.credentials import google_credentials
from airflow_provider_llmbeam.links.quota import QuotaLink, quota_url
from airflow_provider_llmbeam.polling.schedule import PollSchedule
from airflow_provider_llmbeam.polling.scheduled import SensorResult
from airflow_provider_llmbeam.sensors.base import PollingSensor
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.quota_question import QuotaQuestion
from airflow_provider_llmbeam.tasks.errors import errors_of_airflow
from airflow_provider_llmbeam.tasks.identity import job_name
from airflow_provider_llmbeam.tasks.literal import literal_problems, plain
from airflow_provider_llmbeam.tasks.process import JobProcess
from airflow_provider_llmbeam.triggers.quota import QuotaTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

#: XCom keys of their own, so that `sensor.output["limits"]` is an argument of the job.
_KEYS = ("limits", "model", "endpoint", "location")


class QuotaHealthSensor(PollingSensor):
    """Waits until a job would finish in its window if it started now, and says at which rate.

    What counts as evidence depends on what stands behind the model. A published or stated limit: how much of it
    others use. Gemini's shared pool, which has no limit to look up: the share of recent requests that were
    rejected, and a few small requests sent to try. Provisioned Throughput: its use, and what spills over. An
    endpoint of one's own: replicas, failures, duty cycle. An endpoint that is to come: the quota for its
    accelerators. Metrics show minutes late, and no metric is no good sign: without evidence the verdict is
    `unknown`, and the sensor goes on waiting.

    Args:
        model: Which model the job asks, see `spec.GeminiModel`, `spec.OpenAIModel`, `spec.VertexEndpointModel`; or
        endpoint: Which endpoint is to be brought up, see `spec.VertexEndpoint` and `spec.CloudRunEndpoint`.
        demand: What the job asks, see `spec.Demand`; also `estimate.output["demand"]` of an
            `EstimateInferenceOperator`. Or a whole job, see `spec.JobSpec`: its source is read first, and its
            answers count as long as its `generation` lets them be, since no model is asked. Left out, any room
            will do.
        job_task_id: Of a whole job as `demand`: the task that runs it, whose answers so far then count as given.
        window: In which the job is to finish, from its start on: a `timedelta`, or seconds.
        limits: Of the job, see `spec.Limits`. Rates in them count as the quota where none is published, and bound
            what is recommended, as `share_ratio` does; the rest comes back in the XCom unchanged.
        locations: To choose from, of a Gemini model on Vertex AI or an endpoint; left out, its own.
        min_fit_ratio: Part of the job that its window must hold. Less than 1 starts a job that does not finish:
            its answers are kept, and its next run goes on.
        probe_requests: Small requests sent to try, per look and location; 0 sends none. Each costs about ten
            tokens.
        max_probe_usd: What they may cost together, while one process waits; per look in `mode="reschedule"`, where
            nothing is remembered. A model without a list price or `limits.price` is not bounded by it; 0 sends
            none.
        embeds: Whether the job asks for vectors; left out, if the model's name says `embedding`.
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection whose credentials read metrics and quotas (`roles/monitoring.viewer`,
            `roles/cloudquotas.viewer`), and ask models of Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
        deferrable: Whether the task leaves its worker slot while it waits; off, `mode` counts.

    Templated:
        `model`, `endpoint`, `demand`, `window`, `limits`, `locations`, `llmbeam_conn_id`, `gcp_conn_id`,
        `impersonation_chain`.

    XCom:
        The verdict, its sentence and the evidence; `requests_per_minute` and `tokens_per_minute` that are free;
        how long the job would take. Under keys of their own `limits`, `model` (or `endpoint`) and `location`:
        `RunInferenceOperator(limits=sensor.output["limits"], model=sensor.output["model"])`.

    Raises:
        JobSpecError: When the Dag is parsed, for what is wrong and literal.
        AirflowFailException: A mistake that waiting does not mend, such as a wrong key; `soft_fail` or not.
        AirflowSensorTimeout: There was no room within `timeout`; with `soft_fail` the task is skipped.
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
    operator_extra_links = (QuotaLink(),)
    ui_color = "#e6f4ea"
    left_running = "No job was started and nothing of it was billed."

    def __init__(
        self,
        *,
        model: Any = None,
        endpoint: Any = None,
        demand: Any = None,
        window: Any = None,
        limits: Any = None,
        locations: Any = (),
        min_fit_ratio: float = 1.0,
        probe_requests: int = 8,
        max_probe_usd: float = 0.05,
        embeds: bool | None = None,
        job_task_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = plain(model)
        self.endpoint = plain(endpoint)
        self.demand = plain(demand)
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
        if is_job(self.demand):  # whose prompt is rendered for each row, and never by Airflow
            self._prompt = self.demand.get("prompt")
            self.demand = {name: value for name, value in self.demand.items() if name != "prompt"}
        data = self._question()
        if isinstance(self.model, Mapping) and self.model.get("type") == "gemini":
            data["model"] = {"project": "of-the-connection", **self.model}  # which may name one
        problems = []
        if is_job(self.demand):
            if self.reschedule and not self.deferrable:
                raise JobSpecError(
                    f"Task {self.task_id!r}: `mode` 'reschedule' would read the whole source of `demand` at each "
                    "look. Leave `deferrable` on, or give numbers: those of an EstimateInferenceOperator."
                )
            del data["demand"]
            unrendered = ("prompt.template", "prompt.system", "prompt.media")
            problems += literal_problems(JobSpec, self._job_data("parsed"), unrendered)
        problems += literal_problems(QuotaQuestion, data)
        if problems:
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")

    def execute(self, context: Context) -> Any:
        """Waits until there is room."""
        if (url := quota_url(self._question())) is not None:
            context["ti"].xcom_push(key=QuotaLink().xcom_key, value=url)
        if is_job(self.demand):
            with errors_of_airflow():
                self.demand = self._demand(context["ti"])
        return super().execute(context)

    def on_kill(self) -> None:
        """Ends the process that reads the source."""
        if self._process is not None:
            self._process.stop()

    def trigger(self, schedule: PollSchedule) -> QuotaTrigger:
        """Makes what looks, here and in the triggerer."""
        return QuotaTrigger(
            question=self._question(),
            schedule=schedule.to_dict(),
            **self.connections,
        )

    def conclude(self, result: SensorResult, context: Context) -> dict[str, Any]:
        """Hands the job its limits."""
        assert result.event is not None
        found = result.event["result"]
        self.log.info("%s", found["sentence"])
        for key in _KEYS:
            if key in found:
                context["ti"].xcom_push(key=key, value=found[key])
        return {**found, "polls": result.polls, "waited_seconds": result.waited_seconds}

    def _demand(self, ti: Any) -> dict[str, Any]:
        """What a whole job asks, in numbers."""
        from airflow_provider_llmbeam.hooks.llmbeam import LLMBeamHook

        data = self._job_data(job_name(ti, self.job_task_id))
        data["model"], environment = LLMBeamHook(self.llmbeam_conn_id).complete_model({**data["model"]})
        spec = JobSpec.parse(data)
        self._process = JobProcess(spec, environment, self.log)
        with google_credentials(spec, self.gcp_conn_id):
            demand: dict[str, Any] = self._process.estimate(0)["demand"]
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
