"""Outcome of one prompt: a completion or a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from typing import Any

from airflow_provider_llmbeam.engine.token_counts import NO_TOKENS, Tokens
from airflow_provider_llmbeam.engine.value import value
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind
from airflow_provider_llmbeam.spec.model.tier import ServiceTier

#: Kinds of rows for which no request was made.
BEFORE_ANY_REQUEST: frozenset[FailureKind] = frozenset(
    {
        "unreadable_row",
        "missing_key",
        "duplicate_key",
        "template_error",
        "media_error",
        "personal_data",
        "no_turn",
        "too_old",
        "not_sent",
    }
)
#: Kinds of answers that were billed and cannot be used. The journal keeps them, as the same request would buy the
#: same refusal again.
REFUSED: frozenset[FailureKind] = frozenset({"blocked", "truncated", "invalid_output"})
#: Kinds that another run of the same job repeats.
PERMANENT: frozenset[FailureKind] = (
    BEFORE_ANY_REQUEST | REFUSED | {"bad_request", "unauthorized", "not_found", "moderated", "not_stored"}
)
#: Kinds that every other prompt would meet, too.
OF_EVERY_PROMPT: frozenset[FailureKind] = frozenset({"unauthorized", "not_found"})


@value(kw_only=True)
class Completion:
    """An answer.

    Attributes:
        text: Text as sent by the server; empty for an embedding.
        parsed: JSON value of `text` if an output schema was requested, the vector of an embedding, else `None`.
        model: Version of the model, as reported by the server.
        finish_reason: `stop`, `max_tokens` (truncated at `max_output_tokens`), or the value of the server;
            `truncated` if only the beginning of a long text was embedded.
        tokens: Billed tokens, including those of invalid answers.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar; `None` if no price is known.
        attempts: Number of requests sent, without 429s; 0 if they are counted with another prompt of the request.
        rejections: Number of 429s received, counted in the same way.
        rejected_at: Unix time of each of them; empty for an answer from the journal, which does not keep them.
        held_seconds: Time that it has waited for the rate or a retry delay, in seconds; kept in the same way.
        sheds: Number of times that the flex tier had no capacity, counted in the same way.
        repairs: Number of attempts that followed an invalid answer.
        latency_seconds: Duration of the successful attempt, in seconds.
        first_token_seconds: Time from that attempt to its first text, in seconds, for a streamed answer.
        padded_tokens: Input tokens that the server computed for this prompt, including padding.
        sent_at: Unix time of the first request.
        answered_at: Unix time of the answer.
        service_tier: Tier at which it was served.
        mean_logprob: Mean natural logarithm of the probabilities of its tokens, with `generation.logprobs`.
        score_logprob: What `generation.logprobs` names in its place: the minimum, or the sum over the label.
        mended: 1 if its text was mended without another request.
        reasoning: With `generation.keep_reasoning`, what the model wrote before the text; `None` for nothing.
        citations: With `generation.google_search`, the pages that it uses: `uri`, `title`, and in `texts` the
            parts of the answer that they support.
    """

    text: str
    parsed: Any = None
    model: str
    finish_reason: str
    tokens: Tokens
    cost_nano_usd: int | None = None
    attempts: int
    rejections: int = 0
    rejected_at: tuple[float, ...] = field(default=(), compare=False)
    held_seconds: float = field(default=0.0, compare=False)
    sheds: int = 0
    repairs: int = 0
    mended: int = 0
    latency_seconds: float
    first_token_seconds: float | None = None
    padded_tokens: int = 0
    sent_at: float
    answered_at: float
    service_tier: ServiceTier = "standard"
    mean_logprob: float | None = None
    score_logprob: float | None = None
    citations: list[dict[str, Any]] | None = None
    reasoning: str | None = None


@value(kw_only=True)
class Failure:
    """The reason why a prompt has no answer.

    Attributes:
        kind: One of `FAILURE_KINDS`.
        message: Message of the server, if it sent one.
        http_status: HTTP status of the last response, or `None`.
        attempts: Number of requests sent, without 429s; 0 if nothing was sent.
        rejections: Number of 429s received.
        rejected_at: Unix time of each of them; empty for a refusal from the journal, which does not keep them.
        sheds: Number of times that the flex tier had no capacity.
        tokens: Billed tokens, in spite of the failure.
        cost_nano_usd: Cost of these tokens, in billionths of a US dollar; `None` if no price is known.
        max_repairs: Number of attempts that an invalid answer was allowed to cost, for a refused answer.
        answered_at: Unix time of a refused answer; 0 for other failures.
        began_at: Unix time of the first request; 0 as `failed_at`.
        failed_at: Unix time of the failure; 0 if nothing was sent, and for a refusal from the journal.
        service_tier: Tier at which a refused answer was served.
        category: What a prompt or an answer was blocked for, as the server or the guard model names it, e.g.
            `HARM_CATEGORY_HARASSMENT`; several are separated by commas. `None` for other failures.
        request_id: ID that the server or its gateway has given the last request; `None` if it gave none, and for a
            refusal from the journal.
    """

    kind: FailureKind
    message: str
    http_status: int | None = None
    attempts: int = 0
    rejections: int = 0
    rejected_at: tuple[float, ...] = field(default=(), compare=False)
    sheds: int = 0
    tokens: Tokens = NO_TOKENS
    cost_nano_usd: int | None = 0
    max_repairs: int = 0
    answered_at: float = 0.0
    began_at: float = field(default=0.0, compare=False)
    failed_at: float = field(default=0.0, compare=False)
    service_tier: ServiceTier = "standard"
    category: str | None = None
    request_id: str | None = field(default=None, compare=False)


Outcome = Completion | Failure


def without_secrets(outcome: Outcome, redact: Callable[[str], str]) -> Outcome:
    """Returns an outcome of which all that is no answer, but was written by a server, is a text for people.

    Args:
        outcome: The outcome.
        redact: Returns such a text, see `redaction.redact`; called for every outcome, with few different texts.
    """
    if isinstance(outcome, Failure):
        category, request_id = (text and redact(text) for text in (outcome.category, outcome.request_id))
        return replace(outcome, message=redact(outcome.message), category=category, request_id=request_id)
    model, finish_reason = redact(outcome.model), redact(outcome.finish_reason)
    if model == outcome.model and finish_reason == outcome.finish_reason:
        return outcome
    return replace(outcome, model=model, finish_reason=finish_reason)
