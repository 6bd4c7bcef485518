from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import apache_beam as beam
import pytest
from apache_beam.metrics.execution import MetricsContainer, MetricsEnvironment
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.runners.worker import statesampler
from apache_beam.utils.counters import CounterFactory
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.beam import LLMModelHandler
from airflow_provider_llmbeam.engine.outcome import Failure
from airflow_provider_llmbeam.engine.prompt import Prompt
from airflow_provider_llmbeam.engine.token_counts import Tokens
from airflow_provider_llmbeam.pipeline.build import build
from airflow_provider_llmbeam.pipeline.context import RunContext
from airflow_provider_llmbeam.pipeline.reporting.metrics import BatchCounts, CountingDoFn, count, counts_of
from airflow_provider_llmbeam.pipeline.reporting.progress import PROGRESS, Count
from airflow_provider_llmbeam.spec import EchoModel, JobSpec, Limits, Price
from airflow_provider_llmbeam.spec.protocol.counts import NAMESPACE, Counts
from tests.outcomes import completion


def named(counters: dict[str, int]) -> Counts:
    return Counts(**{name: counters.get(name, 0) for name in get_args(Count)})


class Bundle:
    """The metrics that a runner keeps for the thread of a bundle."""

    def __init__(self) -> None:
        self._container = MetricsContainer("step")

    def counts(self) -> Counts:
        counters = self._container.get_cumulative().counters
        return named(
            {key.metric.name: value for key, value in counters.items() if key.metric.namespace == NAMESPACE}
        )


@pytest.fixture
def bundle() -> Iterator[Bundle]:
    found = Bundle()
    sampler = statesampler.StateSampler("test", CounterFactory())
    statesampler.set_current_tracker(sampler)
    state = sampler.scoped_state("step", "process", metrics_container=found._container)
    sampler.start()
    try:
        with state:
            assert MetricsEnvironment.current_container() is found._container
            yield found
    finally:
        sampler.stop()
        statesampler.set_current_tracker(None)


def test_every_count_has_a_counter(bundle: Bundle) -> None:
    everything = Counts(*range(1, 10))
    count(everything)
    assert bundle.counts() == PROGRESS.snapshot() == everything


def test_a_batch_is_counted_as_its_engine_works() -> None:
    batch = BatchCounts()
    batch.sent()
    batch.rejected(1.0)
    assert batch.take() == Counts(requests=1, rejections=1)
    batch.sent()
    batch.finished(Prompt("a"), completion(tokens=Tokens(10, 3)))
    batch.finished(Prompt("b"), Failure(kind="blocked", message="no", tokens=Tokens(5)))
    assert batch.take() == Counts(requests=1, answered=1, failed=1, input_tokens=15, output_tokens=3)
    assert batch.take() == Counts()


def test_answers_of_an_earlier_try_count_as_in_that_try() -> None:
    known = [completion(attempts=2, rejections=3, tokens=Tokens(7, 1)), completion(attempts=0)]
    assert counts_of(known) == Counts(answered=2, requests=5, rejections=3, input_tokens=17, output_tokens=4)


def test_answers_of_a_tier_without_a_known_price_count_for_the_budget_that_the_counters_are_compared_with() -> (
    None
):
    price = Price(input_usd_per_million_tokens=1.0, output_usd_per_million_tokens=1.0)
    served = completion(tokens=Tokens(900, 100), cost_nano_usd=None, service_tier="priority")
    batch = BatchCounts(price)
    batch.finished(Prompt("a"), served)
    assert batch.take().cost_nano_usd == counts_of([served], price).cost_nano_usd == 1_750_000
    assert counts_of([served]).cost_nano_usd == 0, "a model without a price has no budget"


def test_a_step_updates_its_counters_periodically_and_at_the_end(bundle: Bundle) -> None:
    step = CountingDoFn()
    step.start_bundle()
    for _ in range(step.UPDATE_EVERY + 1):
        step.count("rows")
    assert bundle.counts() == Counts(rows=step.UPDATE_EVERY)
    step.count("duplicates", 5)
    step.finish_bundle()
    step.finish_bundle()
    assert bundle.counts() == PROGRESS.snapshot() == Counts(rows=step.UPDATE_EVERY + 1, duplicates=5)


