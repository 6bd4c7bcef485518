"""The log of requests: what was asked, what was answered, and what was billed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_provider_llmbeam.sandbox.core.faults import Method, check_method


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the server saw it.

    Attributes:
        method: E.g. "gemini.generateContent".
        model: As asked for; "" when the request was refused before it was read.
        prompt_sha256: `prompt_sha256(prompt, system)`; "" when there was no prompt.
        texts_sha256: Of each text that was to be embedded, or answered by itself.
        http_status: As sent, or as it was about to be sent when the connection was dropped; None when
            the server never answers.
        input_tokens: 0 when nothing is billed.
        output_tokens: 0 when nothing is billed.
        received_at: Seconds since the epoch.
        answered_at: Seconds since the epoch; None when the server never answers.
        is_billed: Whether an answer was computed, delivered or not.
        resource: What a request to storage or BigQuery was about; of models the project and location on Vertex AI,
            or the model deployed to an endpoint, "" on other paths.
        limit_name: The limit of the quota that rejected it; "" when none did.
        received_bytes: Of the body, as far as it was read; only for storage and BigQuery.
        sent_bytes: Of the body; only for storage and BigQuery.
    """

    method: Method
    model: str = ""
    prompt_sha256: str = ""
    texts_sha256: tuple[str, ...] = ()
    http_status: int | None
    input_tokens: int = 0
    output_tokens: int = 0
    received_at: float
    answered_at: float | None
    is_billed: bool = False
    resource: str = ""
    limit_name: str = ""
    received_bytes: int = 0
    sent_bytes: int = 0


class RequestLog:
    """Records in the order the server finished with them. Safe to read from any thread."""

    def __init__(self) -> None:
        self._records: list[RequestRecord] = []
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(list(self._records))

    def __getitem__(self, index: int) -> RequestRecord:
        return self._records[index]

    def append(self, record: RequestRecord, epoch: int) -> None:
        """Add a record, unless the log was cleared since the request began in `epoch`."""
        if epoch == self.epoch:
            self._records.append(record)

    def clear(self) -> None:
        """Forget all records, and those of requests that are still in flight."""
        self.epoch += 1
        self._records.clear()

    def paid(self, method: Method | None = None) -> Counter[str]:
        """Count the billed answers per prompt, or per text embedded: whoever is above 1 was paid for twice.

        Args:
            method: Only this method; None counts all.

        Returns:
            `prompt_sha256` to the number of answers computed, including those that a fault cut or
            dropped on the way, and those whose caller had gone.

        Raises:
            ValueError: `method` is unknown.
        """
        if method is not None:
            check_method(method)
        return Counter(
            paid
            for record in self
            if record.is_billed and method in (None, record.method)
            for paid in record.texts_sha256 or (record.prompt_sha256,)
        )
