"""Polls a model until it answers within a latency limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import EndpointRefusedError
from airflow_provider_llmbeam.hooks.llmbeam import open_model
from airflow_provider_llmbeam.polling.poller import PollResult, Wait
from airflow_provider_llmbeam.probe.prober import Prober
from airflow_provider_llmbeam.probe.reply import ProbeReply
from airflow_provider_llmbeam.spec.model import Model

#: Shortest timeout of a request: it is longer than most latency limits, so that the message has the latency.
MIN_REPLY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ReadinessResult(PollResult):
    """The model answered in time.

    Attributes:
        latency_seconds: Time from the request to the end of the answer.
    """

    latency_seconds: float


class ReadinessPoller:
    """Sends a model one request of one output token per poll. Blocks the calling thread.

    Args:
        connect: Makes the prober at the first poll, when the Airflow connections are read.
        max_latency_seconds: Longest time for the whole answer; a slower one is not ready yet.
    """

    def __init__(self, connect: Callable[[], tuple[Model, Prober]], max_latency_seconds: float) -> None:
        self._connect = connect
        self._max_latency_seconds = max_latency_seconds
        self._connected: tuple[Model, Prober] | None = None

    def poll(self) -> Wait | ReadinessResult:
        """Sends one request.

        Raises:
            LLMBeamError: There is no API key or token, or waiting will not resolve the refusal.
        """
        if self._connected is None:
            self._connected = self._connect()
        model, prober = self._connected
        (reply,) = prober.probe(1).replies
        return judged(reply, named(model), self._max_latency_seconds)


def judged(reply: ProbeReply, name: str, max_latency_seconds: float) -> Wait | ReadinessResult:
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
    return ReadinessResult(round(reply.seconds, 3))


def readiness_poller(
    model: Mapping[str, Any],
    *,
    max_latency_seconds: float,
    embeds: bool,
    llmbeam_conn_id: str,
    gcp_conn_id: str,
    impersonation_chain: str | Sequence[str] | None,
) -> ReadinessPoller:
    """Returns a poller that uses the connections of a task.

    Args:
        model: A model spec as plain data.
        max_latency_seconds: Longest time for the whole answer; a slower one is not ready yet.
        embeds: Whether the request asks for a vector.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection with the credentials for Google Cloud.
        impersonation_chain: Service account to impersonate, or a chain of them.
    """

    def connect() -> tuple[Model, Prober]:
        parsed, authenticate = open_model(
            model,
            llmbeam_conn_id=llmbeam_conn_id,
            gcp_conn_id=gcp_conn_id,
            impersonation_chain=impersonation_chain,
        )
        reply_seconds = max(MIN_REPLY_SECONDS, 2 * max_latency_seconds)
        return parsed, Prober(parsed, authenticate=authenticate, embeds=embeds, reply_seconds=reply_seconds)

    return ReadinessPoller(connect, max_latency_seconds)


def named(model: Model) -> str:
    """Returns the name of a model with its address, for messages."""
    return f"Model {model.name!r}{f' at {model.address}' if model.address else ''}"
