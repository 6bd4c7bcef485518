"""Evaluations and comparisons as values: what is refused, and that the rest survives JSON."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.spec.evaluation import Comparison, Evaluation

SOURCE = {"uri": "golden.csv", "key": "id"}
JUDGE = {"rubric": "{{ row.text }} {{ row.answer }}", "model": "gemini-2.5-pro"}
JUDGED = JUDGE | {"type": "judge"}
PAIRS = JUDGE | {"rubric": "{{ row.first }} {{ row['second'] }}"}


def test_a_text_in_place_of_a_metric_is_its_type_and_all_survives_json():
    found = Evaluation.parse(
        {
            "golden": SOURCE,
            "metrics": {
                "a": "exact",
                "b": {"type": "label_f1", "field": "x.y", "expected": "gold"},
                "c": {"type": "numeric", "absolute_tolerance": 1},
                "d": {"type": "valid_json", "json_schema": list[int]},
                "e": JUDGED,
                "f": {"type": "python", "function": "package.module:name"},
            },
            "minimum": {"a": 0.9},
        }
    )
    assert (found.metrics["a"].field, found.metrics["a"].column_of("a")) == (None, "expected_a")
    assert (found.metrics["b"].field, found.metrics["b"].column_of("b")) == ("x.y", "gold")
    assert [model.name for model in found.models] == ["gemini-2.5-pro"]
    assert Evaluation.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"golden": {"uri": "a.csv"}}, r"`golden\.key`: "),
        ({"metrics": {}}, r"`metrics`: "),
        ({"metrics": {"a": "exactly"}}, r"`metrics\.a\.type`: .*got 'exactly'"),
        ({"metrics": {"a": {"type": "exact", "ignore_cas": True}}}, r"`metrics\.a\.ignore_cas`: there is no such"),
        ({"metrics": {"1 a": "exact"}}, r"`metrics\.1 a"),
        ({"metrics": {"a": JUDGED | {"rubric": "{{ row.text }}"}}}, r"lacks `\{\{ row\.answer \}\}`"),
        ({"metrics": {"a": JUDGED | {"rubric": "{{ answer }}"}}}, r"rubric`: .*answer"),
        ({"metrics": {"a": JUDGED | {"rubric": "{{ row.answer }} {{ variables.x }}"}}}, r"variables"),
        ({"metrics": {"a": {"type": "python", "function": "module.name"}}}, r"`metrics\.a\.function`: "),
        ({"metrics": {"a": {"type": "valid_json", "json_schema": {"type": 3}}}}, r"`metrics\.a\.json_schema`: "),
        ({"minimum": {"mod": 0.9}}, r"`minimum\.mod`: there is no such metric; did you mean `mood`\?"),
        ({"minimum": {"recall": 0.9}}, r"`minimum\.recall`: there is no such metric; expected one of `mood`\."),
        (
            {"minimum": {"x": 0.9}, "metrics": {f"metric_{number:02}": "exact" for number in range(20)}},
            r"`minimum\.x`: there is no such metric; the metrics are `metric_00`, `metric_01`, ",
        ),
        ({"minimum": {"mood": 90}}, r"`minimum\.mood`: .*got 90"),
        ({"max_drop": -1}, r"`max_drop`: "),
        ({"on_failure": "branch"}, r"`on_failure`: "),
    ],
)  # fmt: skip
def test_an_evaluation_that_cannot_work_is_refused_with_the_field(changes, message):
    with pytest.raises(JobSpecError, match=message):
        Evaluation.parse({"golden": SOURCE, "metrics": {"mood": "exact"}} | changes)


def test_a_comparison_survives_json():
    found = Comparison.parse({"other": {"model": "gemini-2.5-flash-lite"}, "judge": PAIRS})
    assert [model.name for model in found.models] == ["gemini-2.5-flash-lite", "gemini-2.5-pro"]
    assert Comparison.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"other": {}}, r"`other`: needs a `prompt`, a `model` or a `generation`"),
        ({"other": {"prompt": "no column"}}, r"`other\.prompt\.template`: "),
        ({"other": {"model": "gpt"}}, r"`other\.model`: "),
        ({"other": {"model": "echo"}, "sample_size": 5001}, r"`sample_size`: "),
        ({"other": {"model": "echo"}, "judge": JUDGE}, r"`judge\.rubric`: .*lacks `\{\{ row\.first \}\}`"),
    ],
)
def test_a_comparison_that_cannot_work_is_refused_with_the_field(given, message):
    with pytest.raises(JobSpecError, match=message):
        Comparison.parse(given)
