"""Mistakes in `limits` and `batching`."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

MISTAKES = (
    Mistake(
        changes={"limits": 600},
        sentence="`limits`: must be an object with named fields; got 600. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"limits": {"requests_per_minute": 0}},
        sentence=("`limits.requests_per_minute`: must be greater than 0; got 0. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"limits": {"requests_per_minute": "600/min"}},
        sentence=("`limits.requests_per_minute`: must be a number; got '600/min'. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"limits": {"rpm": 600}},
        sentence=(
            "`limits.rpm`: there is no such field; did you mean `requests_per_minute`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"limits": {"usage_tier": 4}},
        sentence=(
            "`limits.usage_tier`: must be 1, 2 or 3, or the tokens per minute of a custom tier, at least 1000; "
            "got 4. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "model": {"type": "gemini", "name": "gemini-2.5-flash", "project": "p", "location": "us-central1"},
            "limits": {"usage_tier": 2},
        },
        sentence=(
            "`limits.usage_tier`: must be left out here: Vertex AI has thresholds for texts of Gemini models from "
            "2.0 on, in 'global' alone; got 2. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "model": {"type": "openai", "name": "m", "base_url": "{server}"},
            "inference": {"service_tier": "provisioned"},
        },
        sentence=(
            "`inference.service_tier`: must be another one here: Provisioned Throughput is for texts of Gemini "
            "models on Vertex AI; got 'provisioned'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"limits": {"max_in_flight": 0}},
        sentence=(
            "`limits.max_in_flight`: must be greater than or equal to 1; got 0. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"limits": {"max_outage_seconds": 0}},
        sentence="`limits.max_outage_seconds`: must be greater than 0; got 0. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"limits": {"max_attempts": 0}},
        sentence=("`limits.max_attempts`: must be greater than or equal to 1; got 0. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"limits": {"request_timeout_seconds": 0}},
        sentence=("`limits.request_timeout_seconds`: must be greater than 0; got 0. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"limits": {"budget_usd": -1}},
        sentence="`limits.budget_usd`: must be greater than 0; got -1. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"limits": {"max_dead_letter_ratio": 5}},
        sentence=(
            "`limits.max_dead_letter_ratio`: must be less than or equal to 1; got 5. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "model": {"type": "openai", "name": "my-model", "base_url": "{server}"},
            "limits": {"budget_usd": 5},
        },
        sentence=(
            "`limits.price`: this field is needed with `limits.budget_usd`, as the price of "
            "openai model 'my-model' is not known, e.g. {'input_usd_per_million_tokens': 0.3, "
            "'output_usd_per_million_tokens': 2.5}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"limits.price": {"input_usd_per_million_tokens": 0.3}},
        sentence=(
            "`limits.price.output_usd_per_million_tokens`: this field is needed. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"batching": {"max_batch_size": 0}},
        sentence=(
            "`batching.max_batch_size`: must be greater than or equal to 1; got 0. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"batching": {"batch_size": 64}},
        sentence=(
            "`batching.batch_size`: there is no such field; did you mean `max_batch_size`? "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"limits": {"budget": 5}},
        sentence=(
            "`limits.budget`: must be like {'usd': 200, 'over': 'month'}, for many runs; `budget_usd` is that of "
            "one; got 5. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"limits": "None"},
        sentence=(
            "`limits`: must be an object with named fields, not text; if a template of the Dag "
            "made it, pass `task.output`, or set `render_template_as_native_obj=True`; got "
            "'None'. Nothing was sent or billed."
        ),
    ),
)
