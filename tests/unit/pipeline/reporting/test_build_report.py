from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.elements import AnsweredRow, FailedRow
from airflow_provider_llmbeam.pipeline.reporting.build_report import (
    build_report,
    categories_of,
    moderation_of,
    unsent_prompts,
)
from airflow_provider_llmbeam.pipeline.reporting.report import Report, RunUsage
from airflow_provider_llmbeam.pipeline.reporting.tally import Tally
from airflow_provider_llmbeam.pipeline.transforms.account import TallyRows
from airflow_provider_llmbeam.spec import JobSpec, Moderation
from airflow_provider_llmbeam.spec.protocol.counts import NANO
from tests.outcomes import completion


def report(
    spec: JobSpec,
    tally: Tally,
    estimate_accuracy: Any = None,
    finished_at: float = 1012.3456,
    batch_began_at: float | None = None,
) -> Report:
    return build_report(
        spec,
        tally=tally,
        answers_uris=["out/answers-00000-of-00001.jsonl"],
        dead_letter_uri="out/dead_letter-00000-of-00001.jsonl",
        report_uri="out/report.json",
        report_html_uri="out/report.html",
        started_at=1000.0,
        finished_at=finished_at,
        estimate_accuracy=estimate_accuracy,
        batch_began_at=batch_began_at,
    )


def tally_of(spec: JobSpec, *rows: Any) -> Tally:
    step = TallyRows(spec.batching.resolved_boundaries)
    for row in rows:
        step.process(row)
    step.tally.read = len(rows)
    return step.tally


@pytest.fixture
def spec(job) -> JobSpec:
    return job(limits={"requests_per_minute": 60}, batching={"bucket_boundaries": [128, 512]})


@pytest.fixture
def full(spec: JobSpec) -> Report:
    rows = [
        AnsweredRow(
            {},
            "a",
            completion(
                sent_at=1000.0, answered_at=1010.0, attempts=2, rejections=1, tokens=Tokens(10, 3, cached=7)
            ),
            "fresh",
        ),
        AnsweredRow({}, "b", completion(sent_at=1005.0, answered_at=1030.0, tokens=Tokens(600, 3)), "fresh"),
        AnsweredRow({}, "b", completion(), "duplicate"),
        AnsweredRow({}, "c", completion(finish_reason="max_tokens"), "resumed"),
        FailedRow({}, Failure(kind="blocked", message="x" * 900, attempts=1, tokens=Tokens(4))),
        FailedRow({}, Failure(kind="bad_request", message="no", attempts=1)),
    ]
    return report(spec, tally_of(spec, *rows))


def test_rows_in_are_rows_out(full: Report) -> None:
    assert full.rows.model_dump() == {"read": 6, "answered": 4, "dead_letter": 2, "skipped": 0}
    numbers = {"fresh": 2, "repaired": 0, "batch": 0, "resumed": 1, "cached": 0, "duplicate": 1, "replaced": 0}
    assert full.origins == numbers
    assert full.dead_letter_by_kind == {"bad_request": 1, "blocked": 1}


def test_the_spec_in_the_report_holds_no_secret_of_the_job(job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "planted-model-key")
    spec = job(
        model={"type": "openai", "name": "m", "api_key_env": "MODEL_KEY"},
        prompt={"template": "{{ row.text }}", "variables": {"by mistake": "planted-model-key"}},
    )
    written = report(spec, tally_of(spec))
    assert "planted-model-key" not in written.model_dump_json()
    assert written.spec["prompt"]["variables"] == {"by mistake": "***"}
    assert written.spec["prompt"]["template"] == "{{ row.text }}"


def test_the_rate_is_over_the_time_of_sending(full: Report) -> None:
    """The first of 6 requests and 5 more in 30 s, where 60 a minute are allowed."""
    assert full.sending_seconds == 30.0
    assert full.requests.model_dump() == {
        "sent": 6,
        "rejected": 1,
        "shed": 0,
        "unreturned": 0,
        "retried": 1,
        "mended": 0,
        "per_minute": 10.0,
        "quota_ratio": 0.167,
    }
    assert full.tokens.model_dump() == {
        "input": 614,
        "cached": 7,
        "cache_written": 0,
        "output": 6,
        "reasoning": 0,
        "estimated": 0,
        "per_minute": 1240.0,
    }


def test_only_answers_of_this_run_count_as_truncated(full: Report) -> None:
    assert full.truncated == 0


