"""The OpenAI API's embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.methods import Methods
from llmbeam_sandbox.core.responses import Reply, json_reply, read_object
from llmbeam_sandbox.models.answers import Answer, count_tokens, prompt_sha256
from llmbeam_sandbox.models.calls import ModelCall, RefusedError
from llmbeam_sandbox.models.embedding.base import Separation, vectors
from llmbeam_sandbox.models.openai import OpenAIDialect, openai_error
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(names=("openai.embeddings",))
MAX_INPUTS = 2048
MAX_TEXT_TOKENS = 8192
MAX_REQUEST_TOKENS = 300_000
"""Source of the three: https://platform.openai.com/docs/api-reference/embeddings/create, `input`."""
_INVALID_INPUT = (
    "'$.input' is invalid. Please check the API reference: https://platform.openai.com/docs/api-reference."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsDialect(OpenAIDialect):
    """`POST /v1/embeddings`."""

    separations: Mapping[str, Separation] = field(default_factory=dict)

    @property
    def is_metered(self) -> bool:
        """Whether a call is charged to the quota, takes time and is billed."""
        return True

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Reads and checks a request; raises `RefusedError` when the service would refuse it."""
        self.authenticate(request)
        return self.parse(body)

    def parse(self, body: bytes) -> ModelCall:
        """Reads and checks a body; raises `RefusedError` when the service would refuse it."""
        try:
            fields = read_object(body)
            call = self.known(_call(fields), embeds=True)
        except (ValueError, TypeError) as error:
            message = f"We could not parse the JSON body of your request: {error}"
            raise RefusedError(openai_error(400, message)) from error
        limit = min(MAX_TEXT_TOKENS, self.input_token_limit)
        longest = max(map(count_tokens, call.texts))
        if longest > limit:
            message = (
                f"This model's maximum context length is {limit} tokens, however you requested {longest} tokens "
                f"({longest} in your prompt; 0 for the completion). Please reduce your prompt; or completion "
                "length."
            )
            raise RefusedError(openai_error(400, message))
        if call.input_tokens > MAX_REQUEST_TOKENS:
            message = f"Requested {call.input_tokens} tokens, max {MAX_REQUEST_TOKENS} tokens per request"
            raise RefusedError(openai_error(400, message, kind="max_tokens_per_request"))
        return call

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""
        embedded = vectors(call.texts, self.separations, model=call.model, dimensions=call.dimensions)
        data = [
            {"object": "embedding", "index": index, "embedding": _base64(found) if call.is_base64 else found}
            for index, found in enumerate(embedded)
        ]
        usage = {"prompt_tokens": call.input_tokens, "total_tokens": call.input_tokens}
        return json_reply({"object": "list", "data": data, "model": call.model, "usage": usage})


def routes(server: ModelServer) -> list[web.RouteDef]:
    """Returns the route of the embeddings."""
    dialect = EmbeddingsDialect(
        method="openai.embeddings",
        api_key=server.settings.openai_api_key,
        input_token_limit=server.settings.input_token_limit,
        any_model=server.settings.any_model,
        separations=server.settings.separations,
    )

    async def embed(request: web.Request) -> web.StreamResponse:
        return await server.serve(request, dialect)

    return [web.post("/v1/embeddings", embed)]


def _call(fields: Mapping[str, Any]) -> ModelCall:
    model, texts = fields.get("model"), fields.get("input")
    if not model:
        raise RefusedError(openai_error(400, "you must provide a model parameter"))
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not 1 <= len(texts) <= MAX_INPUTS:
        raise RefusedError(openai_error(400, _INVALID_INPUT))
    if not all(isinstance(text, str) and text for text in texts):
        raise RefusedError(openai_error(400, _INVALID_INPUT))
    dimensions = fields.get("dimensions")
    if dimensions is not None and int(dimensions) < 1:
        raise RefusedError(openai_error(400, f"{dimensions} is less than the minimum of 1 - 'dimensions'"))
    prompt = "\n".join(texts)
    return ModelCall(
        model=model,
        prompt=prompt,
        system="",
        input_tokens=sum(map(count_tokens, texts)),
        prompt_sha256=prompt_sha256(prompt),
        texts=tuple(texts),
        dimensions=dimensions,
        is_base64=fields.get("encoding_format") == "base64",
    )


def _base64(numbers: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()
