"""Compares a job with one that has another prompt, model or other parameters, on the same rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from airflow_provider_llmbeam.engine.outcome import Completion, Failure
from airflow_provider_llmbeam.exceptions import JobSpecError
from airflow_provider_llmbeam.pipeline.measure.estimate.outcomes import online_latencies
from airflow_provider_llmbeam.pipeline.measure.evaluation.answers import (
    Answers,
    answered,
    answers_are_kept,
    rendered,
)
from airflow_provider_llmbeam.pipeline.measure.evaluation.comparison import (
    ComparisonReport,
    Difference,
    Side,
    Verdicts,
)
from airflow_provider_llmbeam.pipeline.measure.evaluation.judging import Verdict, check_job, pair_job, verdicts
from airflow_provider_llmbeam.pipeline.measure.evaluation.marks import comparable, normalised
from airflow_provider_llmbeam.pipeline.measure.evaluation.report import write_report
from airflow_provider_llmbeam.pipeline.measure.evaluation.rows import RowSample, sampled_rows
from airflow_provider_llmbeam.pipeline.measure.evaluation.run import check_generates
from airflow_provider_llmbeam.pipeline.measure.evaluation.scores import mean_score
from airflow_provider_llmbeam.spec.conversation import refuse_conversation
from airflow_provider_llmbeam.spec.evaluation import Comparison
from airflow_provider_llmbeam.spec.job import JobSpec

#: Value of a verdict for the other job.
_VALUES: Mapping[Verdict, float] = {"job": 0.0, "other": 1.0, "tie": 0.5, "inconsistent": 0.5}


def compare(spec: JobSpec, comparison: Comparison) -> ComparisonReport:
    """Compares two jobs on a sample of the source, and writes `comparison.json` and `comparison.txt`.

    The answers go into the journal or the cache of the job; only what they do not hold is sent. Nothing is written
    to the sink.

    Args:
        spec: The job.
        comparison: What is different in the other job, the size of the sample and the judge.

    Raises:
        JobSpecError: The other job is not valid, or there is no row to send; nothing was sent.
        JobFailedError: A server left rows unanswered, or a disk is full; a retry sends only the rest.
        BudgetExceededError: The budget of a job or of the judge is spent.
    """
    check_generates(spec)
    refuse_conversation(spec, "a comparison")
    other = other_job(spec, comparison)
    judge = None if comparison.judge is None else pair_job(spec, comparison.judge)
    sample = sampled_rows(spec, comparison.sample_size)
    prompts = rendered(spec, sample.rows), rendered(other, sample.rows)
    for found in prompts:
        if all(isinstance(prompt, Failure) for prompt in found.values()):
            first = next(prompt.message for prompt in found.values() if isinstance(prompt, Failure))
            raise JobSpecError(
                f"No row of the sample becomes a prompt, e.g.: {first}. Nothing was sent or billed."
            )
    for job in (spec, other, *filter(None, [judge])):
        check_job(job)
    with answers_are_kept(spec):
        answers = answered(spec, prompts[0]), answered(other, prompts[1])
        report = _report(spec, other, judge, comparison, sample, answers)
        write_report(spec, "comparison", report, report.lines())
    return report


def other_job(spec: JobSpec, comparison: Comparison) -> JobSpec:
    """Returns the other job of a comparison, with the journal of the job.

    Raises:
        JobSpecError: The parts do not fit together.
    """
    given = comparison.other.model_dump(mode="json", exclude_none=True)
    if "model" in given and "limits" not in given:  # whose price is that of the model of the job
        given["limits"] = spec.limits.model_dump(mode="json", exclude={"price"})
    return JobSpec.parse(spec.model_dump(mode="json") | given)


def _report(
    spec: JobSpec,
    other: JobSpec,
    judge: JobSpec | None,
    comparison: Comparison,
    sample: RowSample,
    answers: tuple[Answers, Answers],
) -> ComparisonReport:
    mine, others = answers
    values = mine.values(), others.values()
    both = {key: (value, values[1][key]) for key, value in values[0].items() if key in values[1]}
    differing = {key: pair for key, pair in both.items() if not _is_equal(*pair)}
    found: Mapping[str, tuple[Verdict, str]] = {}
    judged = Answers({}, ())
    if judge and differing:
        found, judged = verdicts(judge, sample.rows, differing, answers)
    return ComparisonReport(
        name=spec.name,
        made_at=time.time(),
        job=_side(spec, mine),
        other=_side(other, others),
        rows=len(sample.rows),
        read=sample.read,
        is_partial=sample.is_partial,
        both_answered=len(both),
        agreement={
            name: mean_score([float(_is_equal(*pair)) for pair in pairs], comparison.seed)
            for name, pairs in _pairs_by_field(both).items()
        },
        verdicts=_verdicts(found, len(both) - len(differing), comparison.seed) if judge else None,
        judge_cost_usd=judged.cost_usd,
        requests=len(mine.sent) + len(others.sent) + len(judged.sent),
        differences=_differences(sample, mine, others, differing, found)[: comparison.max_cases],
        difference_count=len(differing) + len(sample.rows) - len(both),
    )


def _is_equal(mine: Any, other: Any) -> bool:
    mine, other = comparable(mine, other)
    return normalised(mine, ignore_whitespace=True) == normalised(other, ignore_whitespace=True)


def _pairs_by_field(both: Mapping[str, tuple[Any, Any]]) -> dict[str, list[tuple[Any, Any]]]:
    """Returns pairs of whole answers, and of each field of answers that are objects."""
    if not both:
        return {}
    found = {"answer": [*both.values()]}
    objects = [pair for pair in both.values() if all(isinstance(each, dict) for each in pair)]
    if len(objects) == len(both):
        for name in dict.fromkeys(name for pair in objects for each in pair for name in each):
            of_field = "answer.answer" if name == "answer" else name
            found[of_field] = [(mine.get(name), other.get(name)) for mine, other in objects]
    return found


def _side(spec: JobSpec, answers: Answers) -> Side:
    completions = [each for each in answers.by_key.values() if isinstance(each, Completion)]
    latencies = sorted(online_latencies(completions))
    return Side(
        model=f"{spec.model.type}:{spec.model.name}",
        template=spec.prompt.template,
        answered=len(completions),
        failed=Counter(each.kind for each in answers.by_key.values() if isinstance(each, Failure)),
        usd_per_thousand_rows=answers.usd_per_thousand_rows,
        cost_usd=answers.cost_usd,
        output_tokens_per_row=sum(each.output_tokens for each in completions) / (len(completions) or 1),
        latency_p50_seconds=quantile(latencies, 0.5),
        latency_p95_seconds=quantile(latencies, 0.95),
    )


def quantile(ascending: list[float], share: float) -> float | None:
    """Returns the smallest value that this share of ascending values does not exceed; `None` without any."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)] if ascending else None


