"""Which server takes which parameters of an answer. Pure.

`sent` is in every request; `refused` is an error when the Dag is parsed; `ignored` is a warning in the log of the
run. docs/parameters.md has the same table.

Sources (2026-11): google-genai 2.34 (`types.GenerateContentConfig` and its fields "not supported in Gemini API"),
ai.google.dev/gemini-api/docs/thinking, platform.openai.com/docs/api-reference/chat, docs.vllm.ai ("Structured
Outputs"), anthropic 2.14 (`types.MessageCreateParams`: from version 2026-10-21 of the API on without the
parameters of sampling; `types.ThinkingConfigEnabledParam`, `types.OutputConfigParam`).
"""

from __future__ import annotations

import re
from typing import Literal

from airflow_provider_llmbeam.spec.model.generation import Generation
from airflow_provider_llmbeam.spec.model.model import (
    AnthropicModel,
    DistilledModel,
    EchoModel,
    GeminiModel,
    Model,
    OpenAIModel,
    VertexEndpointModel,
)

#: `chat` is a server with the OpenAI API other than OpenAI, `endpoint` one of Vertex AI with chat completions, and
#: `plain` one with `request_format` `instances` or `raw`.
ParameterColumn = Literal[
    "gemini_developer", "gemini_vertex", "openai", "anthropic", "chat", "endpoint", "plain", "echo"
]
Use = Literal["sent", "refused", "ignored"]

PARAMETER_COLUMNS: tuple[ParameterColumn, ...] = (
    "gemini_developer",
    "gemini_vertex",
    "openai",
    "anthropic",
    "chat",
    "endpoint",
    "plain",
    "echo",
)
_GEMINI: frozenset[ParameterColumn] = frozenset({"gemini_developer", "gemini_vertex"})
_CHAT: frozenset[ParameterColumn] = frozenset({"openai", "chat", "endpoint"})
_ANTHROPIC: frozenset[ParameterColumn] = frozenset({"anthropic"})
_SAMPLED = frozenset(PARAMETER_COLUMNS) - _ANTHROPIC
#: Servers to which a parameter is sent, for those that not all of them take.
_SENT_TO: dict[str, frozenset[ParameterColumn]] = {
    "temperature": _SAMPLED,
    "top_p": _SAMPLED,
    "top_k": _SAMPLED - {"openai"},
    "seed": _SAMPLED,
    "thinking_budget_tokens": _GEMINI | _ANTHROPIC,
    "thinking_level": _GEMINI,
    "reasoning_effort": _CHAT | _ANTHROPIC,
    "media_resolution": _GEMINI,
    "safety_settings": _GEMINI,
    "model_armor": frozenset({"gemini_vertex"}),
    "google_search": _GEMINI,
    "logprobs": _GEMINI | _CHAT,
    "structured_outputs": frozenset({"chat", "endpoint"}),
    "extra_body": _CHAT,
    "stream": _GEMINI | _CHAT | _ANTHROPIC,
    "stream_idle_timeout_seconds": _GEMINI | _CHAT | _ANTHROPIC,
}
#: Largest seed. Source: `GenerationConfig.seed` is an int32 in the Discovery document of aiplatform.v1.
_MAX_SEED: dict[ParameterColumn, int] = dict.fromkeys(_GEMINI, 2**31 - 1)
#: Largest number of stop sequences; no provider documents how long one may be. Sources: `GenerationConfig` in
#: ai.google.dev/api/generate-content and in Vertex AI's reference of inference; `stop` in openai 2.54,
#: `types.chat.CompletionCreateParams`. vLLM has no limit.
_MAX_STOP_SEQUENCES: dict[ParameterColumn, int] = {**dict.fromkeys(_GEMINI, 5), "openai": 4}
_IGNORED = {"thinking_budget_tokens", "stream_idle_timeout_seconds"}
_INSTEAD = {
    ("thinking_level", "openai"): "use `generation.reasoning_effort`",
    ("thinking_level", "anthropic"): "use `generation.reasoning_effort`",
    ("structured_outputs", "anthropic"): "use `prompt.output_schema`",
    ("thinking_level", "chat"): "use `generation.reasoning_effort`",
    ("thinking_level", "endpoint"): "use `generation.reasoning_effort`",
    ("reasoning_effort", "gemini_developer"): "use `generation.thinking_level`",
    ("reasoning_effort", "gemini_vertex"): "use `generation.thinking_level`",
    ("model_armor", "gemini_developer"): "set `model.project`, as Vertex AI has it",
    ("structured_outputs", "openai"): "use `prompt.output_schema`",
    ("structured_outputs", "gemini_developer"): "use `prompt.output_schema`",
    ("structured_outputs", "gemini_vertex"): "use `prompt.output_schema`",
}
_NAMES: dict[ParameterColumn, str] = {
    "gemini_developer": "the Gemini Developer API",
    "gemini_vertex": "Gemini on Vertex AI",
    "openai": "OpenAI",
    "anthropic": "Anthropic",
    "chat": "a server with the OpenAI API",
    "endpoint": "an endpoint of Vertex AI",
    "plain": "an endpoint with request format 'instances' or 'raw'",
    "echo": "the model 'echo'",
}
#: Smallest number of tokens for thoughts, and efforts, of Anthropic.
_MIN_THINKING_TOKENS = 1024
_ANTHROPIC_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_BEFORE_GEMINI_3 = re.compile(r"(.*/)?gemini-[12]\b")