def test_a_length_bucket_has_its_line_only_when_it_has_rows(full: Report) -> None:
    assert [bucket.model_dump() for bucket in full.length_buckets] == [
        {"input_tokens_range": "<128", "rows": 1, "input_tokens": 10, "output_tokens": 3},
        {"input_tokens_range": "≥512", "rows": 1, "input_tokens": 600, "output_tokens": 3},
    ]


def test_the_latency_is_that_of_the_answers(full: Report) -> None:
    assert full.latency_seconds.p50 == pytest.approx(0.5, rel=0.1)
    assert full.latency_seconds.p99 == pytest.approx(0.5, rel=0.1)


def test_the_message_of_a_failure_is_truncated(full: Report) -> None:
    assert full.dead_letter_words == {"bad_request": "no", "blocked": "x" * 500}


def test_the_report_has_its_times(full: Report) -> None:
    assert (full.started_at, full.finished_at, full.duration_seconds) == (1000.0, 1012.3456, 12.346)


def test_a_clock_that_was_set_back_makes_no_negative_duration(spec: JobSpec) -> None:
    set_back = report(spec, tally_of(spec), finished_at=940.0)
    assert (set_back.finished_at, set_back.duration_seconds) == (1000.0, 0.0)


def test_the_report_holds_the_whole_spec(full: Report, spec: JobSpec) -> None:
    assert full.model == "echo:echo"
    assert JobSpec.parse(full.spec) == spec


def test_a_report_round_trips_through_json(full: Report) -> None:
    assert Report.model_validate_json(full.model_dump_json()) == full


def test_the_manifest_holds_counts_and_addresses_and_no_row(full: Report) -> None:
    manifest = full.manifest()
    assert {"rows", "requests", "tokens", "answers_uris", "dead_letter_uri", "report_uri"} <= manifest.keys()
    assert not {"spec", "length_buckets", "dead_letter_words"} & manifest.keys()
    assert len(json.dumps(manifest)) < 2000


def test_a_run_that_sent_nothing_has_no_rates(spec: JobSpec) -> None:
    empty = report(spec, Tally())
    assert empty.sending_seconds is None
    assert (empty.requests.per_minute, empty.requests.quota_ratio, empty.tokens.per_minute) == (None, None, None)
    assert empty.latency_seconds.model_dump() == {"p50": None, "p95": None, "p99": None}
    assert empty.length_buckets == []
    assert Report.model_validate_json(empty.model_dump_json()) == empty


def test_without_a_quota_there_is_no_ratio(job) -> None:
    spec = job()
    found = report(spec, tally_of(spec, *at_a_rate_of(1.0)))
    assert found.requests.per_minute == 60.0
    assert found.requests.quota_ratio is None


def at_a_rate_of(per_second: float, rows: int = 78) -> list[AnsweredRow]:
    """The answers, which take no time, to requests at equal distances."""
    times = [1000 + row / per_second for row in range(rows)]
    return [
        AnsweredRow({}, str(at), completion(sent_at=at, answered_at=at, latency_seconds=0.0), "fresh")
        for at in times
    ]


@pytest.mark.parametrize("rows", [2, 78])
def test_a_run_at_exactly_the_quota_has_used_all_of_it(job, rows: int) -> None:
    spec = job(limits={"requests_per_minute": 60})
    assert report(spec, tally_of(spec, *at_a_rate_of(1.0, rows))).requests.quota_ratio == 1.0
    assert report(spec, tally_of(spec, *at_a_rate_of(1.5, rows))).requests.quota_ratio == 1.5


def test_requests_of_rows_that_failed_in_the_end_count_in_the_time_of_sending(job) -> None:
    spec = job(limits={"requests_per_minute": 60})
    failed = Failure(kind="timeout", message="", attempts=10, failed_at=1087.0)
    found = report(spec, tally_of(spec, *at_a_rate_of(1.0), FailedRow({}, failed)))
    assert (found.sending_seconds, found.requests.quota_ratio) == (87.0, 1.0)


def test_one_request_and_batch_inference_have_no_rate(job) -> None:
    spec = job(limits={"requests_per_minute": 60})
    alone = report(spec, tally_of(spec, AnsweredRow({}, "a", completion(), "fresh")))
    batch = report(spec, tally_of(spec, *at_a_rate_of(1.0)), batch_began_at=900.0)
    for found in (alone, batch):
        assert (found.requests.per_minute, found.requests.quota_ratio) == (None, None)
    assert batch.tokens.per_minute is None


