"""Whether scores are accepted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.pipeline.measure.evaluate import faults
from airflow_provider_llmbeam.pipeline.measure.metrics import Score
from airflow_provider_llmbeam.spec.evaluation import Evaluation

shares = st.floats(0, 1)


def thresholds(**given):
    source = {"type": "rows", "key": "id", "rows": []}
    return Evaluation.parse({"golden": source, "metrics": {"mood": "exact", "tone": "exact"}} | given)


def scores(mood, tone=1.0):
    return {name: Score(score=at, low=at, high=at, rows=9) for name, at in (("mood", mood), ("tone", tone))}


def test_a_score_below_its_minimum_is_named_with_its_interval():
    (fault,) = faults(thresholds(minimum={"mood": 0.9}), scores(0.8), None)
    assert fault == "mood is 0.800 (0.800 to 0.800), and `minimum` is 0.9."
    assert faults(thresholds(minimum={"mood": 0.8}), scores(0.8), None) == []
    assert faults(thresholds(), scores(0.0, 0.0), None) == []


def test_a_score_may_drop_by_max_drop_and_no_more():
    before = scores(0.9)
    assert faults(thresholds(max_drop=0.1), scores(0.8), before) == []
    assert len(faults(thresholds(max_drop=0.05), scores(0.8), before)) == 1
    assert faults(thresholds(), scores(0.8), before) == []
    assert faults(thresholds(max_drop=0.0), scores(0.1), None) == []


@given(shares, shares)
def test_an_unchanged_score_never_drops_and_a_better_one_is_never_refused(low, high):
    low, high = sorted((low, high))
    assert faults(thresholds(max_drop=0.0), scores(high), scores(low)) == []
    assert faults(thresholds(minimum={"mood": low}), scores(high), None) == []
