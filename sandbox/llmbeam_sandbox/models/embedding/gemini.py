"""The Gemini API's embeddings, and those of Vertex AI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.methods import Method, Methods
from llmbeam_sandbox.core.responses import Reply, google_error, json_reply, read_object
from llmbeam_sandbox.models.answers import Answer, count_tokens, prompt_sha256
from llmbeam_sandbox.models.calls import ModelCall, RefusedError
from llmbeam_sandbox.models.catalog import is_gemini
from llmbeam_sandbox.models.embedding.base import Separation, vector, vectors
from llmbeam_sandbox.models.gemini import GeminiDialect
from llmbeam_sandbox.models.server import ModelServer

METHODS = Methods(names=("gemini.batchEmbedContents", "gemini.embedContent", "gemini.predict"))
MAX_BATCH = 100
"""Source: the message below, quoted in github.com/langchain-ai/langchainjs/issues/4491."""
MAX_INSTANCES, MAX_REQUEST_TOKENS, MAX_TEXT_TOKENS = 250, 20_000, 2048
"""Limits of Vertex AI; a longer text is cut.

Source: https://cloud.google.com/vertex-ai/generative-ai/docs/embeddings/get-text-embeddings
"""
_MODEL = r"models/{model:[^/:]+}"
_VERTEX = r"/{version}/projects/{project}/locations/{location}/publishers/{publisher}/" + _MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsDialect(GeminiDialect):
    """One embedding method on one model."""

    separations: Mapping[str, Separation] = field(default_factory=dict)

    def read(self, request: web.Request, body: bytes) -> ModelCall:
        """Reads and checks a request; raises `RefusedError` when the service would refuse it."""
        self.authenticate(request)
        return self.parse(body)

    def check_model(self) -> None:
        """Checks that the model is served; raises `RefusedError`."""
        if not ("embedding" in self.model if self.any_model else is_gemini(self.model, embeds=True)):
            raise RefusedError(google_error(404, self.not_found()))

    def parse(self, body: bytes) -> ModelCall:
        """Reads and checks a body; raises `RefusedError` when the service would refuse it."""
        self.check_model()
        try:
            texts, dimensions = self._texts(read_object(body))
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise RefusedError(google_error(400, f"Invalid JSON payload received. {error}")) from error
        if not all(texts):
            raise RefusedError(google_error(400, "The text content is empty."))
        prompt = "\n".join(texts)
        return ModelCall(
            model=self.model,
            prompt=prompt,
            system="",
            input_tokens=sum(map(_tokens, texts)),
            prompt_sha256=prompt_sha256(prompt),
            texts=texts,
            dimensions=dimensions,
        )

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""
        embedded = vectors(call.texts, self.separations, model=call.model, dimensions=call.dimensions)
        match self.method:
            case "gemini.batchEmbedContents":
                return json_reply({"embeddings": [{"values": values} for values in embedded]})
            case "gemini.embedContent":
                body = {"embedding": {"values": embedded[0]}, "truncated": _is_cut(call.texts[0])}
                return json_reply({**body, "usageMetadata": {"promptTokenCount": call.input_tokens}})
        predictions = [
            {"embeddings": {"values": values, "statistics": _statistics(text)}}
            for text, values in zip(call.texts, embedded, strict=True)
        ]
        characters = sum(len("".join(text.split())) for text in call.texts)
        return json_reply({"predictions": predictions, "metadata": {"billableCharacterCount": characters}})

    def _texts(self, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], int | None]:
        match self.method:
            case "gemini.batchEmbedContents":
                return self._batch(fields["requests"])
            case "gemini.embedContent":
                return (_text(fields["content"]),), (fields.get("embedContentConfig") or {}).get(
                    "outputDimensionality"
                )
        return self._instances(fields)

    def _batch(self, requests: list[Mapping[str, Any]]) -> tuple[tuple[str, ...], int | None]:
        if len(requests) > MAX_BATCH:
            message = "* BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch\n"
            raise RefusedError(google_error(400, message))
        if any(item["model"] != f"models/{self.model}" for item in requests):
            raise RefusedError(google_error(400, "The model of each request must be that of the batch."))
        (dimensions,) = {item.get("outputDimensionality") for item in requests}
        return tuple(_text(item["content"]) for item in requests), dimensions

    def _instances(self, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], int | None]:
        texts = tuple(instance["content"] for instance in fields["instances"])
        limit = 1 if self.model == "gemini-embedding-001" else MAX_INSTANCES
        if len(texts) > limit:
            message = f"{limit} instance(s) is allowed per prediction. Actual: {len(texts)}"
            raise RefusedError(google_error(400, message))
        if (tokens := sum(map(count_tokens, texts))) > MAX_REQUEST_TOKENS:
            message = (
                f"Unable to submit request because the input token count is {tokens} but model only supports "
                f"up to {MAX_REQUEST_TOKENS}. Reduce the input token count and try again."
            )
            raise RefusedError(google_error(400, message))
        return texts, (fields.get("parameters") or {}).get("outputDimensionality")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDialect(EmbeddingsDialect):
    """A row of batch inference of the Developer API: one `EmbedContentRequest`."""

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the response of the row."""
        values = vector(call.texts[0], model=call.model, dimensions=call.dimensions)
        return json_reply({"embedding": {"values": values}, "tokenCount": call.input_tokens})

    def _texts(self, fields: Mapping[str, Any]) -> tuple[tuple[str, ...], int | None]:
        # The announcement of these batches writes the names of Python.
        dimensions = fields.get("outputDimensionality", fields.get("output_dimensionality"))
        return (_text(fields["content"]),), dimensions


def routes(server: ModelServer) -> list[web.RouteDef]:
    """Returns the routes of the embeddings."""

    def served(path: str, method: Method) -> web.RouteDef:
        async def serve(request: web.Request) -> web.StreamResponse:
            found = request.match_info
            is_vertex = "project" in found
            dialect = EmbeddingsDialect(
                method=method,
                model=found["model"],
                version=found["version"],
                publisher=f"publishers/{found['publisher']}" if is_vertex else "",
                project=f"projects/{found['project']}/locations/{found['location']}/" if is_vertex else "",
                is_sse=False,
                input_token_limit=server.settings.input_token_limit,
                any_model=server.settings.any_model,
                separations=server.settings.separations,
            )
            return await server.serve(request, dialect)

        return web.post(path, serve)

    return [
        served(f"/{{version}}/{_MODEL}:batchEmbedContents", "gemini.batchEmbedContents"),
        served(f"{_VERTEX}:embedContent", "gemini.embedContent"),
        served(f"{_VERTEX}:predict", "gemini.predict"),
    ]


def _text(content: Mapping[str, Any]) -> str:
    return "\n".join(part["text"] for part in content["parts"])


def _is_cut(text: str) -> bool:
    return count_tokens(text) > MAX_TEXT_TOKENS


def _tokens(text: str) -> int:
    return min(MAX_TEXT_TOKENS, count_tokens(text))


def _statistics(text: str) -> dict[str, Any]:
    return {"token_count": _tokens(text), "truncated": _is_cut(text)}
