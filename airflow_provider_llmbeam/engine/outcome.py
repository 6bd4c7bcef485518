"""What became of one prompt: a completion, or a failure that says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

FailureKind = Literal[
    # before any request
    "unreadable_row",  # the source's line is not a row
    "missing_key",  # the row lacks a key column
    "duplicate_key",  # another row has the same key, and `on_duplicate_key` lets one of them pass
    "template_error",  # the prompt could not be rendered
    # answered by the server, final
    "bad_request",  # 4xx: the server's words say why
    "unauthorized",  # 401, 403, or an API key that is not valid
    "not_found",  # 404: no such model
    "quota_exhausted",  # a quota that does not refill within the job, e.g. per day
    "blocked",  # refused for its content
    "invalid_output",  # empty, or not what `output_schema` asks for
    # given up after retries
    "throttled",  # nothing but 429 for `max_throttled_seconds`
    "server_error",  # 5xx
    "garbage",  # a 200 whose body is not an answer
    "timeout",
    "connection",
    "internal",  # a defect on our side; the neighbours still get their answers
]

FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
#: Of rows that never became a prompt.
BEFORE_ANY_REQUEST: frozenset[FailureKind] = frozenset(
    {"unreadable_row", "missing_key", "duplicate_key", "template_error"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer.

    Attributes:
        text: As the server sent it; empty for an embedding.
        parsed: The JSON value of `text` when an output schema was asked for, the vector of an embedding, else
            `None`.
        model: The version that answered, as the server names it.
        finish_reason: `stop` or `max_tokens` (cut at `max_output_tokens`), else the server's own word;
            `truncated` where a text was too long and only its beginning was embedded.
        input_tokens: As billed, answers that were not valid included.
        output_tokens: Likewise, with thoughts.
        attempts: Requests sent, 429s not counted; 0 when another prompt of the batch carried the request.
        rejections: 429s received on the way, likewise.
        repairs: Of the attempts, those after an answer that was not valid.
        latency_seconds: Of the attempt that succeeded.
        first_token_seconds: From that attempt to its first text, when the answer was streamed.
        padded_tokens: Input tokens that the server computed for this prompt, padding included.
        sent_at: Unix time of the first request.
        answered_at: Unix time of the answer.
    """

    text: str
    parsed: Any = None
    model: str
    finish_reason: str
    input_tokens: int
    output_tokens: int
    attempts: int
    rejections: int = 0
    repairs: int = 0
    latency_seconds: float
    first_token_seconds: float | None = None
    padded_tokens: int = 0
    sent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why there is no answer.

    Attributes:
        kind: One of `FAILURE_KINDS`.
        message: The server's own words where it spoke.
        http_status: Of the last response, or none.
        attempts: Requests sent, 429s not counted; 0 when nothing was sent.
        rejections: 429s received.
        input_tokens: Billed although there is no answer.
        output_tokens: Billed although there is no answer.
    """

    kind: FailureKind
    message: str
    http_status: int | None = None
    attempts: int = 0
    rejections: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


Outcome = Completion | Failure
