"""Whether a model answers, and soon enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_llmbeam.exceptions import EndpointRefusedError
from airflow_provider_llmbeam.polling.poller import Wait
from airflow_provider_llmbeam.polling.result import PollResult
from airflow_provider_llmbeam.probe.model_access import open_model
from airflow_provider_llmbeam.probe.prober import Prober
from airflow_provider_llmbeam.probe.reply import ProbeReply
from airflow_provider_llmbeam.spec.model import GeminiModel, Model, OpenAIModel, VertexEndpointModel

#: A slow answer is waited for this long, so that it can be said how slow it was.
MIN_REPLY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ReadinessResult(PollResult):
    """The model answered in time.

    Attributes:
        latency_seconds: Time from the request to the end of the answer.
    """

    latency_seconds: float


class ReadinessPoller:
    """Asks a model for one token. Blocks, in the thread that calls.

    Args:
        connect: Makes what asks, at the first look: that reads the Airflow connections.
        max_latency_seconds: A slower answer is none yet.
    """

    def __init__(self, connect: Callable[[], tuple[Model, Prober]], max_latency_seconds: float) -> None:
        self._connect = connect
        self._max_latency_seconds = max_latency_seconds
        self._connected: tuple[Model, Prober] | None = None

    def poll(self) -> Wait | ReadinessResult:
        """Asks once.

        Raises:
            LLMBeamError: There is no key or no token, or the refusal is one that waiting does not mend.
        """
        if self._connected is None:
            self._connected = self._connect()
        model, prober = self._connected
        (reply,) = prober.probe(1).replies
        return judged(reply, named(model), self._max_latency_seconds)


def judged(reply: ProbeReply, name: str, max_latency_seconds: float) -> Wait | ReadinessResult:
    """Says what follows from a reply.

    Args:
        reply: What one request met.
        name: Of the model, for messages.
        max_latency_seconds: A slower answer is none yet.

    Raises:
        EndpointRefusedError: Waiting does not mend the refusal.
    """
    words = reply.words if reply.words.endswith((".", "!", "?")) else f"{reply.words}."
    if reply.is_final:
        raise EndpointRefusedError(
            f"{name} refuses to answer, and waiting does not mend that: {words} Compare `model` with what "
            "is deployed, and see whether the key or the account of the connection may ask it."
        )
    if reply.outcome != "answered":
        return Wait(reply.retry_after_seconds or 0.0, f"{name} does not answer yet: {words}")
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
    """Makes what asks a model, by the connections of a task.

    Args:
        model: A model spec as plain data.
        max_latency_seconds: A slower answer is none yet.
        embeds: Asks for a vector.
        llmbeam_conn_id: Connection with key, base URL, project and location.
        gcp_conn_id: Connection whose credentials ask where it is Google Cloud.
        impersonation_chain: Service account to act as, or several, each acting as the next.
    """

    def connect() -> tuple[Model, Prober]:
        parsed, access = open_model(
            model,
            llmbeam_conn_id=llmbeam_conn_id,
            gcp_conn_id=gcp_conn_id,
            impersonation_chain=impersonation_chain,
        )
        patience = max(MIN_REPLY_SECONDS, 2 * max_latency_seconds)
        return parsed, Prober(parsed, access=access, embeds=embeds, reply_seconds=patience)

    return ReadinessPoller(connect, max_latency_seconds)


def named(model: Model) -> str:
    """A model with its address, for messages."""
    match model:
        case GeminiModel() | VertexEndpointModel():
            return f"Model {model.name!r} at {model.address}"
        case OpenAIModel():
            return f"Model {model.name!r} at {model.base_url}"
    return f"Model {model.name!r}"
