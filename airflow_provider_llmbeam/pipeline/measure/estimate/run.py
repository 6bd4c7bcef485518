"""Makes the estimate of a job: reads its source, sends a sample of its prompts, and projects the rest."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from airflow_provider_llmbeam.engine.outcome import PERMANENT, Completion, Failure, Outcome
from airflow_provider_llmbeam.engine.pacing.shared_failure import SharedFailure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.exceptions import (
    JobFailedError,
    JobSpecError,
    NothingAnsweredError,
    PermanentFailureError,
    SourceEmptyError,
    TooManyFailedRowsError,
)
from airflow_provider_llmbeam.pipeline.batch_inference.ways import Work
from airflow_provider_llmbeam.pipeline.cascade.state import read_calibration
from airflow_provider_llmbeam.pipeline.measure.answers import find_outcomes, online_latencies, send
from airflow_provider_llmbeam.pipeline.measure.estimate.estimate import (
    Estimate,
    SampleUsage,
    write_estimate,
)
from airflow_provider_llmbeam.pipeline.measure.estimate.guard import GuardSample
from airflow_provider_llmbeam.pipeline.measure.estimate.projection import (
    Projection,
    input_share,
    mean_rates,
    project,
    sending_seconds,
)
from airflow_provider_llmbeam.pipeline.measure.estimate.source_sample import SourceSample, sample_source
from airflow_provider_llmbeam.pipeline.measure.estimate.stages import (
    NOT_CALIBRATED,
    WithStages,
    estimate_stages,
    find_learned_rate,
)
from airflow_provider_llmbeam.pipeline.measure.estimate.ways import (
    auto_way,
    planned_cost_usd,
    ways_of_job,
    with_head,
)
from airflow_provider_llmbeam.pipeline.measure.portions import MAX_BYTES, spread_over
from airflow_provider_llmbeam.pipeline.reporting.history import mean_output
from airflow_provider_llmbeam.pipeline.shared_budget import read_left_usd
from airflow_provider_llmbeam.spec.demand import Demand
from airflow_provider_llmbeam.spec.facts import TIER_RATIOS
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.model.price import Price, price_of
from airflow_provider_llmbeam.spec.model.tier import ordinary_tier
from airflow_provider_llmbeam.spec.protocol.counts import NANO, usd
from airflow_provider_llmbeam.spec.protocol.kept import QUERY_RAN, keeper_of
from airflow_provider_llmbeam.spec.runner import DataflowRunner, workers_of
from airflow_provider_llmbeam.spec.usage_tier import seconds_by_tier

_log = logging.getLogger("llmbeam")

#: Default number of prompts of the sample.
SAMPLE_SIZE = 32
#: Time from the start of a job to its first request, in a process (measured: 1.6 s) and on Dataflow (2 to 4 min,
#: see docs/dataflow.md).
START_SECONDS, DATAFLOW_START_SECONDS = 2.0, 180.0


def make_estimate(spec: JobSpec, sample_size: int = SAMPLE_SIZE, max_bytes: int = MAX_BYTES) -> Estimate:
    """Estimates a job and writes the estimate beside its report; nothing is written to the sink.

    The prompts of the sample are spread over all lengths and sent with the limits of the job. Their answers are
    stored in its journal, so that the job does not send them again; prompts that an earlier estimate or run has
    sent are not sent again either.

    Args:
        spec: The job.
        sample_size: Number of prompts sent to the model. With 0 none is sent, and the estimate assumes the longest
            output; after a run of the task, that of its answers.
        max_bytes: A larger source is sampled.

    Raises:
        JobSpecError: The source is empty, no row becomes a prompt, or the job has conversations; nothing was sent.
        PermanentFailureError: The model answered none of the prompts, for reasons that another estimate repeats.
        NothingAnsweredError: The model answered none of the prompts, for reasons that may pass.
    """
    estimate = estimate_source(spec, sample_source(spec, max_bytes), sample_size)
    _save(spec, estimate)
    if estimate.guard is not None and estimate.guard.exceeds_budget:
        _log.warning(
            "The guard model costs more than `safety.moderation.limits.budget_usd` allows: the job would fail "
            "before its last row, and a clear would continue from there."
        )
    elif estimate.exceeds_budget:
        _log.warning(
            "The job costs more than its budget allows (%s): it would fail before its last row, and a clear would "
            "continue from there.",
            usd(estimate.budget_usd or 0.0),
        )
    return estimate


def estimate_source(spec: JobSpec, found: SourceSample, sample_size: int = 0) -> Estimate:
    """Estimates a job whose source was read; see `make_estimate`.

    Args:
        spec: The job.
        found: What was read. Prompts that the guard model blocks are left out of it, and refusals added.
        sample_size: Number of prompts sent to the model.

    Raises:
        LLMBeamError: See `make_estimate`.
    """
    if not found.rows:
        query = f"{QUERY_RAN} Nothing was sent or billed beside it." if found.ran_query else ""
        raise SourceEmptyError(f"Job {spec.name!r} has no row to send.{query}")
    if not found.tokens:
        raise JobSpecError(
            f"Job {spec.name!r} has no row to send. No prompt could be made of {found.failed:,} of "
            f"{found.rows:,} rows, e.g.: {next(iter(found.failures.values())).message}"
        )
    known, recorded = find_outcomes(spec, found.tokens)
    by_length = sorted(found.candidates, key=lambda fingerprint: (found.tokens[fingerprint], fingerprint))
    picked = spread_over(by_length, sample_size) or [each for each in by_length if each in known]
    prompts = {each: found.candidates[each] for each in picked}
    rows = {each: found.audited.get(each, ()) for each in prompts}
    guard = GuardSample.of(spec, found, sends=sample_size > 0)
    blocked = {} if guard is None else guard.blocked(prompts, rows)
    new = {each: prompt for each, prompt in prompts.items() if each not in known and each not in blocked}
    outcomes = send(spec, new, rows)
    # The journal keeps refused answers, too, so that the job does not send their prompts again.
    kept = [each for each, outcome in outcomes.items() if outcome.answered_at]
    sample = {each: blocked.get(each) or known.get(each) or outcomes[each] for each in picked}
    # Failed prompts are part of the sample: the job will have the same share of them.
    observed = [(found.tokens[each], outcome) for each, outcome in sample.items()]
    price = price_of(spec.model, spec.limits.price)
    usage = _usage(list(outcomes.values()))
    if picked and not any(isinstance(outcome, Completion) for outcome in sample.values()):
        raise _nothing_answered(spec, list(sample.values()), usage)
    # The journal has a fixed number of answers, however small the sample of the source.
    known_scale = min(found.scale, recorded / len(known)) if known else found.scale
    if guard is not None:
        guard.leave_out_blocked()
    weights = dict.fromkeys(known, known_scale) | dict.fromkeys(kept, 1.0)
    weights = {each: weight for each, weight in weights.items() if each in found.tokens}
    for each, weight in weights.items():
        outcome = known.get(each) or outcomes[each]
        if isinstance(outcome, Failure):
            found.refuse(each, outcome, weight)
    by_last_run = None if observed else mean_output(spec)
    estimate = _extrapolate(spec, found, weights, observed, usage, price, by_last_run)
    if guard is not None:
        guard.judge_answers(sample, rows)
        estimate = estimate.with_guard(
            guard.estimate([*(known | outcomes).values()], [*sample.values()], known_scale, estimate.requests)
        )
    return estimate


def _save(spec: JobSpec, estimate: Estimate) -> None:
    try:
        write_estimate(spec, estimate)
    except Exception as error:
        usage = estimate.sample_usage
        raise JobFailedError(
            f"The estimate of job {spec.name!r} could not be written to {spec.paths.estimate_uri!r}: "
            f"{type(error).__name__}: {error} {usage.requests} prompts were sent for it, and "
            f"{usage.input_tokens + usage.output_tokens:,} tokens were billed. The answers are in "
            f"{spec.paths.journal_uri!r}; another estimate, or the job, sends only the rest."
        ) from error


def _nothing_answered(spec: JobSpec, sample: Sequence[Outcome], usage: SampleUsage) -> TooManyFailedRowsError:
    """Returns the error of a sample without an answer; it is final if another estimate repeats all failures."""
    failures = [outcome for outcome in sample if isinstance(outcome, Failure)]
    sent = [failure for failure in failures if failure.kind != "not_sent"] or failures
    shared = SharedFailure(
        sent[0].kind, sum(each.kind == sent[0].kind for each in sent), len(sent), sent[0].message
    )
    is_permanent = all(failure.kind in PERMANENT for failure in failures)
    return (PermanentFailureError if is_permanent else NothingAnsweredError)(
        f"The model answered none of {len(sent)} prompts of job {spec.name!r}, so there is no estimate. "
        f"{shared.sentence(spec.max_output_tokens)} "
        f"{usage.input_tokens + usage.output_tokens:,} tokens were billed."
    )


def _usage(outcomes: Sequence[Outcome]) -> SampleUsage:
    costs = [outcome.cost_nano_usd for outcome in outcomes]
    return SampleUsage(
        requests=len(outcomes),
        failed=sum(isinstance(outcome, Failure) for outcome in outcomes),
        input_tokens=sum(outcome.tokens.input for outcome in outcomes),
        output_tokens=sum(outcome.tokens.output for outcome in outcomes),
        cost_usd=None if None in costs else round(sum(filter(None, costs)) / NANO, 6),
        service_tiers=Counter(each.service_tier for each in outcomes if isinstance(each, Completion)),
    )


def _extrapolate(
    spec: JobSpec,
    found: SourceSample,
    answered: Mapping[str, float],
    observed: Sequence[tuple[int, Outcome]],
    usage: SampleUsage,
    price: Price | None,
    by_last_run: int | None,
) -> Estimate:
    """Extrapolates from the rows read to all rows, and from the sample to the remaining prompts.

    Without a sample, `by_last_run` is the output of each prompt, or `None` for the longest one.
    `answered` has the number of answered prompts of the source that each answered prompt of the sample represents.
    """
    scale = found.scale
    requests = max(0.0, scale * len(found.tokens) - sum(answered.values()))
    tokens = scale * sum(found.tokens.values()) - sum(found.tokens[each] * answered[each] for each in answered)
    tokens = max(0.0, tokens)
    repeated = sum(count - 1 for each, count in found.repeats.items() if each not in answered)
    refused = sum(each.rows for each in found.refusals.values())
    sent, duplicates, failed = round(requests), round(scale * repeated), round(scale * found.failed) + refused
    # Not what is left of the rounded numbers, which may be -1.
    resumed = max(0, round(scale * (found.rows - repeated - found.failed) - requests) - refused)

    longest = spec.max_output_tokens if by_last_run is None else by_last_run
    projection = project(observed, requests, tokens, longest, found.spread_ratio)
    input_tokens, output_tokens = round(projection.input_tokens), round(projection.output_tokens)
    error = projection.error_ratio()
    latencies = online_latencies(outcome for _, outcome in observed)
    latency = fmean(latencies) if latencies else None
    learned = find_learned_rate(spec)
    has_tiers = spec.inference.service_tier == "standard"
    by_tier = seconds_by_tier(spec.model, spec.limits, input_tokens + output_tokens) if has_tiers else {}
    seconds, limited_by = sending_seconds(
        requests,
        input_tokens + output_tokens,
        spec.limits,
        workers_of(spec.runner, spec.limits),
        latency,
        None if learned is None else learned.seconds(requests, input_tokens + output_tokens),
        by_tier.get(spec.limits.usage_tier or 0),
    )
    start = DATAFLOW_START_SECONDS if isinstance(spec.runner, DataflowRunner) else START_SECONDS
    duration, now = None if seconds is None else round(start + seconds, 1), time.time()

    # Without answers the prompts themselves say which of them have the price of long ones, or of audio.
    sample = [outcome.tokens for _, outcome in observed] or [
        Tokens(count, longest, audio=found.audio_tokens.get(each, 0)) for each, count in found.tokens.items()
    ]
    work = Work(
        rows=sent,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=round(input_tokens * input_share(sample, "cached")),
        audio_tokens=round(input_tokens * input_share(sample, "audio")),
    )
    work = with_head(spec, work, price, tokens, seconds)
    rates = None if price is None else mean_rates(price, sample)
    ratio = None if rates is None else rates.ratio_at(ordinary_tier(spec.inference.service_tier))
    ways = ways_of_job(spec, work, rates, duration, now)
    planned, left = planned_cost_usd(spec, work, rates, ways), read_left_usd(spec)
    budget = min((each for each in (spec.limits.budget_usd, left) if each is not None), default=None)
    staged = _with_stages(spec, work, start, (planned, duration))
    expected = planned if staged.cost_usd is None else staged.cost_usd
    return Estimate(
        name=spec.name,
        model=f"{spec.model.type}:{spec.model.name}",
        made_at=now,
        rows=sent + duplicates + resumed + failed,
        requests=sent,
        duplicates=duplicates,
        resumed=resumed,
        failed=failed,
        is_sampled=found.is_sampled,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        output_is_upper_bound=not observed and not by_last_run and spec.embedding is None,
        output_is_of_last_run=by_last_run is not None,
        error_ratio=None if error is None else round(error, 4),
        cost_usd=_rounded(work.cost_usd(rates, ratio, prefix_cache=True)),
        cost_usd_range=None if by_last_run else _interval(projection, work, rates, ratio, is_bound=not observed),
        standard_cost_usd=_rounded(work.cost_usd(rates, 1.0, prefix_cache=True)),
        batch_cost_usd=_rounded(work.cost_usd(rates, TIER_RATIOS["batch"])),
        planned_cost_usd=_rounded(planned),
        prefix_cache_usd=round(work.prefix_usd, 6),
        exceeds_budget=expected is not None and budget is not None and expected > budget,
        cascade=staged.text,
        cascade_cost_usd=_rounded(staged.cost_usd),
        cascade_seconds=None if staged.seconds is None else round(staged.seconds, 1),
        budget_usd=budget,
        budget_left_usd=left,
        duration_seconds=duration,
        limited_by=limited_by,
        tier_seconds=by_tier,
        latency_seconds=None if latency is None else round(latency, 3),
        sample_usage=usage,
        keeper=keeper_of(spec),
        price=price,
        demand=Demand(
            rows=sent,
            input_tokens_per_row=round(input_tokens / sent, 1) if sent else 0.0,
            output_tokens_per_row=round(output_tokens / sent, 1) if sent else 0.0,
            learned_rate=learned,
        ),
        ways=ways,
        auto=auto_way(spec, ways)[1] if ways and spec.inference.mode == "auto" else "",
        inspected_bytes=round(scale * found.inspected_bytes),
    )


def _with_stages(
    spec: JobSpec, work: Work, start_seconds: float, alone: tuple[float | None, float | None]
) -> WithStages:
    """Returns what the stages of a cascade change, see `estimate_stages`."""
    if spec.cascade is None:
        return WithStages()
    if (stored := read_calibration(spec)) is None:
        return NOT_CALIBRATED
    return estimate_stages(spec, spec.cascade, stored, work, start_seconds=start_seconds, alone=alone)


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 6)


def _interval(
    projection: Projection, work: Work, price: Price | None, ratio: float | None, *, is_bound: bool
) -> tuple[float, float] | None:
    """Returns the cost at the bounds of the interval, in US dollars; a bound begins at no output."""
    cost = work.cost_usd(price, ratio, prefix_cache=True)
    least = replace(work, output_tokens=0).cost_usd(price, ratio, prefix_cache=True)
    if price is None or cost is None or least is None:
        return None
    if is_bound:
        return round(least, 6), round(cost, 6)
    error = projection.error_ratio(price.input_usd_per_million_tokens, price.output_usd_per_million_tokens)
    return None if error is None else (round(max(0.0, cost * (1 - error)), 6), round(cost * (1 + error), 6))
