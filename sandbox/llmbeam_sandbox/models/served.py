"""The APIs of deployed models' containers: chat completions as of vLLM, plain prompts, lists of prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from llmbeam_sandbox.core.responses import Reply, google_error, json_reply
from llmbeam_sandbox.models.answers import Answer, count_tokens, prompt_sha256
from llmbeam_sandbox.models.calls import ModelCall, RefusedError
from llmbeam_sandbox.models.openai import CREATED, OpenAIDialect, chat_call, openai_error
from llmbeam_sandbox.models.quota import Rejection
from llmbeam_sandbox.models.quota_errors import quota_exceeded

DEFAULT_MAX_TOKENS = 16
"""Length of an answer to a plain prompt without a limit. Source: vLLM, `SamplingParams.max_tokens`."""
CHAT_FORMAT = "chatCompletions"
Admit = Callable[[web.Request], None]


@dataclass(frozen=True, kw_only=True)
class ServedDialect(OpenAIDialect):
    """Chat completions of one deployed model.

    Attributes:
        name: Name of the model.
        admit: Raises `RefusedError` for a request that does not reach the container.
        is_named: Whether the container accepts only its own model's name; Vertex AI replaces the name.
    """

    name: str
    admit: Admit
    is_named: bool = False

    @property
    def listed(self) -> tuple[str, ...]:
        """Names of the listed models."""
        return (self.name,)

    def authenticate(self, request: web.Request) -> None:
        """Applies the checks before the container; raises `RefusedError`."""
        self.admit(request)

    def call(self, fields: Mapping[str, Any]) -> ModelCall:
        """Reads the fields of a request; raises `RefusedError` when the service would refuse it."""
        return chat_call(self.named(fields))

    def named(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the fields with the model's name in them.

        Raises:
            RefusedError: They name another model, which the container does not accept.
        """
        requested = fields.get("model")
        if self.is_named and requested != self.name:
            # Source of the wording: vLLM, `create_error_response` of its OpenAI server.
            message = f"The model `{requested}` does not exist."
            raise RefusedError(openai_error(404, message, kind="NotFoundError"))
        return {**fields, "model": self.name}


@dataclass(frozen=True, kw_only=True)
class VertexChatDialect(ServedDialect):
    """Chat completions behind Vertex AI, which has other error messages."""

    def error(self, http_status: int, message: str) -> Reply:
        """Returns the reply with an error; an empty message gives the service's usual one."""
        return google_error(http_status, message)

    def quota_exceeded(self, call: ModelCall, rejection: Rejection | None, delay: float | None) -> Reply:
        """Returns a 429."""
        return quota_exceeded(model=call.model, is_vertex=True, rejection=rejection, delay_seconds=delay)


@dataclass(frozen=True, kw_only=True)
class PredictDialect(VertexChatDialect):
    """Instances and predictions of Vertex AI's vLLM containers, and raw bodies.

    Attributes:
        added: Fields that Vertex AI adds to the container's answer; {} for raw predictions.
        is_shared: Whether the answer passes through the region's API, where predictions are always a list.
    """

    added: Mapping[str, str]
    is_shared: bool = False

    def call(self, fields: Mapping[str, Any]) -> ModelCall:
        """Reads the fields of a request; raises `RefusedError` when the service would refuse it."""
        if "messages" in fields and not self.added:
            return super().call(fields)
        instances = fields.get("instances", [fields] if "prompt" in fields and not self.added else None)
        if not isinstance(instances, list) or not instances:
            raise RefusedError(google_error(400, "Invalid request: `instances` must be a list of at least one."))
        formats = {instance.get("@requestFormat") for instance in instances}
        if formats == {CHAT_FORMAT}:
            if len(instances) > 1:
                raise RefusedError(
                    google_error(
                        400, f"Only one instance of the format {CHAT_FORMAT} is answered; got {len(instances)}."
                    )
                )
            return super().call({**instances[0], "stream": False})
        parts = tuple(plain_call(self.name, instance) for instance in instances)
        return combined(self.name, parts)

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer: a list, but one object for a chat."""
        if not call.parts:
            reply = super().answer(call, answer, answer_id)
            if not self.added:
                return reply
            chat = json.loads(reply.body)
            return json_reply({"predictions": [chat] if self.is_shared else chat, **self.added})
        predictions = [_prediction(part, one) for part, one in zip(call.parts, answer.parts, strict=True)]
        return json_reply({"predictions": predictions, **self.added})


@dataclass(frozen=True, kw_only=True)
class CompletionsDialect(ServedDialect):
    """Completions of plain prompts, as of vLLM's server."""

    def call(self, fields: Mapping[str, Any]) -> ModelCall:
        """Reads the fields of a request; raises `RefusedError` when the service would refuse it."""
        fields = self.named(fields)
        prompts = fields.get("prompt") or []
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if not prompts or fields.get("stream"):
            raise RefusedError(openai_error(400, "The sandbox needs `prompt`, and does not stream completions."))
        return combined(self.name, tuple(plain_call(self.name, {**fields, "prompt": text}) for text in prompts))

    def answer(self, call: ModelCall, answer: Answer, answer_id: str) -> Reply:
        """Returns the reply with an answer."""
        choices = [
            {
                "index": index,
                "text": one.text,
                "logprobs": None,
                "finish_reason": "length" if one.is_cut else "stop",
            }
            for index, one in enumerate(answer.parts)
        ]
        usage = {
            "prompt_tokens": call.input_tokens,
            "completion_tokens": answer.output_tokens,
            "total_tokens": call.input_tokens + answer.output_tokens,
        }
        body = {"id": f"cmpl-{answer_id}", "object": "text_completion", "created": CREATED, "model": call.model}
        return json_reply({**body, "choices": choices, "usage": usage})


def plain_call(model: str, fields: Mapping[str, Any]) -> ModelCall:
    """Reads one plain prompt.

    Raises:
        RefusedError: There is no prompt, or its limit is below 1.
    """
    prompt, limit = fields.get("prompt"), int(fields.get("max_tokens", DEFAULT_MAX_TOKENS))
    if not isinstance(prompt, str) or not prompt or limit < 1:
        raise RefusedError(
            google_error(400, "Each instance needs a `prompt`, and `max_tokens` >= 1 when it has some.")
        )
    return ModelCall(
        model=model,
        prompt=prompt,
        system="",
        input_tokens=count_tokens(prompt),
        prompt_sha256=prompt_sha256(prompt),
        max_output_tokens=limit,
        is_raw=bool(fields.get("raw_response")),
    )


def combined(model: str, parts: Sequence[ModelCall]) -> ModelCall:
    """Returns the call that consists of several."""
    prompt = "\n".join(part.prompt for part in parts)
    return ModelCall(
        model=model,
        prompt=prompt,
        system="",
        input_tokens=sum(part.input_tokens for part in parts),
        prompt_sha256=prompt_sha256(prompt),
        parts=tuple(parts),
    )


def _prediction(call: ModelCall, answer: Answer) -> str:
    """Returns a prediction, which repeats the prompt unless `raw_response` is set.

    Source: the containers' output in notebooks of github.com/GoogleCloudPlatform/vertex-ai-samples.
    """
    return answer.text if call.is_raw else f"Prompt:\n{call.prompt.strip()}\nOutput:\n{answer.text}"
