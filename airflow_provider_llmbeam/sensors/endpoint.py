"""`EndpointReadySensor`: wait until a model answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.links.endpoint import EndpointLink, endpoint_url
from airflow_provider_llmbeam.polling.schedule import PollSchedule
from airflow_provider_llmbeam.polling.scheduled import SensorResult
from airflow_provider_llmbeam.sensors.base import PollingSensor
from airflow_provider_llmbeam.spec.model import model_problems
from airflow_provider_llmbeam.tasks.literal import is_pending, plain
from airflow_provider_llmbeam.triggers.endpoint_ready import EndpointReadyTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class EndpointReadySensor(PollingSensor):
    """Waits until a model that somebody else brought up answers, and soon enough.

    Each look asks for one token, as a job would ask: with the same address, key or account. Where the model is
    billed by tokens, a look costs about eleven of them. A service that scales to zero is started by the first
    look, and kept up by the others.

    Args:
        model: Which model, see `spec.GeminiModel`, `spec.OpenAIModel` and `spec.VertexEndpointModel`; also the
            XCom of a model spec.
        max_latency_seconds: Longest time for the whole answer; a slower one is not ready yet.
        embeds: Asks for a vector.
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
        deferrable: Whether the task leaves its worker slot while it waits; off, `mode` counts.

    Templated:
        `model`, `llmbeam_conn_id`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        `model` as it was given, also under a key of its own (`sensor.output["model"]`); `latency_seconds` of the
        answer, how often it was `asked`, and `waited_seconds` since the first time.

    Raises:
        JobSpecError: When the Dag is parsed, for what is wrong and literal.
        AirflowFailException: A wrong key, a model that is not there, or another refusal that waiting does not
            mend, `soft_fail` or not.
        AirflowSensorTimeout: It did not answer in time within `timeout`; with `soft_fail` the task is skipped.
    """

    template_fields: Sequence[str] = ("model", "llmbeam_conn_id", "gcp_conn_id", "impersonation_chain")
    template_fields_renderers = dict.fromkeys(template_fields[:1], "json")
    operator_extra_links = (EndpointLink(),)
    ui_color = "#e6f4ea"
    left_running = "The sensor brought nothing up: what serves the model goes on, and is billed, as before."

    def __init__(
        self,
        *,
        model: Any,
        max_latency_seconds: float = 30.0,
        embeds: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = plain(model)
        self.max_latency_seconds = max_latency_seconds
        self.embeds = embeds
        if not max_latency_seconds > 0:
            raise JobSpecError(
                f"Task {self.task_id!r}: `max_latency_seconds` must be > 0; got {max_latency_seconds!r}."
            )
        if problems := [problem for problem in model_problems(self.model) if not is_pending(problem.got)]:
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")

    def trigger(self, schedule: PollSchedule) -> EndpointReadyTrigger:
        """Makes what asks, here and in the triggerer."""
        return EndpointReadyTrigger(
            model=self.model,
            schedule=schedule.to_dict(),
            max_latency_seconds=self.max_latency_seconds,
            embeds=self.embeds,
            **self.connections,
        )

    def conclude(self, result: SensorResult, context: Context) -> dict[str, Any]:
        """Says how soon the model answered."""
        assert result.event is not None
        if (url := endpoint_url(self.model)) is not None:
            context["ti"].xcom_push(key=EndpointLink().xcom_key, value=url)
        context["ti"].xcom_push(key="model", value=self.model)
        return {
            "model": self.model,
            "latency_seconds": result.event["latency_seconds"],
            "asked": result.polls,
            "waited_seconds": result.waited_seconds,
        }
