"""A failure that most rows of a job share: what failed, how often, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.engine.outcome import PERMANENT
from airflow_provider_llmbeam.spec.fields.failure_kind import FailureKind

#: Maximum length of a quoted message, so that the sentence stays readable.
_QUOTED_CHARACTERS = 80

#: What failed, and what to change; `truncated` has the limit in its sentence.
_SENTENCES: dict[FailureKind, str] = {
    "unreadable_row": "{rows} lines are no rows: correct `source.format` or the file.",
    "missing_key": "{rows} rows have no key: correct `source.key` or the rows.",
    "template_error": "No prompt could be made of {rows} rows: correct `prompt.template` or the source.",
    "personal_data": "{rows} rows have personal data that `safety.privacy` lets no row have, or were masked with "
    "another key: change `actions`, the source or the key.",
    "media_error": "{rows} rows lack a file that can be sent: correct `prompt.media`.",
    "no_turn": "{rows} rows are no turns: correct `conversation` or the rows.",
    "earlier_turn_failed": "{rows} rows follow a turn of their conversation that failed: a retry sends both.",
    "bad_request": "The server refused {rows} requests: change what it names in the spec, or the rows.",
    "unauthorized": "{rows} rows failed as the server refuses the key: set one, or credentials, for the model.",
    "not_found": "{rows} rows failed: no such model there. Correct `model.name` or `base_url`.",
    "blocked": "{rows} answers were blocked: change `prompt.template`, the rows or the model.",
    "moderated": "The guard model refused {rows} rows: change the rows, the prompt or `safety.moderation`.",
    "truncated": "{rows} answers were cut at `generation.max_output_tokens` = {limit}: raise it.",
    "invalid_output": "{rows} answers cannot be used: change `prompt.template`, `output_schema` or the model.",
    "not_stored": "The sink refused {rows} answers: change the table or the topic, or the rows. They are in the "
    "journal, and another run publishes them without a request.",
    "throttled": "{rows} rows were only rejected (429): raise the quota, or lower `limits.requests_per_minute`.",
    "server_error": "{rows} rows failed by errors of the server: see its log; a retry sends them again.",
    "garbage": "{rows} rows received replies that are no answer: check the server or `prompt.template`; a retry "
    "sends them again.",
    "timeout": "{rows} rows had no answer in time: check the server, or raise `limits.request_timeout_seconds`.",
    "connection": "{rows} rows lost their connection: start the server, or correct its address or the network.",
}
#: That of `invalid_output` for an embedding job.
_INVALID_VECTORS = (
    "{rows} vectors cannot be used: repair the model server, or correct `embedding.dimensions`; another run sends "
    "their rows again."
)


@dataclass(frozen=True, slots=True)
class SharedFailure:
    """A failure that most rows share.

    Attributes:
        kind: Kind of the failure.
        failed: Number of rows that failed for it.
        asked: Number of rows with an outcome.
        message: Message of one of the failures.
    """

    kind: FailureKind
    failed: int
    asked: int
    message: str

    @property
    def is_permanent(self) -> bool:
        """Whether another run of the same job repeats it."""
        return self.kind in PERMANENT

    def sentence(self, max_output_tokens: int) -> str:
        """Returns what failed and what to change.

        Args:
            max_output_tokens: `generation.max_output_tokens` of the job; 0 if its answers are vectors.
        """
        sentence = self.cause(max_output_tokens, f"{self.failed:,} of {self.asked:,}")
        if self.kind == "truncated":  # what is left of the answer says nothing more
            return sentence
        return f"{sentence} {quoted(self.message)}"

    def cause(self, max_output_tokens: int, rows: str) -> str:
        """Returns what failed and what to change, without the message of a failure.

        Args:
            max_output_tokens: See `sentence`.
            rows: Words for the number of rows.
        """
        fault = _SENTENCES.get(self.kind, f"{{rows}} rows failed ({self.kind}).")
        if self.kind == "invalid_output" and not max_output_tokens:
            fault = _INVALID_VECTORS
        return fault.format(rows=rows, limit=max_output_tokens)


def quoted(message: str) -> str:
    """Returns the beginning of a message on one line, with a full stop at its end."""
    line = " ".join(message.split())
    if len(line) > _QUOTED_CHARACTERS:
        return f"{line[: _QUOTED_CHARACTERS - 1]}…"
    return f"{line.rstrip('.')}."
