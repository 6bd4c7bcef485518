"""Mistakes in `cascade`."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_SMALL = {"type": "gemini", "name": "gemini-2.5-flash-lite", "base_url": "{server}"}
_SCHEMA = {"type": "object", "properties": {"mood": {"type": "string", "enum": ["good", "bad"]}}}


def _changes(**cascade: object) -> dict[str, object]:
    return {"state_uri": "state", "cascade": {"stages": [{"model": _SMALL}], **cascade}}


MISTAKES = (
    Mistake(
        changes={"cascade": {"stages": [{"model": _SMALL}]}},
        sentence=(
            "`state_uri`: this field is needed with `cascade`: the calibration is kept there for later runs; got "
            "None. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[]),
        sentence=(
            "`cascade.stages`: must have 1 to 4 stages; `model` is not one of them; got []. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes=_changes(target_agreement=0.98, sample_rows=200),
        sentence=(
            "`cascade.sample_rows`: must be at least 298: a smaller sample cannot certify `target_agreement` 0.98 "
            "with `confidence` 0.95, even without a disagreement; got 200. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(agreement={"mod": "exact"}), "prompt.output_schema": _SCHEMA},
        sentence=(
            "`cascade.agreement.mod`: `prompt.output_schema` has no field 'mod'; it has ['mood']. Nothing was "
            "sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[{"model": _SMALL, "score": "field"}]),
        sentence=(
            "`cascade.stages.0.score.field`: needs `prompt.output_schema`: the answers are texts without fields; "
            "got 'confidence'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[{"model": _SMALL, "score": "repeats", "generation": {"temperature": 0}}]),
        sentence=(
            "`cascade.stages.0.score`: must be 'logprob' or 'field' with `generation.temperature` 0: repeated "
            "answers are then equal, and say nothing; got 'repeats'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[{"model": {"type": "anthropic", "name": "claude-haiku-4-5"}}]),
        sentence=(
            "`cascade.stages.0.score`: must be 'repeats' or 'field': 'logprob' needs `generation.logprobs`, which "
            "must be left out: Anthropic does not take it; got 'logprob'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[{"model": {**_SMALL, "name": "gemini-3.5-flash-lite"}}]),
        sentence=(
            "`cascade.stages.0.model`: must differ from `model`, which it repeats; got 'gemini-3.5-flash-lite'. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[{"model": _SMALL, "limits": {"budget_usd": 5}}]),
        sentence=(
            "`cascade.stages.0.limits.budget_usd`: belongs into `limits` of the job: one budget is over all "
            "stages. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "conversation": {"key": "id"}},
        sentence=(
            "`conversation`: must be left out with `cascade`: the history of a turn would have answers of several "
            "models, and no sample has the same one. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "task": "embed", "model.name": "gemini-embedding-001"},
        sentence=(
            "`task`: must be 'generate' with `cascade`: whether two vectors agree is not defined; got 'embed'. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            **_changes(stages=[{"model": _SMALL, "score": {"type": "logprob", "of": "label"}}]),
            "prompt.output_schema": {"type": "object", "properties": {"reason": {"type": "string"}}},
        },
        sentence=(
            "`cascade.stages.0.score.of`: must be 'mean' or 'minimum': no field of `prompt.output_schema` has an "
            "`enum`; got 'label'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(stages=[{"model": _SMALL, "inference": "batch"}]),
        sentence=(
            "`cascade.stages.0.inference.mode`: must be left out: the requests to a stage are sent online, as the "
            "next one waits for its answers; got 'batch'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={**_changes(), "safety": {"moderation": {"model": {"type": "openai", "name": "llama-guard-3"}}}},
        sentence=(
            "`safety.moderation.on`: must be ['output'] with `cascade`: the sample is sent before a guard model "
            "judges prompts; got ['input', 'output']. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes=_changes(agreement={"type": "judge", "rubric": "{{ row.answer }}", "model": _SMALL}),
        sentence=(
            "`cascade.agreement.*.rubric`: must show the judge what it judges: it lacks `{{ row.expected }}`. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            **_changes(stages=[{"type": "distilled", "embedding": "tfidf"}]),
            "prompt.output_schema": {"type": "object", "properties": {"reason": {"type": "string"}}},
        },
        sentence=(
            "`cascade.stages.0.type`: must be left out: a classifier answers an enum, a boolean, an integer with "
            "`minimum` and `maximum`, or a list of these, and 'reason' is none of them; got 'distilled'. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={
            **_changes(stages=[{"type": "distilled", "embedding": {"model": "gemini-3.5-flash"}}]),
            "prompt.output_schema": _SCHEMA,
        },
        sentence=(
            "`cascade.stages.0.embedding.model.name`: must be an embedding model to embed, e.g. "
            "'gemini-embedding-001'; this one generates texts; got 'gemini-3.5-flash'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            **_changes(
                stages=[
                    {
                        "type": "distilled",
                        "embedding": {"type": "column", "column": "vector"},
                        "prompt": "{{ row.text }}",
                    }
                ]
            ),
            "prompt.output_schema": _SCHEMA,
        },
        sentence=(
            "`cascade.stages.0.prompt`: must be left out with vectors of a column, which need no text. Nothing "
            "was sent or billed."
        ),
    ),
)
