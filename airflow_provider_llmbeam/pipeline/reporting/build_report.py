"""Builds the report of a run from the sums over its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import get_args

from airflow_provider_llmbeam.engine.length_buckets import bucket_label
from airflow_provider_llmbeam.engine.outcome import BEFORE_ANY_REQUEST
from airflow_provider_llmbeam.pipeline.cascade.report import cascade_of
from airflow_provider_llmbeam.pipeline.cascade.state import RunCascade
from airflow_provider_llmbeam.pipeline.elements import Origin
from airflow_provider_llmbeam.pipeline.privacy.masker import Masker
from airflow_provider_llmbeam.pipeline.reporting.answer_profile import answers_of, most_frequent
from airflow_provider_llmbeam.pipeline.reporting.report import (
    SKIPPED,
    BucketCounts,
    EstimateAccuracy,
    FullPrice,
    InspectionCounts,
    JudgedSide,
    Latency,
    ModerationCounts,
    PrivacyCounts,
    Report,
    RequestCounts,
    RowCounts,
    RunUsage,
    ServerOfJob,
    TokenCounts,
)
from airflow_provider_llmbeam.pipeline.reporting.samples import samples_of
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.reporting.time_series import latency_counts, percentile_seconds, series_of
from airflow_provider_llmbeam.pipeline.secrets import known_secrets
from airflow_provider_llmbeam.redaction import redact, redact_all
from airflow_provider_llmbeam.spec.job import JobSpec
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from airflow_provider_llmbeam.spec.safety.moderation import Moderation, Side
from airflow_provider_llmbeam.spec.safety.privacy import inspection_usd

#: Number of categories of a kind of failure in the report.
MAX_CATEGORIES = 50


def build_report(
    spec: JobSpec,
    *,
    tally: Tally,
    answers_uris: list[str],
    dead_letter_uri: str,
    report_uri: str,
    report_html_uri: str | None,
    started_at: float,
    finished_at: float,
    estimate_accuracy: Callable[[JobSpec, RunUsage], EstimateAccuracy | None] | None = None,
    skipped_because: str | None = None,
    failed_because: str | None = None,
    budget_usd: float | None = None,
    budget_left_usd: float | None = None,
    deadline_at: float | None = None,
    batch_began_at: float | None = None,
    full_price: FullPrice | None = None,
    messages_left: int | None = None,
    masker: Masker | None = None,
    cascade: RunCascade | None = None,
) -> Report:
    """Builds the report from the sums.

    Args:
        spec: The job.
        tally: Sums over all rows.
        answers_uris: Addresses of the answers.
        dead_letter_uri: Address of the dead letter.
        report_uri: Address of the report.
        report_html_uri: Address of the report as a page; `None` for none.
        started_at: Unix time.
        finished_at: Unix time.
        estimate_accuracy: Compares the usage of the run with the estimate of the job, if there is one.
        skipped_because: Why the run was skipped; `None` if it was not.
        failed_because: Why the run failed; `None` if it did not.
        budget_usd: Budget of the whole run.
        budget_left_usd: What is left of the budget that runs share.
        deadline_at: Unix time by which the answers were needed.
        batch_began_at: Unix time at which the batch inference of the run began.
        full_price: Rows of batch inference that were sent online instead; `None` for none.
        messages_left: Number of messages that the run left to the next one.
        masker: Masks the prompt and the rows in the spec; `None` if nothing is masked.
        cascade: The cascade of the run; `None` for a job without one.
    """
    finished_at = max(finished_at, started_at, batch_began_at or 0.0)  # the clock may have been set back meanwhile
    seconds = tally.last_answered_at - tally.first_sent_at
    is_timed = 0 < seconds < float("inf")
    # The requests and tokens of batch inference are in the sums, and have no rate.
    # Those of a cascade are of several models.
    minutes = seconds / 60 if is_timed and batch_began_at is None and cascade is None else None
    sums, quota = tally.sums, spec.limits.requests_per_minute
    # N requests at equal distances have N - 1 of them: 78 at exactly the quota were 101.3 % of it.
    requests_per_minute = (sums["requests"] - 1) / minutes if minutes and sums["requests"] > 1 else None
    cost = None if sums["unpriced"] else round(sums["cost_nano_usd"] / NANO, 6)
    boundaries = spec.batching.resolved_boundaries
    secrets = known_secrets(spec.secret_variables)
    plain_spec = spec.model_dump(mode="json")
    return Report(
        name=spec.name,
        model=f"{spec.model.type}:{spec.model.name}",
        server=ServerOfJob(kind=spec.server.kind, origin=spec.server.origin),
        started_at=started_at,
        finished_at=finished_at,
        duration_seconds=round(finished_at - started_at, 3),
        sending_seconds=round(seconds, 3) if is_timed else None,
        rows=RowCounts(
            read=tally.read,
            answered=tally.answered.total(),
            dead_letter=tally.failed.total(),
            skipped=tally.skipped.total(),
        ),
        skipped_by_reason={reason: tally.skipped[reason] for reason in SKIPPED if tally.skipped[reason]},
        origins={origin: tally.answered[origin] for origin in get_args(Origin)},
        service_tiers=dict(sorted(tally.tiers.items())),
        dead_letter_by_kind=dict(sorted(tally.failed.items())),
        dead_letter_by_category=categories_of(tally.categories),
        dead_letter_words={kind: message[:500] for kind, message in sorted(tally.messages.items())},
        batch_errors=dict(tally.batch_errors.most_common(10)),
        full_price=full_price,
        moderation=moderation_of(spec.safety.moderation, tally.moderation),
        cascade=cascade_of(spec, cascade, tally),
        requests=RequestCounts(
            sent=sums["requests"],
            rejected=sums["rejections"],
            shed=sums["sheds"],
            unreturned=sums["unreturned"],
            retried=sums["retries"],
            mended=sums["mended"],
            per_minute=_rounded(requests_per_minute),
            quota_ratio=_rounded(requests_per_minute / quota if requests_per_minute and quota else None),
        ),
        tokens=TokenCounts(
            input=sums["input_tokens"],
            cached=sums["cached_tokens"],
            cache_written=sums["cache_write_tokens"],
            output=sums["output_tokens"],
            reasoning=sums["reasoning_tokens"],
            estimated=sums["estimated_tokens"],
            per_minute=_rounded((sums["input_tokens"] + sums["output_tokens"]) / minutes if minutes else None),
        ),
        cost_usd=cost,
        costs_usd={way: round(nano / NANO, 6) for way, nano in sorted(tally.costs.items()) if nano},
        budget_usd=budget_usd,
        budget_left_usd=budget_left_usd,
        deadline_at=deadline_at,
        batch_began_at=batch_began_at,
        truncated=sums["truncated"],
        latency_seconds=_latency(tally.latencies),
        latency_counts=latency_counts(tally.latencies),
        first_token_seconds=_latency(tally.first_tokens) if tally.first_tokens else None,
        padding_ratio=_padding_ratio(tally),
        length_buckets=[
            BucketCounts(
                input_tokens_range=bucket_label(boundaries, index),
                rows=rows,
                input_tokens=tally.buckets[index, "input_tokens"],
                output_tokens=tally.buckets[index, "output_tokens"],
            )
            for index in range(len(boundaries) + 1)
            if (rows := tally.buckets[index, "rows"])
        ],
        estimate=estimate_accuracy(spec, _usage(tally, cost)) if estimate_accuracy else None,
        messages_left=messages_left,
        skipped_because=skipped_because,
        failed_because=failed_because,
        answers_uris=answers_uris,
        dead_letter_uri=dead_letter_uri,
        report_uri=report_uri,
        report_html_uri=report_html_uri,
        # Rows, variables and options of the spec may hold secrets by mistake. Addresses are kept as they are.
        spec=redact_all(plain_spec if masker is None else masker.spec(plain_spec), secrets),
        answers=answers_of(tally.profile, tally.failed["invalid_output"]),
        samples=samples_of(tally.samples, lambda text: redact(text, secrets)),
        trace_id=spec.trace_id or None,
        trace_url=spec.traces.link(spec.trace_id) if spec.trace_id else None,
        traced_rows=tally.traced.rows(spec.traces.max_rows, lambda text: redact(text, secrets)),
        series=series_of(tally.series),
        privacy=None if masker is None else privacy_of(tally.masked, tally.sums),
    )


def privacy_of(masked: Counter[str], sums: Counter[str]) -> PrivacyCounts:
    """Returns the personal data of a run.

    Args:
        masked: See `Tally.masked`.
        sums: See `Tally.sums`.
    """
    names = ("issued", "returned", "lost", "altered", "invented", "repaired")
    counts = {name: sums[f"placeholders_{name}"] for name in names}
    inspected_bytes = sums["inspected_bytes"]
    inspection = InspectionCounts(
        requests=sums["inspection_requests"],
        bytes=inspected_bytes,
        list_price_usd=round(inspection_usd(inspected_bytes), 6),
    )
    return PrivacyCounts(
        masked=dict(sorted(masked.items())),
        inspection=inspection if inspection.requests else None,
        **counts,
    )


def moderation_of(
    moderation: Moderation | None, numbers: Counter[tuple[str, str, str]]
) -> ModerationCounts | None:
    """Returns the part on the guard; `None` for a job without one."""
    if moderation is None:
        return None

    def total(group: str, name: str) -> int:
        return numbers["input", group, name] + numbers["output", group, name]

    return ModerationCounts(
        model=f"{moderation.model.type}:{moderation.model.name}",
        requests_sent=total("requests", "sent"),
        requests_rejected=total("requests", "rejected"),
        requests_retried=total("requests", "retried"),
        input_tokens=total("tokens", "input"),
        output_tokens=total("tokens", "output"),
        cost_usd=None if total("cost", "unpriced") else round(total("cost", "nano_usd") / NANO, 6),
        input=_side("input", numbers) if "input" in moderation.on else None,
        output=_side("output", numbers) if "output" in moderation.on else None,
    )


def unsent_prompts(numbers: Counter[tuple[str, str, str]]) -> int:
    """Returns the number of failed rows whose prompts were not sent, as the guard did not let them pass."""
    return numbers["input", "actions", "fail"] + numbers["input", "rows", "unjudged"]


def categories_of(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Returns the number of failed rows by category, by kind of failure."""
    by_kind: dict[str, Counter[str]] = {}
    for (kind, category), rows in counts.items():
        by_kind.setdefault(kind, Counter())[category] = rows
    return {kind: most_frequent(by_kind[kind], MAX_CATEGORIES) for kind in sorted(by_kind)}


