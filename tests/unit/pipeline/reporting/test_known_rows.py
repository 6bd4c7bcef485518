"""The line of a log that says what is paid again, and why."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.pipeline.reporting.history import part_digests, prompt_digest
from airflow_provider_llmbeam.pipeline.reporting.known_rows import known_rows_line
from airflow_provider_llmbeam.spec.protocol.counts import Counts
from tests.unit.pipeline.reporting.test_history import summary

COUNTS = Counts(rows=50_000, resumed=12_300, requests=1)


def last_run(spec, **changes):
    digests = {"prompt": prompt_digest(spec), "parts": part_digests(spec)}
    model = f"{spec.model.type}:{spec.model.name}"
    return summary(**{"model": model, "cost_usd": 5.0, "paid": 50_000, **digests, **changes})


@pytest.fixture
def spec(job):
    return job(model={"type": "gemini"})


def test_the_rest_has_the_cost_of_the_last_runs_answers(spec):
    assert known_rows_line(spec, COUNTS, [last_run(spec)]) == (
        "12,300 of 50,000 rows are answered already; the other 37,700 are sent, for about $3.77 by the last run's "
        "cost of an answer."
    )


def test_rows_with_an_equal_prompt_and_those_without_any_cost_nothing(spec):
    """The cost was that of all rows: of a job whose rows have few prompts, many times what it paid."""
    counts = Counts(rows=10_000, resumed=500, duplicates=8_000, failed=500, requests=1)
    assert known_rows_line(spec, counts, [last_run(spec, cost_usd=1.0, paid=1000)]) == (
        "500 of 10,000 rows are answered already; the other 9,500 are sent as 1,000 prompts, for about $1.00 by "
        "the last run's cost of an answer."
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompt": {"template": "Other: {{ row.text }}"}}, ": `prompt.template` changed since then."),
        (
            {"prompt": {"template": "Other: {{ row.text }}", "system": "Be brief."}, "generation": {"seed": 1}},
            ": `prompt.template`, `prompt.system` and `generation` changed since then.",
        ),
    ],
)
def test_what_changed_since_the_last_run_is_named(job, spec, changes, why):
    changed = job(model={"type": "gemini"}, **changes)
    line = known_rows_line(changed, COUNTS, [last_run(spec)])
    assert line.endswith(f"by the last run's cost of an answer{why}")


def test_another_model_has_no_cost_from_the_last_run(spec):
    assert known_rows_line(spec, COUNTS, [last_run(spec, model="openai:gpt-5-mini")]).endswith(
        "are sent, as the model was 'openai:gpt-5-mini' in the last run, whose answers are not used for "
        "'gemini:gemini-3.5-flash-lite'."
    )


def test_the_summary_of_an_earlier_version_names_no_field_and_no_cost(spec):
    line = known_rows_line(spec, COUNTS, [last_run(spec, prompt="p", parts={}, paid=None)])
    assert line.endswith("the other 37,700 are sent: the prompt or its parameters changed since then.")


def test_a_first_run_and_one_without_a_row_to_send_have_nothing_to_explain(spec):
    assert known_rows_line(spec, COUNTS, []) == "12,300 of 50,000 rows are answered already."
    all_known = Counts(rows=10, resumed=10, requests=1)
    assert known_rows_line(spec, all_known, [last_run(spec)]) == "10 of 10 rows are answered already."
