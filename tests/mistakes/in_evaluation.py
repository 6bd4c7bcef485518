"""Mistakes in the arguments of an evaluation, and in its golden set."""

from __future__ import annotations

import json
from typing import Any

from tests.mistakes.mistake import LEFT_OUT, Mistake

MOOD = {"type": "object", "properties": {"mood": {"type": "string"}}, "required": ["mood"]}
JUDGE = {"type": "judge", "rubric": "{{ row.text }} {{ row.answer }}", "model": "gemini-3.8-flash"}


def golden(*rows: Any) -> dict[str, str]:
    return {"golden.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}


def mistake(sentence: str, **changes: Any) -> Mistake:
    return Mistake(found="evaluation", sentence=f"{sentence} Nothing was sent or billed.", **changes)


MISTAKES = (
    mistake("`metrics`: this field is needed.", evaluation={"metrics": LEFT_OUT}),
    mistake(
        (
            "`golden`: needs a key, the columns that identify a row: {'uri': …, 'key': 'id'} "
            "instead of the path alone; got 'golden.jsonl'."
        ),
        evaluation={"golden": "golden.jsonl"},
    ),
    mistake("`golden.uri` 'gold.jsonl' matches no file.", evaluation={"golden.uri": "gold.jsonl"}),
    mistake(
        (
            "`metrics.mood.type`: must be one of 'exact', 'label_f1', 'numeric', 'valid_json', "
            "'judge', 'python' (did you mean 'exact'?); got 'accuracy'."
        ),
        evaluation={"metrics": {"mood": "accuracy"}},
    ),
    mistake(
        "`metrics.mood.ignorecase`: there is no such field; did you mean `ignore_case`?",
        evaluation={"metrics": {"mood": {"type": "exact", "ignorecase": True}}},
    ),
    mistake(
        "`minimum.moods`: there is no such metric; did you mean `mood`?", evaluation={"minimum": {"moods": 0.9}}
    ),
    mistake(
        "`minimum.accuracy`: there is no such metric; expected one of `mood`.",
        evaluation={"minimum": {"accuracy": 0.9}},
    ),
    mistake("`minimum.mood`: must be less than or equal to 1; got 90.", evaluation={"minimum": {"mood": 90}}),
    mistake(
        (
            '`metrics.tone.expected`: row {"id": 0} of the golden set has no column '
            "'expected_tone'; it has ['expected_mood', 'id', 'text']."
        ),
        evaluation={"metrics": {"tone": "exact"}},
    ),
    mistake(
        (
            '`metrics.mood.expected`: row {"id": 0} of the golden set has no number in column '
            "'expected_mood' but 'good'."
        ),
        evaluation={"metrics": {"mood": "numeric"}},
    ),
    mistake(
        (
            "`metrics.mood.field`: the answers are texts without fields, as `prompt.output_schema` "
            "is not set; got 'mood'."
        ),
        evaluation={"metrics": {"mood": {"type": "exact", "field": "mood"}}},
    ),
    mistake(
        "`metrics.tone.field`: `prompt.output_schema` has no field 'tone'; it has ['mood'].",
        changes={"prompt.output_schema": MOOD},
        evaluation={"metrics": {"tone": {"type": "exact", "expected": "expected_mood"}}},
    ),
    mistake(
        (
            "`metrics.own.function`: must be the path of a function that can be imported, "
            "'package.module:name'; got 'scoring.own'."
        ),
        evaluation={"metrics": {"own": {"type": "python", "function": "scoring.own"}}},
    ),
    mistake(
        (
            "`metrics.own.function`: 'scoring:own' is named neither in a Dag file nor in "
            "`[llmbeam] allowed_functions` (`AIRFLOW__LLMBEAM__ALLOWED_FUNCTIONS`). Write it in the Dag file, or "
            "add it there."
        ),
        evaluation={"metrics": {"own": {"type": "python", "function": "scoring:own"}}},
    ),
    mistake(
        (
            "`metrics.own.function`: 'no_such_module:own' cannot be imported by the Python of the "
            "job: ModuleNotFoundError: No module named 'no_such_module'."
        ),
        evaluation={"metrics": {"own": {"type": "python", "function": "no_such_module:own"}}},
    ),
    mistake(
        ("`metrics.grade.rubric`: must show the judge what it judges: it lacks `{{ row.answer }}`."),
        evaluation={"metrics": {"grade": JUDGE | {"rubric": "Is this right? {{ row.text }}"}}},
    ),
    mistake(
        ("`metrics.grade.rubric`: has no `answer`; did you mean `{{ row.answer }}`, or `{{ variables.answer }}`?"),
        evaluation={"metrics": {"grade": JUDGE | {"rubric": "Is {{ answer }} right?"}}},
    ),
    mistake(
        (
            "`metrics.grade.limits.price`: this field is needed with `budget_usd`, as the price of openai model "
            "'m' is not known."
        ),
        evaluation={
            "metrics": {
                "grade": JUDGE
                | {
                    "model": {"type": "openai", "name": "m", "base_url": "http://h/v1"},
                    "limits": {"budget_usd": 1},
                }
            }
        },
    ),
    mistake("`golden`: the golden set has no rows.", about="an empty golden set", files=golden()),
    mistake(
        "`golden`: row 1: no value in key column 'id'; the row has ['text'].",
        about="a golden row without a key",
        files=golden({"text": "a"}),
    ),
    mistake(
        (
            "`golden`: no prompt could be made of row {\"id\": 1}: no column 'text'; there are "
            "['expected_mood', 'id']."
        ),
        about="a golden row without the column of the prompt",
        files=golden({"id": 1, "expected_mood": "a"}),
    ),
    mistake(
        ('`golden.key`: the key {"id": 1} belongs to several rows. Name columns that tell the rows apart.'),
        about="two golden rows with the same key",
        files=golden(*[{"id": 1, "expected_mood": "a", "text": "a"}] * 2),
    ),
    mistake(
        ("`task`: vectors cannot be compared with expected answers; expected 'generate', got 'embed'."),
        changes={
            "task": "embed",
            "model.name": "gemini-embedding-001",
        },
    ),
)
