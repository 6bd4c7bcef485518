"""Mistakes in `model`, `generation` and `embedding`."""

from __future__ import annotations

from tests.mistakes.mistake import LEFT_OUT, Mistake

MISTAKES = (
    Mistake(changes={"model": LEFT_OUT}, sentence="`model`: this field is needed. Nothing was sent or billed."),
    Mistake(
        changes={"model": 5},
        sentence="`model`: must be an object with named fields; got 5. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"model.type": "gpt"},
        sentence=(
            "`model.type`: must be one of 'gemini', 'openai', 'anthropic', 'vertex_endpoint', 'echo', "
            "'distilled'; got 'gpt'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model.name": ""}, sentence="`model.name`: must not be empty; got ''. Nothing was sent or billed."
    ),
    Mistake(
        changes={"model.modle": "gemini"},
        sentence=(
            "`model.modle`: there is no such field; expected one of `base_url`, `headers`, `labels`, "
            "`location`, `name`, `project`, `type`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model.api_key": "sk-1234567890"},
        sentence=(
            "`model.api_key`: there is no such field; expected one of `base_url`, `headers`, `labels`, "
            "`location`, `name`, `project`, `type`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model.base_url": "localhost:8000"},
        sentence=(
            "`model.base_url`: must start with http:// or https://; got 'localhost:8000'. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"model.base_url": "http://server/v1?key=abc"},
        sentence=(
            "`model.base_url`: must not hold a query or a fragment, as it is written to logs and "
            "reports: a key belongs in the password of the connection, a parameter in `query`; got "
            "'…'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": {"type": "openai", "name": "m", "api_key_env": "sk-proj-abcdefghijklmnop"}},
        sentence=(
            "`model.api_key_env`: must be the name of an environment variable, not the secret "
            "that it holds; got '…'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": {"type": "vertex_endpoint", "name": "m", "endpoint": "my-endpoint"}},
        sentence=(
            "`model.endpoint`: must be an endpoint, 'projects/…/locations/…/endpoints/…'; got "
            "'my-endpoint'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "model": {
                "type": "vertex_endpoint",
                "name": "projects/p/locations/us-central1/models/m@champion",
                "endpoint": "projects/p/locations/us-central1/endpoints/1",
            }
        },
        sentence=(
            "`model.name`: must have the number of a version (`ResolveModelOperator` finds it): an alias can move "
            "to a version with other answers; got 'projects/p/locations/us-central1/models/m@champion'. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": {"type": "distilled", "fit": "gs://bucket/state/cascades/"}},
        sentence=(
            "`model.fit`: must be the address of a fit, '…/cascades/DIGEST.json', as the report has it; got "
            "'gs://bucket/state/cascades/'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"generation": {"temperature": 3}},
        sentence=("`generation.temperature`: must be less than or equal to 2; got 3. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"generation": {"temperature": "hot"}},
        sentence="`generation.temperature`: must be a number; got 'hot'. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"generation": {"max_output_tokens": 0}},
        sentence=(
            "`generation.max_output_tokens`: must be greater than or equal to 1; got 0. Nothing "
            "was sent or billed."
        ),
    ),
    Mistake(
        changes={"generation": {"max_tokens": 100}},
        sentence=(
            "`generation.max_tokens`: there is no such field; did you mean `max_output_tokens`? "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "model": {"type": "openai", "name": "gemma-3-4b-it", "base_url": "{server}"},
            "generation": {"extra_body": {"model": "gemma-3-12b-it"}},
        },
        sentence=(
            "`generation.extra_body`: must not have 'model', which other fields of the job decide; got "
            "{'model': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"generation": {"strip_reasoning": "<think>"}},
        sentence="`generation.strip_reasoning`: must be true or false; got '<think>'. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"generation": {"keep_reasoning": "reasoning"}},
        sentence=(
            "`generation.keep_reasoning`: must be true or false; got 'reasoning'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"generation": {"keep_reasoning": True}, "sink.passthrough": ["llmbeam_reasoning"]},
        sentence=(
            "`sink.passthrough`: has column 'llmbeam_reasoning', and every output row has a column of that "
            "name: use another. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "model": {
                "type": "openai",
                "name": "gemma-3-4b-it",
                "base_url": "{server}",
                "max_tokens_field": "max_new_tokens",
            }
        },
        sentence=(
            "`model.max_tokens_field`: must be 'max_tokens' or 'max_completion_tokens' (did you mean "
            "'max_tokens'?); got 'max_new_tokens'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"temperature": 0.5},
        sentence=(
            "`temperature`: there is no such field; it belongs in `generation`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"embedding": {"dimensions": 0}},
        sentence=(
            "`embedding.dimensions`: must be greater than or equal to 1; got 0. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": "gpt-4o"},
        sentence=(
            "`model`: is not a name of Gemini, so its server is not known: write "
            "{'type': 'openai', 'name': …, 'base_url': …}, or {'type': 'gemini' or 'anthropic', "
            "'name': …}; got 'gpt-4o'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": "{'type': 'gemini', 'name': <Model>}"},
        sentence=(
            "`model`: is not a name of Gemini, so its server is not known: write "
            "{'type': 'openai', 'name': …, 'base_url': …}, or {'type': 'gemini' or 'anthropic', "
            "'name': …}; got \"{'type': 'gemini', 'name': <Model>}\". Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model.temperature": 0},
        sentence=(
            "`model.temperature`: there is no such field; it belongs in `generation`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"generation": {"maxOutputTokens": 9}},
        sentence=(
            "`generation.maxOutputTokens`: there is no such field; did you mean "
            "`max_output_tokens`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"generation": [1]},
        sentence=("`generation`: must be an object with named fields; got [1]. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"embedding": {}},
        sentence="`task`: must be 'embed' with `embedding`; got 'generate'. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"task": "embed"},
        sentence=(
            "`model.name`: must be an embedding model to embed, e.g. 'gemini-embedding-001'; this "
            "one generates texts; got 'gemini-3.5-flash-lite'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"task": "embed", "generation": {"temperature": 1}},
        sentence=(
            "`task`: 'embed' takes no `generation.temperature`: only the text of "
            "`prompt.template` is embedded. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": {"type": "openai", "name": "m", "api_key": "sk-topsecret"}},
        sentence=(
            "`model.api_key`: there is no such field; did you mean `api_key_env`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"model": {"type": "anthropic", "name": "claude-haiku-5-5"}, "generation": {"temperature": 0.0}},
        sentence=(
            "`generation.temperature`: must be left out: Anthropic does not take it; got 0.0. Nothing was sent or "
            "billed."
        ),
    ),
)
