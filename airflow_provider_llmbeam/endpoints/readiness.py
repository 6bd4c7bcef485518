"""The condition of the readiness sensor: a model answers within a latency limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_llmbeam.exceptions import EndpointRefusedError
from airflow_provider_llmbeam.hooks.llmbeam import open_model
from airflow_provider_llmbeam.hooks.probe import Prober, ProbeReply
from airflow_provider_llmbeam.polling.poller import TaskLog, Wait
from airflow_provider_llmbeam.spec.model import Model

#: Shortest timeout of a request: it is longer than most latency limits, so that the message has the latency.
MIN_REPLY_SECONDS = 60.0


class ReadinessCondition:
    """A model that answers within a latency limit; each check sends one request of one output token.

    Args:
        model: A model spec as plain data, without its key, which is read from the connection.
        max_latency_seconds: Longest time for the whole answer; a slower one is not ready yet.
        embeds: Whether the request asks for a vector.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def __init__(
        self,
        model: Mapping[str, Any],
        *,
        max_latency_seconds: float = 30.0,
        embeds: bool = False,
        llmbeam_conn_id: str = "llmbeam_default",
        gcp_conn_id: str = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
    ) -> None:
        self._max_latency_seconds = max_latency_seconds
        self._embeds = embeds
        self._open_model = partial(
            open_model,
            model,
            llmbeam_conn_id=llmbeam_conn_id,
            gcp_conn_id=gcp_conn_id,
            impersonation_chain=impersonation_chain,
        )
        self._name = ""
        self._prober: Prober | None = None

    def check(self, log: TaskLog) -> Wait | dict[str, Any]:
        """Sends one request.

        Args:
            log: Unused: the message of the `Wait` says all.

        Returns:
            `latency_seconds`: the time from the request to the end of the answer.

        Raises:
            LLMBeamError: There is no API key or token, or waiting will not resolve the refusal.
        """
        if self._prober is None:  # the first check reads the Airflow connections
            model, authenticate = self._open_model()
            seconds = max(MIN_REPLY_SECONDS, 2 * self._max_latency_seconds)
            self._name = describe_model(model)
            self._prober = Prober(model, authenticate=authenticate, embeds=self._embeds, reply_seconds=seconds)
        (reply,) = self._prober.probe(1).replies
        return judge_reply(reply, self._name, self._max_latency_seconds)


def judge_reply(reply: ProbeReply, name: str, max_latency_seconds: float) -> Wait | dict[str, Any]:
    """Returns what a reply means for the sensor.

    Args:
        reply: Outcome of one request.
        name: Name of the model, for messages.
        max_latency_seconds: Longest time for the whole answer; a slower one is not ready yet.

    Raises:
        EndpointRefusedError: Waiting will not resolve the refusal.
    """
    message = reply.message if reply.message.endswith((".", "!", "?")) else f"{reply.message}."
    if reply.is_final:
        raise EndpointRefusedError(
            f"{name} refuses to answer, and waiting will not resolve this: {message} Compare `model` with the "
            "deployed model, and check that the key or the account of the connection may use it."
        )
    if reply.outcome != "answered":
        return Wait(reply.retry_after_seconds or 0.0, f"{name} does not answer yet: {message}")
    if reply.seconds > max_latency_seconds:
        return Wait(
            0.0,
            f"{name} is slow: its answer took {reply.seconds:.1f} s, and `max_latency_seconds` allows "
            f"{max_latency_seconds:g} s.",
        )
    return {"latency_seconds": round(reply.seconds, 3)}


def describe_model(model: Model) -> str:
    """Returns the name of a model with its address, for messages."""
    return f"Model {model.name!r}{f' at {model.address}' if model.address else ''}"
