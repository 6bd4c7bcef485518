"""Decides whether the answers of `model` to an audit sample contradict a calibration. Pure."""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict

from airflow_provider_llmbeam.pipeline.cascade.binomial import lower_tails

#: Least number of draws of an audit.
MIN_AUDIT_ROWS = 30
#: Probability of a contradiction where agreement is the target itself.
_LEVEL = 0.01


class Audit(BaseModel):
    """What the audits of a calibration have found, over all runs that use it. They add up: `one + other`.

    Attributes:
        rows: Number of rows of the runs.
        kept: Number of these that kept the answer of a stage.
        audited: Number of draws among the kept ones; a prompt that was drawn several times counts as often.
        disagreements: Number of the draws whose answer disagrees with that of `model`, or that it cannot answer.
    """

    model_config = ConfigDict(frozen=True)

    rows: int = 0
    kept: int = 0
    audited: int = 0
    disagreements: int = 0

    def __add__(self, other: Audit) -> Audit:
        return Audit(**{name: getattr(self, name) + getattr(other, name) for name in Audit.model_fields})


def count_audit_rows(kept: int, ratio: float) -> int:
    """Returns the number of draws of an audit: a share of the kept rows, at least 30; 0 if none are kept.

    Args:
        kept: Number of rows that keep the answer of a stage.
        ratio: `cascade.audit_ratio`.
    """
    return max(math.ceil(kept * ratio), MIN_AUDIT_ROWS) if kept else 0


def contradicts(audit: Audit, target_agreement: float) -> bool:
    """Whether the audits contradict the target: a one-sided exact binomial test at 1 %.

    Rows that `model` answers agree by definition, so that all disagreement is among the kept ones.

    Args:
        audit: All audits since the calibration.
        target_agreement: Smallest share of the rows whose final answer agrees.
    """
    if not audit.audited:
        return False
    allowed = (1 - target_agreement) * audit.rows / audit.kept
    if allowed >= 1:
        return False
    # P(at least so many disagreements), if just as many as allowed are expected.
    agreed = audit.audited - audit.disagreements
    return bool(lower_tails(audit.audited, 1 - allowed)[agreed] <= _LEVEL)
