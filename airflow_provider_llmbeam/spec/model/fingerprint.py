"""Fingerprints: digests of everything that decides an answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_llmbeam.spec.model.generation import Embedding, Generation
from airflow_provider_llmbeam.spec.model.model import Model, VertexEndpointModel

_to_json = json.JSONEncoder(ensure_ascii=False).encode


class Fingerprinter:
    """Computes fingerprints: two prompts with the same fingerprint have the same answer.

    The address of the server and the limits are excluded: the same model at another address, or at another rate,
    gives the same answer, which need not be paid for again.
    """

    def __init__(
        self,
        model: Model,
        generation: Generation,
        output_schema: Mapping[str, Any] | None,
        embedding: Embedding | None = None,
    ) -> None:
        decisive: list[Any] = [1, model.type, model.name]
        if isinstance(model, VertexEndpointModel) and model.request_format != "chat":
            decisive.append("plain")  # the server puts no chat template around the prompt
        if isinstance(model, VertexEndpointModel) and model.deployed_models:
            decisive.append(sorted(model.deployed_models.values()))
        if embedding is None:
            decisive += [generation.decisive(), output_schema]
        else:
            decisive += ["embed", embedding.model_dump(mode="json")]
        self._common = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())

    def __call__(self, text: str, system: str | None, media: Sequence[tuple[str, str | None]] = ()) -> str:
        """Returns 64 hexadecimal digits: SHA-256 over model, parameters and the rendered prompt.

        Args:
            text: Text of the prompt.
            system: System instruction.
            media: For each file, a text that only a file of the same bytes has, and its MIME type. For a file on
                the web it is the address: nothing is fetched to compare it.
        """
        return self._digest(text, system, media).hexdigest()

    def turn(self, conversation: str, history: Sequence[tuple[str, str]], text: str, system: str | None) -> str:
        """Returns 64 hexadecimal digits: those of the conversation, and 32 for a prompt with its history.

        Conversations share no answers, so that what is recorded of one is found by its own digits.

        Args:
            conversation: 32 hexadecimal digits.
            history: Text and answer of each turn before.
            text: Text of the prompt.
            system: System instruction.
        """
        digest = self._digest(text, system, ())
        digest.update(_to_json(history).encode("utf-8", "surrogatepass"))
        return f"{conversation}{digest.hexdigest()[:32]}"

    def _digest(self, text: str, system: str | None, media: Sequence[tuple[str, str | None]]) -> hashlib._Hash:
        digest = self._common.copy()
        # The JSON of the three as a list; `json` encodes a text five times as fast as a list of it.
        of_system = "null" if system is None else _to_json(system)
        of_media = _to_json(list(media)) if media else "[]"
        digest.update(f"[{_to_json(text)}, {of_system}, {of_media}]".encode("utf-8", "surrogatepass"))
        return digest
