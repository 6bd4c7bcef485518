"""Models that are deployed to an endpoint of Vertex AI, with the three request formats of such endpoints.

The client of Google is not used: its REST transport wraps the body of `rawPredict` in base64 and returns an empty
one, and its `predict` hides a 429 (google-cloud-aiplatform 1.165).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_llmbeam.engine.backend import Backend, Reply
from airflow_provider_llmbeam.engine.plan import StaticBatching
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.retry import RequestError
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.providers.access import open_access
from airflow_provider_llmbeam.providers.http import (
    ANSWER_BYTES,
    FURTHER_ANSWER_BYTES,
    HttpBackend,
    HttpClient,
)
from airflow_provider_llmbeam.providers.openai.client import (
    BROKEN_OFF,
    FINISH_REASONS,
    ChatBackend,
    chat_parameters,
    refuse_broken_off,
    texts_of,
)
from airflow_provider_llmbeam.providers.openai.client import error_of as chat_error_of
from airflow_provider_llmbeam.providers.reported import (
    Billed,
    UsageReader,
    estimated_text,
    finish_reason_of,
    invalid_response,
    json_object,
)
from airflow_provider_llmbeam.spec.characters import valid_text
from airflow_provider_llmbeam.spec.model import Generation, VertexEndpointModel
from airflow_provider_llmbeam.spec.model.tier import AskedTier
from airflow_provider_llmbeam.transport.server_reply import list_of, mapping_of, str_of

_NO_ANSWER = "no answer"
#: Header of the replies of `rawPredict`. Source: Discovery document of aiplatform v1.
_DEPLOYED_MODEL_ID = "X-Vertex-AI-Deployed-Model-Id"
#: Maximum number of prompts per `predict`: vLLM computes them concurrently, and the shared address allows 60 s.
_MOST_INSTANCES = 32


def open_backend(
    model: VertexEndpointModel,
    generation: Generation,
    output_schema: Mapping[str, Any] | None,
    *,
    asked_tier: AskedTier = "standard",
) -> Backend:
    """Opens the client for the request format of the model; an endpoint has no tiers.

    Raises:
        JobSpecError: There are no Google credentials.
    """
    match model.request_format:
        case "chat":
            return VertexChat(model, generation, output_schema)
        case "instances":
            return VertexInstances(model, generation)
        case "raw":
            return VertexRaw(model, generation)


class VertexChat(ChatBackend):
    """Client of chat completions of the OpenAI API, by the method of the endpoint that takes them.

    `model` is left empty, as in the examples of Google: vLLM then uses the model that it serves.
    """

    def __init__(
        self, model: VertexEndpointModel, generation: Generation, output_schema: Mapping[str, Any] | None
    ) -> None:
        super().__init__(
            HttpClient(model.predict_url or model.address, open_access(model)),
            model.method_url(stream=generation.stream),
            model.name,
            generation,
            {"model": "", **chat_parameters(generation, output_schema)},
            partial(error_of, model),
        )
        self._model = model

    def _model_of(self, headers: Mapping[str, str]) -> str | None:
        return self._model.deployed_models.get(headers.get(_DEPLOYED_MODEL_ID, ""))


class _Predictions(HttpBackend):
    """Client of an endpoint that takes plain prompts."""

    def __init__(self, model: VertexEndpointModel, generation: Generation) -> None:
        super().__init__(HttpClient(model.predict_url or model.address, open_access(model)))
        self._model = model
        self._url = model.method_url()
        self._parameters = _plain_parameters(generation)
        self._max_bytes = model.max_request_bytes
        self._usage = UsageReader(model.name)
        self._error_of = partial(error_of, model)

    async def _send(
        self, body: Mapping[str, Any], max_bytes: int = ANSWER_BYTES
    ) -> tuple[dict[str, Any], bytes, str]:
        """Sends a request; returns the reply, its bytes, and the name of the model that answered."""
        data = _encoded(body)
        if len(data) > self._max_bytes:
            # The engine then sends a request of several prompts in halves.
            raise RequestError(
                "bad_request",
                f"a request of {len(data):,} bytes, and the endpoint takes at most {self._max_bytes:,}; "
                "nothing was sent",
            )
        async with self._http.post(self._url, data) as response:
            if response.status != 200:
                raise self._error_of(response.status, response.headers, await response.error_text())
            content = await response.read(max_bytes)
            found = json_object(content, _NO_ANSWER, self._error_of, response.headers)
            # `predict` names it in the body. Source: `PredictResponse` of google-cloud-aiplatform 1.165.
            own = response.headers.get(_DEPLOYED_MODEL_ID) or str_of(found.get("deployedModelId"))
            return found, content, self._model.deployed_models.get(own, self._model.name)


class VertexInstances(_Predictions):
    """Client of `predict`, with several prompts per request.

    Attributes:
        limits: Limits of one request.
    """

    def __init__(self, model: VertexEndpointModel, generation: Generation) -> None:
        super().__init__(model, generation)
        # Without it the vLLM of Model Garden prefixes each answer with "Prompt:" and the prompt.
        self._parameters["raw_response"] = True
        self.limits = StaticBatching(
            max_padded_tokens=2**31, max_instances=_MOST_INSTANCES, max_bytes=self._max_bytes
        )

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one prompt."""
        (reply,) = await self.complete_batch([prompt])
        return reply

    async def complete_batch(self, prompts: Sequence[Prompt]) -> list[Reply]:
        """Sends one request for all prompts."""
        texts = [_text_of(prompt) for prompt in prompts]
        body, content, model = await self._send(
            {"instances": [{"prompt": text, **self._parameters} for text in texts]},
            ANSWER_BYTES + (len(texts) - 1) * FURTHER_ANSWER_BYTES,
        )
        predictions = body.get("predictions")
        if not isinstance(predictions, list) or len(predictions) != len(prompts):
            # The answers cannot be assigned to prompts, so none is used.
            found = f"{len(predictions)} predictions" if isinstance(predictions, list) else "no predictions"
            raise invalid_response(content, f"{_NO_ANSWER}, with {found} for {len(prompts)} instances")
        return [
            _reply(prediction, text, model, self._usage, is_alone=len(prompts) == 1)
            for prediction, text in zip(predictions, texts, strict=True)
        ]


