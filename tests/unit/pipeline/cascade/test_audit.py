from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.cascade.audit import Audit, contradicts, count_audit_rows
from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_tails


@pytest.mark.parametrize(("kept", "count"), [(0, 0), (1, 30), (3000, 30), (3001, 31), (100_000, 1000)])
def test_an_audit_has_one_percent_of_the_kept_rows_and_at_least_30(kept, count):
    assert count_audit_rows(kept, 0.01) == count


def test_audits_add_up_over_runs_until_they_contradict():
    night = Audit(rows=1000, kept=500, audited=30, disagreements=6)  # 10 % of the kept rows may disagree
    assert not contradicts(night, 0.95)
    assert contradicts(night + night + night, 0.95)


def test_disagreement_among_kept_rows_may_be_larger_where_more_rows_escalate():
    assert contradicts(Audit(rows=100, kept=100, audited=300, disagreements=45), 0.9)
    assert not contradicts(Audit(rows=100, kept=50, audited=300, disagreements=45), 0.9)


@pytest.mark.parametrize(
    "audit", [Audit(), Audit(rows=10, kept=0), Audit(rows=1000, kept=40, audited=30, disagreements=30)]
)
def test_nothing_contradicts_without_audited_rows_or_where_the_kept_rows_cannot_matter(audit):
    assert not contradicts(audit, 0.95)


@given(
    audited=st.integers(30, 500),
    kept=st.integers(200, 1000),
    target=st.sampled_from([0.9, 0.95, 0.98]),
)
def test_agreement_at_the_target_is_contradicted_with_a_probability_of_at_most_one_percent(audited, kept, target):
    allowed = (1 - target) * 1000 / kept
    first = next(
        count
        for count in range(audited + 2)
        if count > audited
        or contradicts(Audit(rows=1000, kept=kept, audited=audited, disagreements=count), target)
    )
    tails = lower_tails(audited, allowed)
    assert 1 - tails[first - 1] <= 0.01 + 1e-9
    assert 1 - (tails[first - 2] if first > 1 else 0) > 0.01 - 1e-9  # it is not later than that
