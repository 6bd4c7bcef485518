"""The part of a report on the cascade of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from airflow_provider_llmbeam.engine.outcome import Outcome
from airflow_provider_llmbeam.pipeline.cascade.audit import Audit
from airflow_provider_llmbeam.pipeline.cascade.distilled.counts import DistilledCounts
from airflow_provider_llmbeam.pipeline.cascade.distilled.curve import has_drifted
from airflow_provider_llmbeam.pipeline.cascade.state import RunCascade
from airflow_provider_llmbeam.pipeline.reporting.report import (
    CascadeClass,
    CascadeCounts,
    CascadePoint,
    CascadeStage,
    Report,
)
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO

#: Names in the counts of a cascade of what is of no stage, and of the judges of its agreement.
ALL = "all"
JUDGE = "judge"
#: Number of points of the curve in the report.
_POINTS = 100


def cascade_of(spec: JobSpec, run: RunCascade | None, tally: Tally) -> CascadeCounts | None:
    """Returns the part on the cascade; `None` for a job without one.

    Args:
        spec: The job.
        run: Its cascade.
        tally: Sums over all rows.
    """
    if spec.cascade is None or run is None:
        return None
    cascade, calibration, counts = spec.cascade, run.calibration, tally.cascade
    names = cascade.names(spec.model)
    kept = [counts[name, "kept"] for name in names[:-1]]
    answered = tally.answered.total()
    by_model = answered - sum(kept)
    prompts = answered - tally.answered["duplicate"]
    stages = [
        CascadeStage(
            name=name,
            threshold=None if calibration is None else calibration.thresholds[number],
            rows=counts[name, "rows"],
            answered=kept[number],
            failed=counts[name, "failed"],
            requests=counts[name, "requests"],
            input_tokens=counts[name, "input_tokens"],
            output_tokens=counts[name, "output_tokens"],
            cost_usd=None if counts[name, "unpriced"] else round(counts[name, "cost_nano_usd"] / NANO, 6),
            distilled=_distilled(run, number, counts, name),
        )
        for number, name in enumerate(names[:-1])
    ]
    stages.append(_model_stage(names, by_model, tally))
    curve = () if calibration is None else calibration.curve
    return CascadeCounts(
        stages=stages,
        reason=run.reason,
        target_agreement=cascade.target_agreement,
        confidence=cascade.confidence,
        is_guaranteed=run.is_guaranteed and calibration is not None,
        calibrated_at=None if calibration is None else run.made_at,
        draws=0 if calibration is None else calibration.draws,
        agreement=None if calibration is None else calibration.agreement,
        low=None if calibration is None else calibration.low,
        high=None if calibration is None else calibration.high,
        classes=[
            CascadeClass(**each.model_dump()) for each in (() if calibration is None else calibration.classes)
        ],
        not_guaranteed=[*(() if calibration is None else calibration.not_guaranteed)],
        escalated_ratio=round(by_model / answered, 4) if answered else None,
        sample_cost_usd=round(counts[ALL, "sample_nano_usd"] / NANO, 6),
        judge_cost_usd=round(counts[JUDGE, "cost_nano_usd"] / NANO, 6),
        all_by_model_usd=None
        if calibration is None or (spec.limits.price is None and not tally.sums["cost_nano_usd"])
        else round(calibration.cost_per_row_by_model * prompts, 6),
        audited=counts[ALL, "audited"],
        disagreements=counts[ALL, "disagreements"],
        audited_before=run.audit.audited,
        disagreements_before=run.audit.disagreements,
        curve=[
            CascadePoint(
                escalated_ratio=each.escalated,
                agreement=each.agreement,
                low=each.low,
                is_certified=each.is_certified,
            )
            for each in curve[:: max(1, -(-len(curve) // _POINTS))]
        ],
    )


def drifted_stages(report: Report) -> tuple[str, ...]:
    """Returns the names of the distilled stages whose rows have drifted since they have learned."""
    stages = [] if report.cascade is None else report.cascade.stages
    return tuple(each.name for each in stages if each.distilled is not None and each.distilled.has_drifted)


def _distilled(
    run: RunCascade, number: int, counts: Mapping[tuple[str, str], int], name: str
) -> DistilledCounts | None:
    """Returns what a distilled stage has learned, and whether the rows have drifted; `None` for a model."""
    found, calibration = run.distilled.get(number), run.calibration
    if found is None or calibration is None or run.is_guaranteed:
        return found
    asked = 1 - sum(calibration.kept[:number])
    drifted = has_drifted(
        kept=calibration.kept[number] / asked if asked else 0.0,
        tested=round(calibration.tested * asked),
        rows=counts[name, "rows"],
        kept_rows=counts[name, "kept"] + counts[name, "audited"],
    )
    return found.model_copy(update={"has_drifted": drifted})


def audit_of(report: Report) -> Audit | None:
    """Returns what the audit of a run has found, by its report; `None` for a run that has calibrated."""
    counts = report.cascade
    if counts is None or counts.is_guaranteed:
        return None
    kept = sum(stage.answered for stage in counts.stages[:-1]) + counts.audited
    return Audit(rows=report.rows.answered, kept=kept, audited=counts.audited, disagreements=counts.disagreements)


def _model_stage(names: tuple[str, ...], rows: int, tally: Tally) -> CascadeStage:
    """Returns `model` as the last stage: what all have cost, without the stages."""
    counts, sums = tally.cascade, tally.sums

    def rest(name: str, of_all: int) -> int:
        return of_all - sum(counts[other, name] for other in (*names[:-1], JUDGE))

    return CascadeStage(
        name=names[-1],
        threshold=None,
        rows=rows,
        answered=rows,
        failed=0,
        requests=rest("requests", sums["requests"]),
        input_tokens=rest("input_tokens", sums["input_tokens"]),
        output_tokens=rest("output_tokens", sums["output_tokens"]),
        cost_usd=None if sums["unpriced"] else round(rest("cost_nano_usd", sums["cost_nano_usd"]) / NANO, 6),
    )


#: What an outcome adds to the counts of a stage.
_PAID = ("requests", "rejections", "input_tokens", "output_tokens", "cost_nano_usd", "unpriced")
_AT = "nano_usd at "


def paid_counts(name: str, outcome: Outcome) -> Counter[tuple[str, str]]:
    """Returns what an outcome of a stage, or of `model`, adds to the counts of a cascade."""
    cost = outcome.cost_nano_usd or 0
    counts = {
        "requests": outcome.attempts + outcome.rejections + outcome.sheds,
        "rejections": outcome.rejections,
        "input_tokens": outcome.tokens.input,
        "output_tokens": outcome.tokens.output,
        "cost_nano_usd": cost,
        "unpriced": int(outcome.cost_nano_usd is None),
        f"{_AT}{outcome.service_tier}": cost,
    }
    return Counter({(name, what): number for what, number in counts.items() if number})


def paid_by_name(tally: Tally) -> dict[str, int]:
    """Returns what was paid for in the counts of a cascade, as plain data: `paid_tally` reads it."""
    return {
        f"{what}\t{name}": number
        for (name, what), number in tally.cascade.items()
        if what in _PAID or what.startswith(_AT) or name == ALL
    }


def paid_tally(paid: Mapping[str, int]) -> Tally:
    """Returns the sums of what `paid_by_name` has written."""
    tally = Tally()
    for key, number in paid.items():
        what, _, name = key.partition("\t")
        tally.cascade[name, what] += number
        if what in _PAID:
            tally.sums[what] += number
        elif what.startswith(_AT):
            tally.costs[what.removeprefix(_AT)] += number
    return tally


def stage_nano_usd(paid: Mapping[str, int]) -> int:
    """Returns the cost in it without that of the sample, in billionths of a US dollar."""
    counts = paid_tally(paid)
    return counts.sums["cost_nano_usd"] - counts.cascade[ALL, "sample_nano_usd"]
