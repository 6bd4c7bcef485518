"""The log of requests: each with its answer and with what was billed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from llmbeam_sandbox.core.methods import Method, Methods

RequestType = Literal["shared", "dedicated", "spillover"]
"""What has served a request to a model, in the words of Cloud Monitoring."""
REQUEST_TYPES: tuple[RequestType, ...] = get_args(RequestType)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMedia:
    """An image, audio, video or document of a request to a model.

    Attributes:
        mime_type: MIME type; "" when the request has none.
        uri: Its address; "" when the request has its bytes.
        sha256: Hash of its bytes, in hexadecimal; "" with an address.
        size_bytes: Size of its bytes; 0 with an address.
        tokens: Its input tokens.
    """

    mime_type: str
    uri: str = ""
    sha256: str = ""
    size_bytes: int = 0
    tokens: int = 258

    def __str__(self) -> str:
        return f"[{self.mime_type} {self.uri or self.sha256}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request and its answer.

    Attributes:
        method: Method called, e.g. "gemini.generateContent".
        model: Model name of the request; "" when the request was refused before it was parsed.
        prompt_sha256: `prompt_sha256(prompt, system)`; "" without a prompt.
        texts_sha256: Hash of each text to embed, or of each prompt of a request that has several.
        http_status: Status as sent, or as it would have been sent when the connection was dropped; None when
            the request was never answered.
        input_tokens: Billed input tokens; 0 when nothing is billed.
        output_tokens: Billed output tokens; 0 when nothing is billed.
        received_at: Time of arrival, in seconds since the epoch.
        answered_at: Time of the answer, in seconds since the epoch; None when the request was never answered.
        is_billed: Whether an answer was computed, delivered or not.
        resource: Name of the resource: of storage and BigQuery as the path has it; of models the project and
            location on Vertex AI, or the model deployed to an endpoint, "" on other paths.
        limit_name: The limit of the quota that rejected the request; "" when none did.
        request_type: "dedicated" if Provisioned Throughput served it, "spillover" if that was used up.
        received_bytes: Size of the request body as far as it was read, in bytes; not for models.
        sent_bytes: Size of the answer's body, in bytes; not for models.
        media: Images, audio, video and documents of a request to a model that was not refused.
        labels: Labels of a request to a model that was not refused, by key.
        turns: Text of each message of a conversation, of the user and of the model in turn; empty for one message.
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
    request_type: RequestType = "shared"
    received_bytes: int = 0
    sent_bytes: int = 0
    media: tuple[ReceivedMedia, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    turns: tuple[str, ...] = ()


class RequestLog:
    """Records in the order in which the requests were completed. Safe to read from any thread.

    Args:
        methods: The methods that records may have.
    """

    def __init__(self, methods: Methods) -> None:
        self._methods = methods
        self._records: list[RequestRecord] = []
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[RequestRecord]:
        return iter(list(self._records))

    def __getitem__(self, index: int) -> RequestRecord:
        return self._records[index]

    def append(self, record: RequestRecord, epoch: int) -> None:
        """Appends a record, unless the log was cleared after the request arrived in `epoch`."""
        if epoch == self.epoch:
            self._records.append(record)

    def clear(self) -> None:
        """Removes all records, and ignores those of requests that are still in flight."""
        self.epoch += 1
        self._records.clear()

    def paid(self, method: Method | None = None) -> Counter[str]:
        """Counts the billed answers per prompt, or per embedded text: a count above 1 was paid for twice.

        Args:
            method: Method to count; None counts all.

        Returns:
            Number of computed answers by `prompt_sha256`, including those that a fault damaged or dropped, and
            those whose caller had disconnected.

        Raises:
            ValueError: `method` is unknown.
        """
        if method is not None:
            self._methods.check(method)
        return Counter(
            paid
            for record in self
            if record.is_billed and method in (None, record.method)
            for paid in record.texts_sha256 or (record.prompt_sha256,)
        )