def _usage(tally: Tally, cost_usd: float | None) -> RunUsage:
    failed_prompts = sum(rows for kind, rows in tally.failed.items() if kind not in BEFORE_ANY_REQUEST)
    sums = tally.sums
    failed_prompts -= sums["known_failures"] + unsent_prompts(tally.moderation)
    return RunUsage(
        prompts=tally.answered["fresh"] + tally.answered["repaired"] + failed_prompts + sums["batch_prompts"],
        input_tokens=sums["input_tokens"] - sums["pilot_input_tokens"],
        output_tokens=sums["output_tokens"] - sums["pilot_output_tokens"],
        cost_usd=None if cost_usd is None else round(cost_usd - sums["pilot_cost_nano_usd"] / NANO, 6),
    )


def _padding_ratio(tally: Tally) -> float:
    padding = tally.sums["padding_tokens"]
    real = sum(number for (_, name), number in tally.buckets.items() if name == "input_tokens")
    return round(padding / (real + padding), 4) if padding else 0.0


def _latency(classes: Counter[int]) -> Latency:
    return Latency(
        p50=percentile_seconds(classes, 0.5),
        p95=percentile_seconds(classes, 0.95),
        p99=percentile_seconds(classes, 0.99),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _side(side: Side, numbers: Counter[tuple[str, str, str]]) -> JudgedSide:
    def of(group: str) -> dict[str, int]:
        return {name: number for (at, kind, name), number in numbers.items() if (at, kind) == (side, group)}

    rows = of("rows")
    return JudgedSide(
        texts=numbers[side, "requests", "texts"],
        safe=rows.get("safe", 0),
        unsafe=rows.get("unsafe", 0),
        unreadable=rows.get("unreadable", 0),
        unjudged=rows.get("unjudged", 0),
        actions=dict(sorted(of("actions").items())),
        categories=most_frequent(of("categories"), MAX_CATEGORIES),
    )