def test_the_counts_of_a_failed_bundle_are_discarded(bundle: Bundle) -> None:
    step = CountingDoFn()
    step.start_bundle()
    step.count("rows")
    step.start_bundle()
    step.finish_bundle()
    assert bundle.counts() == Counts()


def test_counters_are_updated_while_a_batch_runs(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread reads the counters of the bundle, like a runner."""
    monkeypatch.setattr("airflow_provider_llmbeam.pipeline.engine_thread.SIGNAL_SECONDS", 0.02)
    handler = LLMModelHandler(EchoModel(type="echo", latency_seconds=0.05), limits=Limits(max_in_flight=4))
    seen: list[Counts] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            seen.append(bundle.counts())

    watcher = threading.Thread(target=watch)
    watcher.start()
    handler.run_inference([f"row {number}" for number in range(40)], handler.load_model())
    over.set()
    watcher.join()
    midway = [now for now in seen if 0 < now.answered < 40]
    assert len({now.answered for now in midway}) > 3
    assert all(now.requests >= now.answered and now.input_tokens > 0 for now in midway)
    after = bundle.counts()
    assert (after.answered, after.requests, after.failed) == (40, 40, 0)


def run(spec: JobSpec) -> tuple[Counts, dict[str, Any]]:
    pipeline = beam.Pipeline(runner="apache_beam.runners.portability.fn_api_runner.FnApiRunner")
    build(pipeline, spec, RunContext(started_at=time.time()))
    result = pipeline.run()
    result.wait_until_finish()
    counters: dict[str, int] = {}
    for found in result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]:
        name = found.key.metric.name
        counters[name] = counters.get(name, 0) + found.committed
    return named(counters), json.loads(Path(spec.paths.output_uri, "report.json").read_text())


def agrees(counts: Counts, report: dict[str, Any]) -> None:
    rows, origins = report["rows"], report["origins"]
    assert counts.rows == rows["read"]
    assert counts.resumed == origins["resumed"] + origins["cached"]
    assert counts.answered == origins["fresh"] + origins["repaired"]
    assert counts.done == rows["read"]
    assert counts.requests == report["requests"]["sent"]
    assert counts.rejections == report["requests"]["rejected"]
    assert counts.input_tokens == report["tokens"]["input"]
    assert counts.output_tokens == report["tokens"]["output"]


def test_the_counters_of_a_job_are_those_of_its_report(job, tmp_path: Path, sandbox) -> None:
    lines = [json.dumps({"id": number, "text": f"row {number % 30}"}) for number in range(40)]
    lines += ['{"id": 40}', '{"text": "no key"}', "no JSON", json.dumps({"id": 0, "text": "a second row 0"})]
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines))
    spec = job(
        source={"uri": str(source), "key": ["id"], "on_duplicate_key": "dead_letter"},
        model={"type": "gemini", "base_url": sandbox.gemini_url},
        limits={"max_dead_letter_ratio": 1.0},
        sink={"uri": str(tmp_path / "out")},
    )
    sandbox.faults.queue("gemini.generateContent", *[Fault(kind="rate-limit", retry_delay_seconds=0.1)] * 2)
    sandbox.faults.queue("gemini.generateContent", Fault(kind="error", http_status=400, message="no"))
    counts, report = run(spec)
    agrees(counts, report)
    # Four rows have no prompt, the other 40 rows have 31 distinct prompts, and one prompt is refused.
    assert (counts.rows, counts.duplicates, counts.answered, counts.failed) == (44, 9, 30, 5)
    assert (counts.requests, counts.rejections) == (33, 2)
    assert PROGRESS.snapshot() == counts
    PROGRESS.reset()
    again, report = run(spec)
    agrees(again, report)
    assert (again.answered, again.failed, again.requests) == (1, 4, 1)
    assert again.resumed + again.duplicates == 39
    assert PROGRESS.snapshot() == again


def test_a_bundle_that_the_runner_repeats_counts_what_was_answered_before(tmp_path: Path) -> None:
    """The counts of the first try are discarded with it."""
    first, second = (LLMModelHandler(EchoModel(type="echo"), journal_uri=f"{tmp_path}/") for _ in range(2))
    first.run_inference(["a", "b"], first.load_model())
    once = PROGRESS.snapshot()
    PROGRESS.reset()
    second.run_inference(["a", "b"], second.load_model())
    assert PROGRESS.snapshot() == once
    assert once.answered == once.requests == 2
