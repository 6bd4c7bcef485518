"""Request files and result files of batch inference: one line per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_llmbeam.engine.backend import Reply
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.providers.registry import part_of
from airflow_provider_llmbeam.spec.model import Embedding, Generation, Model
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

    def encode(self, name: str, prompt: Prompt) -> tuple[str, bytes]:
        """Returns the key of a request, and its line with the line break.

        The result is found by the key: the name, where the provider returns it. It has 64 hexadecimal digits, the
        first 16 of the job, the others of the fingerprint.
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


def batch_format(
    model: Model,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    embedding: Embedding | None = None,
) -> BatchFormat:
    """Returns the format of the files of a model.

    Args:
        model: The model.
        generation: Parameters of the texts.
        output_schema: JSON Schema of the texts.
        embedding: Parameters of the vectors, to request vectors instead of texts.

    Raises:
        JobSpecError: No provider has batch inference for this model.
    """
    part = part_of(model, "batch_format")
    found: BatchFormat | None = part and part.open_format(model, generation, output_schema, embedding)
    if found is None:
        what = f"a model of type {model.type!r}"
        what = what if embedding is None else f"embeddings of model {model.name!r} of type {model.type!r}"
        raise JobSpecError(f"`inference.mode`: no provider has batch inference for {what}. Use mode 'online'.")
    return found
