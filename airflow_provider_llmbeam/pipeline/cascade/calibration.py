"""Chooses the thresholds of a cascade from draws that every stage and `model` have answered. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class StageAnswer:
    """Answer of a stage to a prompt.

    Attributes:
        score: Score of the answer: the higher, the more it can be trusted.
        agrees: Whether it agrees with the answer of `model`; `False` if that is missing or unknown.
        label: Class that the stage predicts; `None` for a job without classes.
    """

    score: float
    agrees: bool = False
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """A prompt that was drawn. One that was drawn several times is as many of these.

    Attributes:
        stages: Answers of the stages; `None` for a stage that failed, whose row escalates.
        is_answered: Whether `model` has answered it. If not, the draw counts as disagreement, whatever is kept.
        label: Class of the answer of `model`; `None` for a job without classes, or without that answer.
    """

    stages: tuple[StageAnswer | None, ...]
    is_answered: bool = True
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """Mean cost of a row that is asked, in US dollars or any other unit.

    Attributes:
        stages: Cost at each stage.
        model: Cost at `model`.
    """

    stages: tuple[float, ...]
    model: float


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True)


class ClassAgreement(_Value):
    """Agreement among the draws of one class, by the label of `model`.

    Attributes:
        label: The class.
        draws: Number of test draws.
        agreement: Share of them whose final answer agrees.
        low: Lower end of the one-sided interval at the confidence of the cascade.
    """

    label: str
    draws: int
    agreement: float
    low: float


class CurvePoint(_Value):
    """Thresholds that were considered.

    Attributes:
        thresholds: Smallest score that each stage keeps; `None` for a stage that is not asked.
        escalated: Share of the test draws that `model` answers.
        agreement: Share of the test draws whose final answer agrees with that of `model`.
        low: Lower end of the one-sided interval of the agreement.
        is_certified: Whether the test holds for these thresholds and all before them.
    """

    thresholds: tuple[float | None, ...]
    escalated: float
    agreement: float
    low: float
    is_certified: bool


class Calibration(_Value):
    """Thresholds of a cascade, and what is known of them. JSON by `model_dump_json`.

    Attributes:
        thresholds: Smallest score that each stage keeps; `None` for a stage that is not asked. All `None`: `model`
            answers everything.
        reason: Why no stage is used; empty if one is.
        not_guaranteed: Classes with too few draws to certify: an answer of a stage with such a label escalates.
        draws: Number of draws; half of them chose the thresholds, the others tested them.
        tested: Number of draws that tested them.
        agreement: Share of these whose final answer agrees with that of `model`.
        low: Lower end of the one-sided interval of the agreement, at the confidence of the cascade.
        high: Upper end, likewise one-sided.
        classes: Agreement by class, for those that are guaranteed.
        kept: Share of the test draws that keep the answer of each stage.
        escalated: Share of the test draws that `model` answers.
        cost_per_row: Mean cost of a row with these thresholds.
        cost_per_row_by_model: Mean cost of a row that `model` answers alone.
        curve: Agreement against the escalated share, in the order of the tests, from everything by `model` on.
    """

    thresholds: tuple[float | None, ...]
    reason: str = ""
    not_guaranteed: tuple[str, ...] = ()
    draws: int
    tested: int
    agreement: float
    low: float
    high: float
    classes: tuple[ClassAgreement, ...] = ()
    kept: tuple[float, ...]
    escalated: float
    cost_per_row: float
    cost_per_row_by_model: float
    curve: tuple[CurvePoint, ...] = ()

    @property
    def asked(self) -> tuple[int, ...]:
        """Stages that are asked, in order."""
        return tuple(index for index, threshold in enumerate(self.thresholds) if threshold is not None)


def calibrate(
    draws: Sequence[Draw],
    costs: Costs,
    *,
    target_agreement: float,
    confidence: float,
    class_agreement: float,
) -> Calibration:
    """Chooses the thresholds that save most, among those whose agreement is certain enough.

    P(agreement of all final answers with `model` ≥ `target_agreement`, and of each guaranteed class ≥
    `class_agreement`) ≥ `confidence`, over the draws. The first half of the draws chooses: thresholds, their order,
    and the classes that are guaranteed. The second half tests them in this order, until one test fails.

    Args:
        draws: The draws, in the order in which they were drawn; their number was fixed before.
        costs: Costs of the stages and of `model`; without prices 0 and 1, so that escalated rows count.
        target_agreement: Smallest share of rows whose final answer agrees.
        confidence: Probability of all this together.
        class_agreement: Smallest share for the rows of each class.
    """
    raise NotImplementedError


def find_reason_against(costs: Costs, *, rows: int, sample_rows: int) -> str:
    """Returns why a cascade saves less than its calibration costs, even if the cheapest stage answers all; or "".

    It is asked before anything is sent.

    Args:
        costs: Expected costs of a row.
        rows: Number of rows that have no answer yet.
        sample_rows: Number of draws.
    """
    raise NotImplementedError
