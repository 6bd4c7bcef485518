"""Kinds of failure of a row; the dead letter and the report have them."""

from __future__ import annotations

from typing import Literal, get_args

FailureKind = Literal[
    # before any request
    "unreadable_row",  # the line of the source is not a row
    "missing_key",  # the row lacks a key column
    "duplicate_key",  # another row has the same key, and `on_duplicate_key` selects one of them
    "template_error",  # the prompt could not be rendered
    "media_error",  # a file of `prompt.media` cannot be read, or the server does not take it
    "personal_data",  # it has personal data that `safety.privacy` lets no row have, or cannot mask or restore
    "no_turn",  # it lacks a value that names or orders its conversation
    "too_old",  # the message reached `stream.max_age_seconds` before it could be sent
    "not_sent",  # the first rows all failed for one reason, which the message names
    # not sent, and sent by another run
    "earlier_turn_failed",  # an earlier turn of its conversation failed, e.g. by a timeout
    # answered by the server, final
    "bad_request",  # 4xx: the message of the server says why
    "unauthorized",  # 401, 403, or an API key that is not valid
    "not_found",  # 404: no such model
    "quota_exhausted",  # a quota that does not refill within the job, e.g. per day
    "blocked",  # blocked by the provider for its content; `category` says what for
    "moderated",  # unsafe by the verdict of the guard model, or without a verdict that can be read
    "truncated",  # cut at `max_output_tokens`, so that it is empty or not valid against `output_schema`
    "invalid_output",  # empty, or not valid against `output_schema`
    # answered, and published by another run once the sink stores it
    "not_stored",  # the sink refuses the answer, which the journal keeps; the message has the words of the sink
    # failed after retries
    "throttled",  # nothing but 429 for `max_throttled_seconds`
    "server_error",  # 5xx
    "garbage",  # a 200 whose body is not an answer
    "timeout",
    "connection",
    "internal",  # a defect of this package; other prompts of the batch are answered
]

FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)

#: Kinds that are faults of the source, which another prompt or model does not correct. If two rows have one key,
#: the answer of the second would replace the answer of the first.
FAULTS_OF_THE_SOURCE: frozenset[FailureKind] = frozenset({"unreadable_row", "missing_key", "duplicate_key"})
#: Kinds that another prompt or model does not correct either, as no request can be made of the row.
OF_NO_MODEL: frozenset[FailureKind] = FAULTS_OF_THE_SOURCE | {
    "media_error",
    "personal_data",
    "no_turn",
}
