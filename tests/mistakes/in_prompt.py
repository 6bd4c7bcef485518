"""Mistakes in `prompt`."""

from __future__ import annotations

from tests.mistakes.mistake import LEFT_OUT, Mistake

MISTAKES = (
    Mistake(changes={"prompt": LEFT_OUT}, sentence="`prompt`: this field is needed. Nothing was sent or billed."),
    Mistake(
        changes={"prompt.template": ""},
        sentence="`prompt.template`: must not be empty; got ''. Nothing was sent or billed.",
    ),
    Mistake(
        changes={"prompt.template": "Which mood? {{ row.text"},
        sentence=(
            "`prompt.template`: is not a Jinja2 template (line 1: unexpected end of template, "
            "expected 'end of print statement'.); got 'Which mood? {{ row.text'. Nothing was sent "
            "or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "Which mood? {{ row.text | shout }}"},
        sentence=(
            "`prompt.template`: is not a Jinja2 template (line 1: No filter named 'shout'.); got "
            "'Which mood? {{ row.text | shout }}'. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "Which mood? {row.text}"},
        sentence=(
            "`prompt.template`: '{row.text}' would be sent as it is; did you mean `{{ row.text "
            "}}`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "Which mood? {{ text }}"},
        sentence=(
            "`prompt.template`: has no `text`; did you mean `{{ row.text }}`, or `{{ "
            "variables.text }}`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "Which mood had {{ row.text }} on {{ ds }}?"},
        sentence=(
            "`prompt.template`: has no `ds`, as Airflow does not render it: put {'ds': '{{ ds "
            "}}'} into `prompt.variables` and write `{{ variables.ds }}`. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "{{ params.question }} {{ row.text }}"},
        sentence=(
            "`prompt.template`: has no `params`, as Airflow does not render it: put {'question': "
            "'{{ params.question }}'} into `prompt.variables` and write `{{ variables.question "
            "}}`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "{% include 'question.txt' %}"},
        sentence=(
            "`prompt.template`: uses no column of `row`, so every row would have the same prompt: "
            "write e.g. `{{ row.text }}`, or set `prompt.is_constant` if that is intended. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.tmplate": "x"},
        sentence=(
            "`prompt.tmplate`: there is no such field; did you mean `template`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.output_schema": []},
        sentence=(
            "`prompt.output_schema`: must be an object with named fields; got []. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.output_schema": {"mood": "string"}},
        sentence=(
            "`prompt.output_schema`: accepts any answer, as 'mood' is no keyword of JSON Schema; fields belong in "
            "`properties`: {'type': 'object', 'properties': {'mood': …}}; got {'mood': …}. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"prompt.output_schema": {"type": "objekt"}},
        sentence=(
            "`prompt.output_schema`: is not a JSON Schema ('objekt' is not valid under any of the "
            "given schemas at $.type); got {'type': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={
            "prompt.output_schema": {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
        },
        sentence=(
            "`prompt.output_schema`: has a `$ref` without a target in the schema: "
            "'https://example.com/a.json'; nothing is fetched from a network; got {'type': …, "
            "'properties': …}. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"output_schema": {"type": "object"}},
        sentence=("`output_schema`: there is no such field; it belongs in `prompt`. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"template": "x"},
        sentence=("`template`: there is no such field; it belongs in `prompt`. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"prompt.max_repairs": -1},
        sentence=("`prompt.max_repairs`: must be greater than or equal to 0; got -1. Nothing was sent or billed."),
    ),
    Mistake(
        changes={"prompt.template": "Which mood? {text}"},
        sentence=(
            "`prompt.template`: uses no column of `row`, so every row would have the same prompt; "
            "did you mean `{{ row.text }}`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "Which mood? row.text"},
        sentence=(
            "`prompt.template`: uses no column of `row`, so every row would have the same prompt; "
            "did you mean `{{ row.text }}`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "Which mood? %(text)s"},
        sentence=(
            "`prompt.template`: uses no column of `row`, so every row would have the same prompt; "
            "did you mean `{{ row.text }}`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt": "Tell a joke"},
        sentence=(
            "`prompt.template`: uses no column of `row`, so every row would have the same prompt: "
            "write e.g. `{{ row.text }}`, or set `prompt.is_constant` if that is intended. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.system": "Answer in {{ var.value.language }}"},
        sentence=(
            "`prompt.system`: has no `var`, as Airflow does not render it: put {'language': '{{ "
            "var.value.language }}'} into `prompt.variables` and write `{{ variables.language "
            "}}`. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "{{ variables.ton }} {{ row.text }}", "prompt.variables": {"tone": "dry"}},
        sentence=(
            "`prompt.template`: uses `variables.ton`, which `prompt.variables` does not have; did "
            "you mean `tone`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.schema": {"type": "object"}},
        sentence=(
            "`prompt.schema`: there is no such field; did you mean `output_schema`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.output_schema": 3},
        sentence=(
            "`prompt.output_schema`: must be an object with named fields; got 3. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.media": [{"uri": "pictures/{{ row.id }}.gif"}]},
        sentence=(
            "`spec`: has `prompt.media.0.uri` 'pictures/{{ row.id }}.gif', which is of type "
            "image/gif, and the Gemini Developer API takes PNG, JPEG, WebP, HEIC, PDF, text, "
            "audio or video. Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.limits": {}},
        sentence=(
            "`prompt.limits`: there is no such field; it belongs beside `prompt`, not into it. "
            "Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "{{ row.id }}: ${row['text']}"},
        sentence=(
            "`prompt.template`: \"${row['text']}\" would be sent as it is; did you mean `{{ "
            "row.text }}`? Nothing was sent or billed."
        ),
    ),
    Mistake(
        changes={"prompt.media": [{"uri": "gs://b/{{ ds }}/{row.id}.png"}]},
        sentence=(
            "`prompt.media.0.uri`: has no `ds`, as Airflow does not render it: put {'ds': '{{ ds "
            "}}'} into `prompt.variables` and write `{{ variables.ds }}`. Nothing was sent or "
            "billed."
        ),
    ),
    Mistake(
        changes={"prompt.template": "{{ variables['tone'] }} {{ row.text }}"},
        sentence=(
            "`prompt.template`: uses `variables.tone`, which `prompt.variables` does not have. "
            "Nothing was sent or billed."
        ),
    ),
)
