"""Which parameters of an answer a server takes. Pure.

Each model has its rules as `parameters`. `sent` is in every request; `refused` is an error when the Dag is parsed;
`ignored` is a warning in the log of the run. docs/parameters.md has the table of all.

Sources (2026-11): google-genai 2.34 (`types.GenerateContentConfig` and its fields "not supported in Gemini API"),
ai.google.dev/gemini-api/docs/thinking, platform.openai.com/docs/api-reference/chat, docs.vllm.ai ("Structured
Outputs"), anthropic 2.14 (`types.MessageCreateParams`: from version 2026-10-21 of the API on without the
parameters of sampling; `types.ThinkingConfigEnabledParam`, `types.OutputConfigParam`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_llmbeam.spec.model.generation import Generation

Use = Literal["sent", "refused", "ignored"]

SAMPLING = frozenset({"temperature", "top_p", "top_k", "seed"})
STREAM = frozenset({"stream", "stream_idle_timeout_seconds"})
#: Those that every server takes, or that need none.
_EVERYWHERE = frozenset({"max_output_tokens", "stop_sequences", "strip_reasoning", "keep_reasoning"})

USE_EFFORT = {"thinking_level": "use `generation.reasoning_effort`"}
USE_SCHEMA = {"structured_outputs": "use `prompt.output_schema`"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRules:
    """The parameters of `Generation` that one server takes.

    Attributes:
        server: Name of the server, for messages.
        sent: Those that are sent, besides what every server takes.
        ignored: Those that change nothing where they are not sent; the others are refused.
        instead: What to do instead, by the refused parameter.
        max_seed: Largest seed; `None` for the bound of `Generation`.
        max_stop_sequences: Largest number of stop sequences; no server documents how long one may be.
        efforts: Values of `reasoning_effort`; empty if the server decides.
        min_thinking_tokens: Smallest `thinking_budget_tokens` above 0, which `max_output_tokens` then includes.
    """

    server: str
    sent: frozenset[str]
    ignored: frozenset[str] = frozenset({"thinking_budget_tokens", "stream_idle_timeout_seconds"})
    instead: Mapping[str, str] = field(default_factory=dict)
    max_seed: int | None = None
    max_stop_sequences: int | None = None
    efforts: tuple[str, ...] = ()
    min_thinking_tokens: int | None = None

    def use_of(self, parameter: str) -> Use:
        """Returns what becomes of a parameter of `Generation` that is set."""
        if parameter in self.sent:
            return "sent"
        if parameter in self.ignored:
            return "ignored"
        return "sent" if parameter in _EVERYWHERE else "refused"

    def find_ignored(self, generation: Generation) -> list[str]:
        """Returns the names of the given parameters that the server does not use."""
        return [name for name in given(generation) if self.use_of(name) == "ignored"]

    def find_fault(self, parameter: str, generation: Generation) -> str | None:
        """Returns why the server refuses a given parameter, as the second half of a sentence, or `None`."""
        use, value = self.use_of(parameter), getattr(generation, parameter)
        if use == "refused":
            instead = f"; {self.instead[parameter]}" if parameter in self.instead else ""
            return f"must be left out: {self.server} does not take it{instead}"
        match parameter:
            case "seed" if (most := self.max_seed) is not None and not -most - 1 <= value <= most:
                return f"must be from {-most - 1} to {most}: {self.server} takes an integer of 32 bits"
            case "stop_sequences" if (most := self.max_stop_sequences) is not None and len(value) > most:
                return f"must have at most {most} texts: {self.server} takes no more"
            case "reasoning_effort" if self.efforts and value not in self.efforts:
                return f"must be one of {', '.join(map(repr, self.efforts))}: {self.server} takes no other"
            case "thinking_budget_tokens" if (least := self.min_thinking_tokens) is not None and value > 0:
                if not least <= value < generation.max_output_tokens:
                    return (
                        f"must be 0 (no thoughts), -1 (the model decides), or at least {least} and less than "
                        f"`generation.max_output_tokens` ({generation.max_output_tokens}), which includes the "
                        "thoughts"
                    )
        return None


def given(generation: Generation) -> list[str]:
    """Returns the names of the parameters that are not at their default."""
    usual = Generation()
    return [name for name, value in generation if value != getattr(usual, name)]
