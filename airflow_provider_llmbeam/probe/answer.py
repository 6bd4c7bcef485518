"""One request to an endpoint that is being provisioned: whether its model answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_llmbeam.hooks.google.authentication import ModelAuthentication
from airflow_provider_llmbeam.probe.reply import ProbeReply
from airflow_provider_llmbeam.spec.model import Model
from airflow_provider_llmbeam.transport.server_reply import PASSING_STATUSES

if TYPE_CHECKING:
    from airflow_provider_llmbeam.hooks.google.base import GoogleHook

#: Timeout of the request; the first answer of a model that has just been loaded is slow.
ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of the request.

    Attributes:
        refusal: Reason why there was no answer; `None` if there was one.
        may_help_to_wait: Whether the server may still be loading the model.
    """

    refusal: str | None = None
    may_help_to_wait: bool = False


def ask(model: Model, hook: GoogleHook) -> Answer:
    """Sends one small request, as a job sends it.

    Args:
        model: The model behind the endpoint.
        hook: Hook with the credentials for the request.

    Raises:
        CloudError: There are no credentials.
    """
    from airflow_provider_llmbeam.probe.prober import Prober

    prober = Prober(model, authenticate=ModelAuthentication(model, hook=hook), reply_seconds=ANSWER_SECONDS)
    (reply,) = prober.probe(1).replies
    return answer_of(reply)


def answer_of(reply: ProbeReply) -> Answer:
    """Returns what a reply means for the endpoint."""
    if reply.outcome == "answered":
        return Answer()
    status = reply.http_status
    return Answer(reply.message, may_help_to_wait=status is None or status in PASSING_STATUSES or status >= 500)
