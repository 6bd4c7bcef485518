"""What an estimate over budget says."""

from __future__ import annotations

import pytest

from airflow_provider_llmbeam.operators.estimate import describe_excess
from airflow_provider_llmbeam.spec import JobSpec

JOB = {
    "name": "night",
    "source": {"uri": "a.csv", "key": "id"},
    "prompt": "Say {{ row.text }}",
    "model": {"type": "echo"},
    "sink": "out",
    "limits": {"budget_usd": 2.0},
    "safety": {"moderation": {"model": {"type": "echo"}, "limits": {"budget_usd": 0.5}}},
}


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (None, "The job would cost at most $3.00, and `limits.budget_usd` is $2.00."),
        (
            {"exceeds_budget": False, "cost_usd": 0.4, "output_is_upper_bound": True},
            "The job would cost at most $3.00, and `limits.budget_usd` is $2.00.",
        ),
        (
            {"exceeds_budget": True, "cost_usd": 0.7, "output_is_upper_bound": False},
            "The guard would cost about $0.70, and `safety.moderation.limits.budget_usd` is $0.50.",
        ),
    ],
)
def test_the_message_names_the_cost_and_the_budget_that_it_exceeds(guard, said):
    estimate = {
        "planned_cost_usd": 3.0,
        "output_is_upper_bound": True,
        "guard": guard,
        "budget_left_usd": None,
    }
    assert describe_excess(estimate, JobSpec.parse(JOB)).startswith(said)


def test_the_message_names_what_is_left_of_a_budget_that_the_runs_share():
    estimate = {"planned_cost_usd": 3.0, "output_is_upper_bound": False, "guard": None, "budget_left_usd": 1.25}
    said = (
        "The job would cost about $3.00, and `limits.budget_usd` is $2.00 and $1.25 of `limits.budget` are left."
    )
    assert describe_excess(estimate, JobSpec.parse(JOB)).startswith(said)
