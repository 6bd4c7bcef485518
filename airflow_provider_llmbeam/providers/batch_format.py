"""The interface of the formats of batch inference, and what they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.transport.server_reply import parse_json


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One line of a result file.

    Attributes:
        key: Key of the request, see `BatchFormat.encode`.
        result: The reply, or the error of this request. A reply has 0 input tokens if the provider reports none.
    """

    key: str
    result: Reply | RequestError


class BatchFormat(Protocol):
    """Encodes requests and decodes results, which are joined by key: no provider keeps the order."""

    def encode(self, fingerprint: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns the key of a request, and its line with the line break.

        The result is found by the key: the fingerprint, where the provider returns it.
        """
        ...

    def decode(self, line: bytes) -> ResultLine:
        """Reads the line of a result.

        Raises:
            ValueError: The line is no result, or does not say of which request; the message says why.
        """
        ...


def object_of(line: bytes) -> Mapping[str, Any]:
    """Returns the JSON object of a line.

    Raises:
        ValueError: It is none.
    """
    found = parse_json(line.decode("utf-8", "replace"))
    if not isinstance(found, Mapping):
        raise ValueError("it is no JSON object")
    return found