def parameter_column(model: Model, *, has_project: bool = False) -> ParameterColumn:
    """Returns the column of the table of parameters (docs/parameters.md) that a model has.

    Args:
        model: The model.
        has_project: Whether an Airflow connection may provide the project of a Gemini model.
    """
    match model:
        case GeminiModel():
            return "gemini_vertex" if model.project or has_project else "gemini_developer"
        case OpenAIModel():
            return "openai" if model.is_openais else "chat"
        case AnthropicModel():
            return "anthropic"
        case VertexEndpointModel():
            return "endpoint" if model.request_format == "chat" else "plain"
        case EchoModel() | DistilledModel():
            return "echo"


def use_of(parameter: str, server: ParameterColumn) -> Use:
    """Returns what becomes of a parameter of `Generation` that is set."""
    if server == "echo":
        return "ignored"
    if parameter not in _SENT_TO or server in _SENT_TO[parameter]:
        return "sent"
    return "ignored" if parameter in _IGNORED else "refused"


def given(generation: Generation) -> list[str]:
    """Returns the names of the parameters that are not at their default."""
    usual = Generation()
    return [name for name, value in generation if value != getattr(usual, name)]


def refusal(parameter: str, generation: Generation, model: Model, server: ParameterColumn) -> str | None:
    """Returns why a server refuses a parameter, as the second half of a sentence; `None` if it does not."""
    if use_of(parameter, server) == "refused":
        instead = _INSTEAD.get((parameter, server))
        if server == "plain" and use_of(parameter, "endpoint") == "sent":
            instead = "set `model.request_format` to 'chat'"
        return f"must be left out: {_NAMES[server]} does not take it{'' if instead is None else f'; {instead}'}"
    if parameter == "thinking_level" and server in _GEMINI and _BEFORE_GEMINI_3.match(model.name):
        return (
            f"must be left out with {model.name!r}: models before Gemini 3 take `thinking_budget_tokens` instead"
        )
    if server == "anthropic" and (fault := _anthropic_fault(parameter, generation)):
        return fault
    most = _MAX_SEED.get(server)
    if parameter == "seed" and most is not None and not -most - 1 <= (generation.seed or 0) <= most:
        return f"must be from {-most - 1} to {most}: {_NAMES[server]} takes an integer of 32 bits"
    most = _MAX_STOP_SEQUENCES.get(server)
    if parameter == "stop_sequences" and most is not None and len(generation.stop_sequences) > most:
        return f"must have at most {most} texts: {_NAMES[server]} takes no more"
    return None


def _anthropic_fault(parameter: str, generation: Generation) -> str | None:
    budget, effort = generation.thinking_budget_tokens, generation.reasoning_effort
    if parameter == "reasoning_effort" and effort not in _ANTHROPIC_EFFORTS:
        return f"must be one of {', '.join(map(repr, _ANTHROPIC_EFFORTS))}: Anthropic takes no other"
    is_taken = budget in (None, 0, -1) or _MIN_THINKING_TOKENS <= (budget or 0) < generation.max_output_tokens
    if parameter == "thinking_budget_tokens" and not is_taken:
        return (
            f"must be 0 (no thoughts), -1 (the model decides), or at least {_MIN_THINKING_TOKENS} and less than "
            f"`generation.max_output_tokens` ({generation.max_output_tokens}), which includes the thoughts"
        )
    return None


def ignored(generation: Generation, model: Model) -> list[str]:
    """Returns the names of the given parameters that the server of a model does not use."""
    server = parameter_column(model)
    return [name for name in given(generation) if use_of(name, server) == "ignored"]


def combines_search_and_schema(model: Model) -> bool:
    """Returns whether a Gemini model answers by a schema after a search, which those before Gemini 3 refuse.

    Source: ai.google.dev/gemini-api/docs/structured-output, "Structured outputs with tools" (2026-11)
    """
    return _BEFORE_GEMINI_3.match(model.name) is None
