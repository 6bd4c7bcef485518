from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.limits import Limits
from airflow_provider_llmbeam.spec.runner import (
    MAX_WORKERS_WITHOUT_QUOTA,
    DataflowRunner,
    first_workers,
    limits_of_a_worker,
    max_workers,
)

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "workers.md").read_text()


def runner_of(**fields):
    return DataflowRunner(type="dataflow", location="europe-west1", **fields)


def workers(requests_per_minute, seconds, **limits):
    return max_workers(
        runner_of(expected_latency_seconds=seconds), Limits(requests_per_minute=requests_per_minute, **limits)
    )


def table_of(max_in_flight):
    """Returns the table of the docs page: (requests per minute, seconds, workers)."""
    text = re.search(rf"With `max_in_flight` = {max_in_flight}\b.*?\n\n(.*?)\n\n", PAGE, re.DOTALL)[1]
    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
    seconds = [float(cell.removesuffix(" s")) for cell in head[1:]]
    return [
        (float(line[0].replace(",", "")), latency, int(count))
        for line in lines
        for latency, count in zip(seconds, line[1:], strict=True)
    ]


@pytest.mark.parametrize("max_in_flight", [64, 512])
def test_the_numbers_of_workers_in_the_docs_match_the_code(max_in_flight):
    table = table_of(max_in_flight)
    assert {rate for rate, _, _ in table} == {600, 6_000, 60_000}
    assert {seconds for _, seconds, _ in table} == {2, 5, 20}
    for rate, seconds, count in table:
        assert workers(rate, seconds, max_in_flight=max_in_flight) == count, (rate, seconds)


def test_the_defaults_in_the_docs_match_the_code():
    assert Limits().max_in_flight == 64
    assert runner_of().expected_latency_seconds == 5
    assert max_workers(runner_of(), Limits()) == MAX_WORKERS_WITHOUT_QUOTA == 10
    assert max_workers(runner_of(), Limits(tokens_per_minute=1e6)) == MAX_WORKERS_WITHOUT_QUOTA


def test_the_quota_of_a_worker_is_that_of_the_docs(job):
    rate, seconds, part, count = (
        float(number.replace(",", ""))
        for number in re.search(
            r"For ([\d,]+) requests per minute at (\d+) s that is a share of\s+(\d+) for\s+each of (\d+) workers",
            PAGE,
        ).groups()
    )
    spec = JobSpec.parse(
        job(
            source={"uri": "gs://b/in.jsonl", "key": ["id"]},
            sink={"uri": "gs://b/out"},
            limits={"requests_per_minute": rate},
            runner={"type": "dataflow", "location": "europe-west1", "expected_latency_seconds": seconds},
        )
    )
    assert limits_of_a_worker(spec.runner, spec.limits).expected_workers == count
    assert rate / count == part
    # The docs page's example of an idle CPU, at 0.3 ms per request.
    assert f"{part / 60:g} requests per second at 0.3 ms" in " ".join(PAGE.split())
    assert f"are {part / 60 * 0.3 / 1000:.1%}".replace("%", " %") in " ".join(PAGE.split())


@given(
    rate=st.floats(0.1, 1e6),
    seconds=st.floats(0.01, 600),
    in_flight=st.integers(1, 10_000),
    ratio=st.floats(0.01, 1),
)
def test_the_computed_workers_carry_the_quota_and_one_fewer_does_not(rate, seconds, in_flight, ratio):
    count = workers(rate, seconds, max_in_flight=in_flight, share_ratio=ratio)
    needed = rate * ratio / 60 * seconds
    assert count >= 1
    assert count * in_flight >= needed * (1 - 1e-9)
    assert count == 1 or (count - 1) * in_flight < needed * (1 + 1e-9)


@given(rate=st.floats(1, 1e5), seconds=st.floats(0.1, 60))
def test_a_longer_latency_and_a_larger_quota_never_need_fewer(rate, seconds):
    assert workers(rate * 2, seconds) >= workers(rate, seconds)
    assert workers(rate, seconds * 2) >= workers(rate, seconds)


def test_an_explicit_max_workers_is_not_computed():
    limits = Limits(requests_per_minute=60_000)
    assert max_workers(runner_of(max_workers=3), limits) == 3
    assert max_workers(runner_of(max_workers=30), Limits()) == 30


@pytest.mark.parametrize("limits", [Limits(), Limits(requests_per_minute=60)], ids=["no quota", "a quota"])
def test_max_workers_is_never_below_num_workers(limits):
    assert max_workers(runner_of(num_workers=20), limits) == 20


def test_a_local_job_keeps_its_limits(job):
    spec = JobSpec.parse(job())
    assert limits_of_a_worker(spec.runner, spec.limits) is spec.limits


def test_explicit_expected_workers_are_kept(job):
    spec = JobSpec.parse(
        job(
            source={"uri": "gs://b/in.jsonl", "key": ["id"]},
            sink={"uri": "gs://b/out"},
            limits={"expected_workers": 7},
            runner={"type": "dataflow", "location": "europe-west1"},
        )
    )
    assert limits_of_a_worker(spec.runner, spec.limits).expected_workers == 7


def test_a_job_with_a_quota_starts_with_all_its_workers() -> None:
    runner = DataflowRunner(type="dataflow", location="europe-west1")
    limits = Limits(requests_per_minute=6000)
    assert first_workers(runner, limits) == max_workers(runner, limits) == 8
    assert first_workers(runner.model_copy(update={"num_workers": 2}), limits) == 2
    assert first_workers(runner, Limits()) is None
