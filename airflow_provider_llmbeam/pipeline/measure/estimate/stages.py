"""What a job with a cascade costs and takes, by its calibration; nothing is read or sent."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_llmbeam.pipeline.batch_inference.ways import Work
from airflow_provider_llmbeam.pipeline.cascade.stages import samples_of
from airflow_provider_llmbeam.pipeline.cascade.state import StoredCalibration
from airflow_provider_llmbeam.pipeline.measure.estimate.projection import sending_seconds
from airflow_provider_llmbeam.pipeline.pacing.machine_governor import learned_rate
from airflow_provider_llmbeam.spec.cascade import Cascade
from airflow_provider_llmbeam.spec.demand import EarlierRate
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import duration, usd
from airflow_provider_llmbeam.spec.runner import LocalRunner, workers_of


@dataclass(frozen=True)
class WithStages:
    """What a job costs and takes with the stages of its cascade.

    Attributes:
        text: This as a sentence, beside `model` alone; empty for a job without a cascade.
        cost_usd: Cost in US dollars; `None` if it is not known.
        seconds: Duration with the start, in seconds; `None` if it is not known.
    """

    text: str = ""
    cost_usd: float | None = None
    seconds: float | None = None


NOT_CALIBRATED = WithStages("not calibrated: these are figures of `model` alone; see `llmbeam cascade`")


def estimate_stages(
    spec: JobSpec,
    cascade: Cascade,
    stored: StoredCalibration,
    work: Work,
    *,
    start_seconds: float,
    alone: tuple[float | None, float | None],
) -> WithStages:
    """Estimates a job with the stages of its cascade, which are asked one after the other.

    Args:
        spec: The job.
        cascade: Its cascade.
        stored: Its calibration.
        work: All prompts at `model`, whose tokens the stages are taken to have, too.
        start_seconds: Time of the start, in seconds.
        alone: Cost and duration by `model` alone.
    """
    share, found = 1.0, []
    for number in stored.calibration.asked:
        job, samples = cascade.stage_job(spec, number), samples_of(cascade.stages[number])
        found.append(seconds_of(job, stored, number, work, share * samples))
        share -= stored.calibration.kept[number]
    found.append(seconds_of(spec, stored, -1, work, share))
    seconds = None if None in found else start_seconds + sum(filter(None, found))
    cost_usd, alone_seconds = alone
    if alone_seconds is None and (by_model := seconds_of(spec, stored, -1, work)) is not None:
        alone_seconds = start_seconds + by_model
    cost = None if cost_usd is None else stored.calibration.cost_per_row * work.rows
    ours, theirs = (
        f"{'an unknown cost' if amount is None else usd(amount)} in "
        f"{'an unknown time' if taken is None else duration(taken)}"
        for amount, taken in ((cost, seconds), (cost_usd, alone_seconds))
    )
    text = f"about {ours} with its stages, by its calibration; {theirs} by `model` alone"
    return WithStages(text, cost, seconds)


def seconds_of(
    job: JobSpec, stored: StoredCalibration, number: int, work: Work, share: float = 1.0
) -> float | None:
    """Returns the time that prompts take online, in seconds; `None` if neither a rate nor the latency is known.

    Args:
        job: Who is asked.
        stored: The calibration of the cascade.
        number: Index of the stage; -1 for `model`.
        work: The prompts.
        share: Share of them that is asked.
    """
    requests, tokens = share * work.rows, share * (work.input_tokens + work.output_tokens)
    learned, workers = find_learned_rate(job), workers_of(job.runner, job.limits)
    by_rate = None if learned is None else learned.seconds(requests, tokens)
    latency = stored.latency_seconds[number] if stored.latency_seconds else None
    return sending_seconds(requests, tokens, job.limits, workers, latency, by_rate)[0]


def find_learned_rate(job: JobSpec) -> EarlierRate | None:
    """Returns the rate that an earlier run has learned; `None` without one, or with several machines.

    Machines share a quota, and how many there will be is not known.
    """
    if not isinstance(job.runner, LocalRunner):
        return None
    return learned_rate(job.model, job.limits, job.paths.rates_uri)
