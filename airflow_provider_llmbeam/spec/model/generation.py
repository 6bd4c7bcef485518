"""Parameters of the answers of models. `parameters` has which server takes which of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from airflow_provider_llmbeam.spec.base import SpecModel
from airflow_provider_llmbeam.spec.fields.names import EmbeddingTask, ModelArmorTemplate

#: Categories and thresholds of Gemini's filters. Source: ai.google.dev/api/generate-content (2026-11)
HarmCategory = Literal[
    "HARM_CATEGORY_HARASSMENT",
    "HARM_CATEGORY_HATE_SPEECH",
    "HARM_CATEGORY_SEXUALLY_EXPLICIT",
    "HARM_CATEGORY_DANGEROUS_CONTENT",
    "HARM_CATEGORY_CIVIC_INTEGRITY",
    "HARM_CATEGORY_JAILBREAK",
]
HarmThreshold = Literal["BLOCK_LOW_AND_ABOVE", "BLOCK_MEDIUM_AND_ABOVE", "BLOCK_ONLY_HIGH", "BLOCK_NONE", "OFF"]
#: Parameters that exclude each other at the server.
_EXCLUSIVE = (
    # 400, ai.google.dev/gemini-api/docs/gemini-3
    ("thinking_level", "thinking_budget_tokens"),
    # google-genai 2.34, `types.GenerateContentConfig.model_armor_config`
    ("model_armor", "safety_settings"),
    # Chunks are read for their text alone.
    ("stream", "google_search"),
    ("stream", "logprobs"),
)
_NOT_DECISIVE = {"stream", "stream_idle_timeout_seconds", "keep_reasoning"}


def _is_set(value: Any) -> bool:
    return value is not None and value is not False and value != {}


def _one_restriction(given: dict[str, Any]) -> dict[str, Any]:
    if len(given) != 1 or any(isinstance(value, str) != (name != "choice") for name, value in given.items()):
        raise ValueError(
            "must have one of `choice`, a list of texts, `regex`, a text, and `grammar`, a text, e.g. "
            "{'choice': ['positive', 'negative']}"
        )
    return given


StructuredOutputs = Annotated[
    dict[Literal["choice", "regex", "grammar"], str | Annotated[tuple[str, ...], Field(min_length=1)]],
    AfterValidator(_one_restriction),
]


def _no_own_field(given: dict[str, Any]) -> dict[str, Any]:
    if own := sorted({"model", "messages", "stream", "response_format"} & given.keys()):
        raise ValueError(f"must not have {own[0]!r}, which other fields of the job decide")
    return given


ExtraBody = Annotated[dict[str, Any], AfterValidator(_no_own_field)]


class Generation(SpecModel):
    """Parameters of text generation. `None` leaves the choice to the server.

    Attributes:
        max_output_tokens: Maximum length of the answer, in tokens; on thinking models thoughts are included.
        temperature: Sampling temperature; 0 is the most repeatable. Google advises to leave it unset for Gemini 3,
            which may repeat itself without end below 1.
        top_p: Probability mass of nucleus sampling.
        top_k: Number of the most probable tokens among which each is drawn; not at OpenAI itself.
        seed: Seed of the sampling, for servers that support it: a signed integer of 32 bits for Gemini, of 64 bits
            for others.
        stop_sequences: Texts that end the answer: at most 5 for Gemini, 4 for OpenAI.
        thinking_budget_tokens: Maximum number of tokens for thoughts, for Gemini 2.5 and Claude. 0 turns thinking
            off, on Flash models of Gemini, -1 lets the model decide. Other servers ignore it.
        thinking_level: How long Gemini 3 thinks. `minimal` and `medium` are for Flash models.
        reasoning_effort: How long models of OpenAI, and those of servers with the same field, think; the effort of
            Claude, from `low` to `max`.
        media_resolution: Resolution at which Gemini reads images, video and documents, and thus their tokens.
        safety_settings: What Gemini's filters block, by category, e.g.
            `{"HARM_CATEGORY_DANGEROUS_CONTENT": "BLOCK_ONLY_HIGH"}`. A blocked row fails with the kind `blocked`.
        model_armor: Templates of Model Armor that Vertex AI applies to `prompt` and `response`, instead of
            `safety_settings`: `{"prompt": "projects/…/locations/…/templates/…"}`.
        google_search: Whether Gemini may search the web. The column `llmbeam_citations` then has the pages that it
            used. Searches are billed besides the tokens, and `cost_usd` does not include them.
        logprobs: Whether the column `llmbeam_mean_logprob` has the mean natural logarithm of the probabilities of
            the answer's tokens: a measure of how sure the model was. `minimum` and `label` keep another one, too,
            for a stage of a cascade: see `LogprobScore`.
        structured_outputs: What vLLM restricts the answer to: one of a `choice`, a `regex` or a `grammar`. An
            answer that is not one of a `choice` is invalid.
        extra_body: Further fields of the body of a request, for servers with the OpenAI API, e.g.
            `{"min_p": 0.1}`; a field that is `None` is left out of it.
        strip_reasoning: Whether a block of reasoning before an answer, `<think>…</think>`, is left out of it.
        keep_reasoning: Whether the column `llmbeam_reasoning` has what the model wrote before its answer: such a
            block, and reasoning that the server sends apart. Gemini is asked for summaries of its thoughts. It is
            no part of the answer, so that answers of earlier runs, which have none, are not requested again.
        stream: Whether the answer is streamed: the time to its first token is recorded, and a stalled answer fails
            before `limits.request_timeout_seconds`. The text is the same.
        stream_idle_timeout_seconds: Maximum time between two chunks of a streamed answer, in seconds.
    """

    max_output_tokens: Annotated[int, Field(ge=1)] = 1024
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop_sequences: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    thinking_budget_tokens: Annotated[int, Field(ge=-1)] | None = None
    thinking_level: Literal["minimal", "low", "medium", "high"] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    media_resolution: Literal["low", "medium", "high"] | None = None
    safety_settings: dict[HarmCategory, HarmThreshold] = Field(default_factory=dict)
    model_armor: dict[Literal["prompt", "response"], ModelArmorTemplate] = Field(default_factory=dict)
    google_search: bool = False
    logprobs: bool | Literal["minimum", "label"] = False
    structured_outputs: StructuredOutputs | None = None
    extra_body: ExtraBody = Field(default_factory=dict)
    strip_reasoning: bool = True
    keep_reasoning: bool = False
    stream: bool = False
    stream_idle_timeout_seconds: Annotated[float, Field(gt=0)] = 30.0

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        for one, other in _EXCLUSIVE:
            if _is_set(getattr(self, one)) and _is_set(getattr(self, other)):
                raise ValueError(
                    f"has both `{one}` and `{other}`, which exclude each other: leave one of them out"
                )
        return self

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """What an output row has only with these parameters; in a sink with `llmbeam_` before the name."""
        columns = {
            "citations": self.google_search,
            "mean_logprob": bool(self.logprobs),
            "reasoning": self.keep_reasoning,
        }
        return tuple(name for name, is_wanted in columns.items() if is_wanted)

    @property
    def choices(self) -> tuple[str, ...]:
        """The only valid answers; empty for any."""
        return tuple((self.structured_outputs or {}).get("choice", ()))

    def decisive(self) -> dict[str, Any]:
        """Returns the parameters that decide an answer, as plain data for a fingerprint.

        Those that are not set are no part of it, so that a later version with more parameters finds the answers of
        this one.
        """
        given = self.model_dump(mode="json", exclude=_NOT_DECISIVE | {"strip_reasoning"})
        kept = {} if self.strip_reasoning else {"strip_reasoning": False}
        return kept | {name: value for name, value in given.items() if _is_set(value)}


class Embedding(SpecModel):
    """Parameters of the vectors of an embedding job. `None` leaves the choice to the server.

    Attributes:
        dimensions: Length of each vector, for models that support several lengths. A vector of another length is
            a failure.
        task_type: Purpose of the vectors, for Gemini, e.g. `RETRIEVAL_DOCUMENT` or `RETRIEVAL_QUERY`.
    """

    dimensions: Annotated[int, Field(ge=1)] | None = None
    task_type: EmbeddingTask | None = None