def _verdicts(found: Mapping[str, tuple[Verdict, str]], equal: int, seed: int) -> Verdicts:
    counts = Counter(verdict for verdict, _ in found.values())
    values = [_VALUES[verdict] for verdict, _ in found.values()] + [0.5] * equal
    return Verdicts(
        job=counts["job"],
        other=counts["other"],
        tie=counts["tie"],
        inconsistent=counts["inconsistent"],
        equal=equal,
        preference=mean_score(values, seed) if values else None,
    )


def _differences(
    sample: RowSample,
    mine: Answers,
    others: Answers,
    differing: Mapping[str, Any],
    found: Mapping[str, tuple[Verdict, str]],
) -> list[Difference]:
    """Returns the rows that one of both left unanswered, then those with different answers, by key."""
    answers = mine.values(), others.values()
    missing = [key for key in sample.rows if key not in answers[0] or key not in answers[1]]
    return [
        Difference(
            key=key,
            job=answers[0].get(key, _reason(mine, key)),
            other=answers[1].get(key, _reason(others, key)),
            verdict=found[key][0] if key in found else None,
            reason=found[key][1] if key in found else "",
        )
        for key in (*sorted(missing), *sorted(differing))
    ]


def _reason(answers: Answers, key: str) -> str:
    outcome = answers.by_key[key]
    return f"[{outcome.kind}: {outcome.message}]" if isinstance(outcome, Failure) else ""