def test_the_cost_is_that_of_the_answers_of_this_run(spec: JobSpec) -> None:
    rows = [
        AnsweredRow({}, "a", completion(cost_nano_usd=NANO // 4), "fresh"),
        AnsweredRow({}, "b", completion(cost_nano_usd=8 * NANO), "resumed"),
        FailedRow({}, Failure(kind="blocked", message="no", attempts=1, cost_nano_usd=NANO // 2)),
    ]
    assert report(spec, tally_of(spec, *rows)).cost_usd == 0.75


def test_the_cost_is_not_known_if_that_of_one_answer_is_not(spec: JobSpec) -> None:
    rows = [
        AnsweredRow({}, key, completion(cost_nano_usd=cost), "fresh") for key, cost in (("a", NANO), ("b", None))
    ]
    assert report(spec, tally_of(spec, *rows)).cost_usd is None
    assert report(spec, Tally()).cost_usd == 0.0, "a run that sent nothing"


def test_rows_that_share_a_failed_request_are_one_prompt_of_the_run(spec: JobSpec) -> None:
    blocked = Failure(kind="blocked", message="no", attempts=1)
    unread = Failure(kind="media_error", message="no")
    rows = [
        FailedRow({}, each, origin) for each in (blocked, unread) for origin in ("fresh", "duplicate", "duplicate")
    ]
    usages: list[RunUsage] = []
    report(spec, tally_of(spec, *rows), lambda _, usage: usages.append(usage))
    assert [usage.prompts for usage in usages] == [1]


def test_answers_within_zero_seconds_have_no_rate(spec: JobSpec) -> None:
    row = AnsweredRow({}, "a", completion(sent_at=100.0, answered_at=100.0), "fresh")
    assert report(spec, tally_of(spec, row)).requests.per_minute is None


@pytest.mark.parametrize(("padded_tokens", "ratio"), [(0, 0.0), (100, 0.0), (150, 0.3333)])
def test_padding_is_what_the_server_computed_beyond_the_tokens_of_the_prompt(
    spec: JobSpec, padded_tokens: int, ratio: float
) -> None:
    answer = completion(tokens=Tokens(100, 3), padded_tokens=padded_tokens)
    assert report(spec, tally_of(spec, AnsweredRow({}, "a", answer, "fresh"))).padding_ratio == ratio


GUARD = Moderation.parse({"model": {"type": "openai", "name": "guard", "base_url": "http://127.0.0.1:9/v1"}})
NUMBERS = Counter(
    {
        ("input", "requests", "sent"): 5,
        ("output", "requests", "sent"): 3,
        ("input", "requests", "texts"): 4,
        ("input", "tokens", "input"): 50,
        ("output", "cost", "nano_usd"): 2_500_000,
        ("input", "rows", "safe"): 2,
        ("input", "rows", "unsafe"): 1,
        ("input", "rows", "unjudged"): 1,
        ("input", "actions", "fail"): 1,
        ("input", "categories", "S1"): 1,
    }
)


def test_requests_and_cost_of_both_sides_are_summed_and_verdicts_are_by_side():
    found = moderation_of(GUARD, NUMBERS)
    assert (found.model, found.requests_sent, found.input_tokens, found.cost_usd) == (
        "openai:guard",
        8,
        50,
        0.0025,
    )
    assert (found.input.texts, found.input.safe, found.input.unsafe, found.input.unjudged) == (4, 2, 1, 1)
    assert (found.input.actions, found.input.categories) == ({"fail": 1}, {"S1": 1})
    assert (found.output.texts, found.output.categories) == (0, {})
    assert unsent_prompts(NUMBERS) == 2


def test_the_cost_of_a_guard_without_a_price_is_not_known():
    assert moderation_of(GUARD, NUMBERS + Counter({("input", "cost", "unpriced"): 1})).cost_usd is None


def test_a_job_without_a_guard_has_no_such_part():
    assert moderation_of(None, Counter()) is None


def test_a_row_of_several_categories_counts_in_each():
    step = TallyRows((128,))
    for kind, category in (("moderated", "S1,S2"), ("moderated", "S1"), ("blocked", "SAFETY"), ("timeout", None)):
        step.process(FailedRow({"id": 1}, Failure(kind=kind, message="no", category=category)))
    assert categories_of(step.tally.categories) == {"blocked": {"SAFETY": 1}, "moderated": {"S1": 2, "S2": 1}}


def test_each_field_of_a_report_is_documented():
    page = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "report-fields.md").read_text()
    assert [name for name in Report.model_fields if f"`{name}`" not in page] == []
