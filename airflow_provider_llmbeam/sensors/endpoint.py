"""`EndpointReadySensor`: wait until a model answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.operators.links import EndpointLink, StoresLinks, endpoint_url
from airflow_provider_llmbeam.operators.literal import is_pending, plain
from airflow_provider_llmbeam.polling.schedule import SensorResult
from airflow_provider_llmbeam.sensors.base import PollingSensor
from airflow_provider_llmbeam.spec.model import Model, model_data, model_problems
from airflow_provider_llmbeam.triggers.sensor import EndpointReadyTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg


class EndpointReadySensor(StoresLinks, PollingSensor):
    """Waits until a model that is provisioned elsewhere answers within a latency limit.

    Each poll requests one output token as a job would: with the same address, key or account. If the model is
    billed by tokens, a poll costs about eleven tokens. The first poll starts a service that scales to zero, and
    later polls keep it running.

    Args:
        model: Model, see `spec.GeminiModel`, `spec.OpenAIModel` and `spec.VertexEndpointModel`; also the
            XCom of a model spec.
        max_latency_seconds: Longest time for the whole answer; a slower model is not ready yet.
        embeds: Whether to ask for a vector.
        llmbeam_conn_id: Connection with API key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
        deferrable: Whether the task releases its worker slot while it waits; if not, `mode` applies.

    Templated:
        `model`, `llmbeam_conn_id`, `gcp_conn_id`, `impersonation_chain`.

    XCom:
        `model` unchanged, also under its own key (`sensor.output["model"]`); `latency_seconds` of the answer,
        the number of requests (`polls`), and `waited_seconds` since the first one.

    Raises:
        JobSpecError: A literal argument is wrong; raised when the Dag is parsed.
        AirflowFailException: A wrong key, a model that does not exist, or another refusal that waiting will not
            resolve, with or without `soft_fail`.
        AirflowSensorTimeout: The model did not answer within `timeout`; with `soft_fail` the task is skipped.
    """

    template_fields: Sequence[str] = ("model", "llmbeam_conn_id", "gcp_conn_id", "impersonation_chain")
    template_fields_renderers = dict.fromkeys(template_fields[:1], "json")
    links = (EndpointLink(),)
    ui_color = "#e6f4ea"
    trigger_class = EndpointReadyTrigger
    left_running = "The sensor provisioned nothing: the model server keeps running, and is billed, as before."

    def __init__(
        self,
        *,
        model: Model | Mapping[str, Any] | str | XComArg,
        max_latency_seconds: float = 30.0,
        embeds: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model = model_data(plain(model))
        self.max_latency_seconds = max_latency_seconds
        self.embeds = embeds
        if not max_latency_seconds > 0:
            raise JobSpecError(
                f"Task {self.task_id!r}: `max_latency_seconds` must be > 0; got {max_latency_seconds!r}."
            )
        if problems := [problem for problem in model_problems(self.model) if not is_pending(problem.got)]:
            raise JobSpecError(f"Task {self.task_id!r}: {' '.join(map(str, problems))}")

    def condition_arguments(self) -> dict[str, Any]:
        """Returns the model, as Airflow rendered it, and what its answer has to be."""
        self.model = model_data(self.model)
        return {"model": self.model, "max_latency_seconds": self.max_latency_seconds, "embeds": self.embeds}

    def conclude(self, result: SensorResult, context: Context) -> dict[str, Any]:
        """Returns the model and the latency of its answer."""
        assert result.value is not None
        self.model = model_data(self.model)
        self.store_link(context, EndpointLink(), endpoint_url(self.model))
        context["ti"].xcom_push(key="model", value=self.model)
        return {
            "model": self.model,
            "latency_seconds": result.value["latency_seconds"],
            "polls": result.polls,
            "waited_seconds": result.waited_seconds,
        }
