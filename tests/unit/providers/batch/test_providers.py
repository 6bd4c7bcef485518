"""What the clients of all providers do, against the sandbox."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from llmbeam_sandbox import Fault
from llmbeam_sandbox.models.embedding.base import vector

from airflow_provider_llmbeam.exceptions import JobRefusedError
from airflow_provider_llmbeam.providers.batch import BatchJob
from airflow_provider_llmbeam.providers.errors import (
    ApiDeniedError,
    ApiNotFoundError,
    BatchQuotaError,
    UncertainSubmitError,
)
from airflow_provider_llmbeam.providers.openai.batch import OpenAIBatches
from airflow_provider_llmbeam.providers.rest import RestClient
from airflow_provider_llmbeam.spec.model import OpenAIModel


def test_a_job_is_submitted_polled_and_read(cloud) -> None:
    cloud.sandbox.batches.change(queue_seconds=60, run_seconds=600)
    job = cloud.submit()
    assert (job.display_name, job.phase, job.results) == ("night-1", "queued", ())
    assert cloud.after(job, 60).phase == "running"
    done = cloud.after(job, 600)
    assert (done.phase, done.answered, done.failed, done.error) == ("succeeded", 3, 0, None)
    assert done.has_ended
    assert done.ended_at == pytest.approx(done.created_at + 660, abs=1)
    assert len(cloud.rows(done)) == 3


@pytest.mark.parametrize("kind", ["gemini", "openai"])
def test_a_job_of_embeddings_is_submitted_polled_and_read(open_cloud, kind) -> None:
    cloud = open_cloud(kind, embeds=True)
    done = cloud.after(cloud.submit())
    assert (done.phase, done.answered, done.failed, done.error) == ("succeeded", 3, 0, None)
    rows = {row.get("key") or row["custom_id"]: row["response"] for row in cloud.rows(done)}
    model = {"gemini": "gemini-embedding-001", "openai": "text-embedding-3-small"}[kind]
    for number in range(3):
        reply = rows[f"prompt {number}"]
        values = reply["embedding"]["values"] if kind == "gemini" else reply["body"]["data"][0]["embedding"]
        assert values == vector(f"prompt {number}", model=model)
    assert [job.name for job in cloud.provider.find("night-1")] == [done.name]


@pytest.mark.parametrize("kind", ["gemini", "openai"])
def test_a_job_of_embeddings_has_fewer_rows_as_vectors_are_large(open_cloud, kind) -> None:
    assert open_cloud(kind, embeds=True).provider.limits.max_rows == 10_000
    assert open_cloud(kind).provider.limits.max_rows > 40_000


@pytest.mark.parametrize("kind", ["gemini", "openai"])
def test_lines_of_vectors_fail_in_a_job_of_texts(open_cloud, kind) -> None:
    cloud = open_cloud(kind)
    cloud.embeds = True
    job = cloud.after(cloud.submit())
    assert job.phase == "failed" or job.failed == 3


@pytest.mark.parametrize("kind", ["gemini", "openai"])
def test_the_file_of_a_refused_job_is_deleted(open_cloud, kind) -> None:
    cloud = open_cloud(kind)
    cloud.sandbox.faults.queue(f"{cloud.service}.create", Fault(kind="error", http_status=400))
    with pytest.raises(JobRefusedError):
        cloud.submit()
    assert list(cloud.provider.uploads("")) == []


def test_rows_are_counted_while_a_job_runs(cloud) -> None:
    cloud.sandbox.batches.change(run_seconds=100)
    job = cloud.submit(rows=10)
    cloud.after(job)
    assert cloud.after(job, 40).answered == 4


def test_jobs_are_found_by_the_beginning_of_their_names_the_newest_first(cloud) -> None:
    for name in ("night-1", "day-1", "night-2", "nigh"):
        cloud.submit(name)
        cloud.clock.advance(1)
    assert [job.display_name for job in cloud.provider.find("night-")] == ["night-2", "night-1"]
    assert cloud.provider.find("evening") == []


def test_all_pages_of_a_list_are_read(cloud) -> None:
    for number in range(103):
        cloud.submit(f"night-{number}", rows=1)
    assert len(cloud.provider.find("night-")) == 103


class Pages:
    """A list of 1,200 jobs of OpenAI, one a day, of which each page has 100."""

    def __init__(self, *, newest_first: bool) -> None:
        self.read = 0
        days = range(1_200, 0, -1) if newest_first else range(1, 1_201)
        self._jobs = [
            {"id": f"batch_{day}", "created_at": 86_400 * day, "metadata": {"display_name": f"night-{day}"}}
            for day in days
        ]

    def pages(self, *_: object) -> Iterator[dict[str, object]]:
        for start in range(0, len(self._jobs), 100):
            self.read += 1
            yield {"data": self._jobs[start : start + 100]}


@pytest.mark.parametrize(("newest_first", "pages", "jobs"), [(True, 1, 91), (False, 12, 1_200)])
def test_the_jobs_of_openai_which_it_keeps_forever_are_listed_back_to_90_days(newest_first, pages, jobs) -> None:
    http = Pages(newest_first=newest_first)
    provider = OpenAIBatches(OpenAIModel(type="openai", name="gpt-5-mini"), cast("RestClient", http))
    found = provider.find("night-")
    assert (found[0].name, len(found), http.read) == ("batch_1200", jobs, pages)


def test_a_job_is_cancelled_once_and_the_cancellation_of_an_ended_one_is_no_error(cloud) -> None:
    cloud.sandbox.batches.change(outcome="stuck", cancel_seconds=30)
    job = cloud.submit()
    cloud.provider.cancel(job.name)
    assert not cloud.after(job).has_ended
    assert cloud.after(job, 30).phase == "cancelled"
    cloud.provider.cancel(job.name)


@pytest.mark.parametrize("kind", ["vertex", "openai"])
def test_the_rows_that_a_cancelled_job_has_finished_are_read(open_cloud, kind) -> None:
    cloud = open_cloud(kind)
    cloud.sandbox.batches.change(run_seconds=100)
    job = cloud.submit(rows=10)
    cloud.after(job, 0)
    cloud.clock.advance(40)
    cloud.provider.cancel(job.name)
    assert len(cloud.rows(cloud.after(job))) == 4


@pytest.mark.parametrize(("outcome", "phase"), [("stuck", "expired"), ("failed", "failed")])
def test_a_job_that_ends_without_an_answer_has_ended(cloud, outcome, phase) -> None:
    cloud.sandbox.batches.change(outcome=outcome, expires_seconds=3600)
    job = cloud.after(cloud.submit(), 3600)
    assert job.phase == phase
    assert job.error or phase == "expired"
    assert job.has_ended


def test_a_deleted_job_is_gone_with_its_files_and_a_second_deletion_is_no_error(cloud) -> None:
    job = cloud.after(cloud.submit())
    cloud.provider.delete(job)
    if cloud.kind != "openai":
        with pytest.raises(ApiNotFoundError, match="HTTP 404"):
            cloud.provider.get(job.name)
    if cloud.kind != "vertex":
        with pytest.raises((ApiNotFoundError, ApiDeniedError)):
            cloud.rows(job)
    cloud.provider.delete(job)


@pytest.mark.parametrize(
    ("status", "hours", "expected"),
    [
        (403, 1, ApiDeniedError),
        (403, 47, ApiDeniedError),
        (403, 49, ApiNotFoundError),
        (401, 49, ApiDeniedError),
        (404, 1, ApiNotFoundError),
    ],
)
@pytest.mark.parametrize("is_end_known", [True, False])
def test_a_refused_result_file_of_the_developer_api_has_expired_only_after_48_hours(
    open_cloud, status, hours, expected, is_end_known
) -> None:
    """A file that does not exist is answered with 403, too."""
    cloud = open_cloud("gemini")
    job, ended_at = cloud.after(cloud.submit()), time.time() - hours * 3600
    # A job takes 48 hours at most.
    job = replace(job, created_at=ended_at - 48 * 3600, ended_at=ended_at if is_end_known else None)
    cloud.sandbox.faults.queue("gemini.files.download", Fault(kind="error", http_status=status))
    with pytest.raises(expected):
        cloud.rows(job)


def test_a_failed_poll_is_repeated(cloud) -> None:
    job = cloud.submit()
    method = "retrieve" if cloud.kind == "openai" else "get"
    cloud.sandbox.faults.queue(
        f"{cloud.service}.{method}", Fault(kind="error", http_status=503), Fault(kind="disconnect")
    )
    assert cloud.provider.get(job.name).name == job.name


def test_a_job_that_may_have_been_created_is_not_submitted_again(cloud) -> None:
    cloud.sandbox.faults.queue(f"{cloud.service}.create", Fault(kind="disconnect"))
    with pytest.raises(UncertainSubmitError, match=r"'night-1' may have been created.*Look it up"):
        cloud.submit()
    assert [job.display_name for job in cloud.provider.find("night-1")] == ["night-1"]


def test_a_refused_job_costs_nothing_and_the_refusal_is_quoted(cloud) -> None:
    fault = Fault(kind="error", http_status=400, message="The model cannot be used for batch inference.")
    cloud.sandbox.faults.queue(f"{cloud.service}.create", fault)
    with pytest.raises(JobRefusedError, match=r"cannot be used for batch inference\. No job was created\."):
        cloud.submit()


@pytest.mark.parametrize("limit", [{"max_jobs": 1}, {"max_enqueued_tokens": 10}])
def test_the_developer_api_takes_no_further_job_until_another_one_has_ended(open_cloud, limit) -> None:
    cloud = open_cloud("gemini")
    cloud.sandbox.batches.change(outcome="stuck", **limit)
    first = cloud.submit()
    with pytest.raises(BatchQuotaError, match=r"HTTP 429.*No job was created\. Submit it when another job"):
        cloud.submit("night-2")
    assert [record.method for record in cloud.sandbox.requests].count("gemini.files.delete") == 1
    cloud.provider.cancel(first.name)
    cloud.after(first)
    assert cloud.submit("night-2").phase == "queued"


def test_openai_takes_a_job_over_the_quota_and_lets_it_fail(open_cloud) -> None:
    cloud = open_cloud("openai")
    cloud.sandbox.batches.change(max_enqueued_tokens=3)
    job = cloud.after(cloud.submit())
    assert (job.phase, job.was_over_quota) == ("failed", True)
    cloud.sandbox.batches.change(outcome="failed", max_enqueued_tokens=None)
    assert not cloud.after(cloud.submit()).was_over_quota


@pytest.mark.parametrize("name", ["batches/../files", "../x", "", "projects/p/locations/l/batchPredictionJobs/"])
def test_a_name_that_is_none_is_not_sent(cloud, name) -> None:
    with pytest.raises(ApiNotFoundError, match="is not the name of a batch-inference job"):
        cloud.provider.get(name)
    job = BatchJob(name="none", display_name="", state="", phase="failed", created_at=0.0, results=("../x",))
    if cloud.kind != "openai":
        with pytest.raises(ApiNotFoundError):
            cloud.provider.delete(job)