class VertexRaw(_Predictions):
    """Client of `rawPredict`, with one prompt per request and a body that the container receives unchanged."""

    async def complete(self, prompt: Prompt) -> Reply:
        """Sends one request."""
        text = _text_of(prompt)
        answer, content, model = await self._send({"prompt": text, **self._parameters})
        # vLLM of Model Garden answers `predictions`, vLLM's own `/generate` `text`, `/v1/completions` `choices`.
        found = answer.get("predictions", answer.get("text"))
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if isinstance(found, str) and "predictions" not in answer:
            found = found.removeprefix(text)  # `/generate` always repeats the prompt
        reply = _reply(answer if found is None else found, text, model, self._usage)
        if not reply.text and found is None and not answer.get("choices"):
            raise invalid_response(content, _NO_ANSWER)
        return reply


def _plain_parameters(generation: Generation) -> dict[str, Any]:
    given = {
        "max_tokens": generation.max_output_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "seed": generation.seed,
        "stop": list(generation.stop_sequences) or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _text_of(prompt: Prompt) -> str:
    return f"{prompt.system}\n\n{prompt.text}" if prompt.system else prompt.text


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Encodes without escapes, which take six bytes per letter, as the size is limited."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half an emoji
        return json.dumps(body).encode()


def _reply(prediction: Any, prompt: str, model: str, reader: UsageReader, *, is_alone: bool = True) -> Reply:
    """Parses one prediction; an invalid one becomes an empty text, as the others may be valid."""
    usage: Mapping[str, Any] = {}
    reason = "stop"
    text, reasoning = prediction if isinstance(prediction, str) else "", ""
    if isinstance(prediction, Mapping):
        usage = mapping_of(prediction.get("usage"))
        choices = list_of(prediction.get("choices"))
        choice = mapping_of(choices[0] if choices else prediction)
        reason = finish_reason_of(choice.get("finish_reason"))
        names = ("text", "content", "output", "generated_text")
        found = choice.get("message") or next((choice[name] for name in names if choice.get(name)), None)
        with contextlib.suppress(TypeError):
            text, reasoning = texts_of(found if isinstance(found, Mapping) else {"content": found})
    # The vLLM of Model Garden without `raw_response`.
    text = text.removeprefix(f"Prompt:\n{prompt.strip()}\nOutput:\n")
    input_tokens, of_input = reader.count(usage.get("prompt_tokens"), estimated_text(prompt))
    output_tokens, of_output = reader.count(usage.get("completion_tokens"), estimated_text(text + reasoning))
    billed = Billed(tokens=Tokens(input_tokens, output_tokens, estimated=of_input + of_output))
    # Of several prompts it fails all, which are paid for again: only for a server that shuts down.
    if is_alone or reason.lower() in BROKEN_OFF:
        refuse_broken_off(reason, billed)
    return Reply(
        text=valid_text(text),
        finish_reason=FINISH_REASONS.get(reason.lower(), reason),
        **billed,
        model=model,
        reasoning=valid_text(reasoning),
    )


def error_of(model: VertexEndpointModel, http_status: int, headers: Mapping[str, str], text: str) -> RequestError:
    """Parses an error response."""
    error = chat_error_of(http_status, headers, text)
    if (name := model.deployed_models.get(headers.get(_DEPLOYED_MODEL_ID, ""))) is not None:
        error.message = f"{error.message.rstrip('.')} (from {name})."
    if http_status == 400 and "through the shared Vertex AI domain" in text:
        # Every prompt would fail in the same way; as `not_found` it ends the job early.
        message = f"{error.message.rstrip('.')}. Set `base_url` to https:// and that name."
        return RequestError("not_found", message, http_status=http_status)
    if http_status in (404, 405, 501) or (http_status == 400 and _is_not_served(text)):
        return RequestError(
            "not_found",
            f"{error.message.rstrip('.')}. {model.endpoint} does not exist, or has no deployed model that accepts "
            f"`request_format` {model.request_format!r}{_tried(model)}; compare it with `gcloud ai endpoints "
            "list`.",
            http_status=http_status,
        )
    return error


def _tried(model: VertexEndpointModel) -> str:
    """Returns the method that a chat was sent to, and the other one that may take it."""
    if model.request_format != "chat" or model.predict_url is not None:
        return ""
    other = "raw_predict" if model.chat_route == "chat_completions" else "chat_completions"
    return f" at {model.method_url()} (`chat_route` {model.chat_route!r}; the other one is {other!r})"


def _is_not_served(text: str) -> bool:
    """Whether a 400 of Vertex AI reports an endpoint without a deployed model, or without this method."""
    return "traffic_split" in text or any(sign in text.lower() for sign in ("no deployed model", "not supported"))
