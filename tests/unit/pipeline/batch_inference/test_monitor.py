from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_llmbeam.exceptions import JobRefusedError
from airflow_provider_llmbeam.pipeline.batch_inference import manifest as manifests
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import (
    BatchManifest,
    RequestFile,
    Sums,
    digest_of,
    read_manifest,
    write_manifest,
)
from airflow_provider_llmbeam.pipeline.batch_inference.monitor import Monitor, _token_limit, count_free_slots
from airflow_provider_llmbeam.pipeline.batch_inference.run import BatchInference
from airflow_provider_llmbeam.pipeline.measure.estimate.ways import plan_of
from airflow_provider_llmbeam.providers.batch import BatchJob, UploadedFile
from airflow_provider_llmbeam.providers.errors import (
    ApiError,
    ApiNotFoundError,
    ApiUnavailableError,
    UncertainSubmitError,
)
from airflow_provider_llmbeam.spec import JobSpec

DOWN = ApiUnavailableError("OpenAI answered HTTP 503: down.")


def job(name, phase="running"):
    return BatchJob(name=f"batch_{name}", display_name=name, state=phase, phase=phase, created_at=1000.0)


class Provider:
    """A provider whose jobs end at a time."""

    has_display_names = True

    def __init__(self, clock, ends_at=2000.0):
        self.clock, self.ends_at = clock, ends_at
        self.jobs = {}
        #: Errors of the next submissions of a display name, and of all lists.
        self.errors, self.list_error = {}, None
        self.submits = Counter()
        #: Names of jobs that can be neither polled nor cancelled.
        self.broken, self.cancelled = set(), []
        #: Uploaded request files: display names by name. Those in `kept` cannot be deleted.
        self.files, self.kept = {}, set()

    def submit(self, display_name, uri, open_file, size):
        self.submits[display_name] += 1
        self.files[f"file-{display_name}-{self.submits[display_name]}"] = display_name
        if self.errors.get(display_name):
            raise self.errors[display_name].pop(0)
        self.jobs[f"batch_{display_name}"] = found = job(display_name)
        return found

    def find(self, prefix):
        if self.list_error is not None:
            raise self.list_error
        return [self.get(name) for name in self.jobs]

    def cancel(self, name):
        if name in self.broken:
            raise DOWN
        self.cancelled.append(name)

    def delete(self, job):
        if job.name in self.broken:
            raise DOWN
        del self.jobs[job.name]

    def poll(self, job):
        return self.get(job.name)

    def get(self, name):
        if name in self.broken:
            raise DOWN
        if name not in self.jobs:
            raise ApiNotFoundError(name)
        phase = "succeeded" if self.clock.now >= self.ends_at else "running"
        return replace(self.jobs[name], state=phase, phase=phase)

    def deletable(self, jobs):
        return list(jobs)

    def uploads(self, prefix):
        if self.list_error is not None:
            raise self.list_error
        return [UploadedFile(name=name, display_name=of, created_at=1.0) for name, of in self.files.items()]

    def delete_upload(self, name):
        if name in self.kept:
            raise DOWN
        del self.files[name]


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def provider(clock):
    return Provider(clock)


@pytest.fixture(autouse=True)
def short_names(monkeypatch):
    """Lets a job have the name of its request file, instead of the digest of its prompts after a prefix."""
    monkeypatch.setattr(manifests, "display_name_prefix", lambda spec: "")


@pytest.fixture
def spec(tmp_path):
    found = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": f"{tmp_path}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "openai", "name": "gpt-5-mini"},
            "inference": {"mode": "batch", "max_batch_wait_seconds": 7200.0},
            "sink": {"uri": f"{tmp_path}/out/"},
        }
    )
    Path(found.paths.batch_uri).mkdir(parents=True)
    return found


def manifest_of(spec, *names, **changes):
    files = {name: RequestFile(digest=name, rows=3, size=9, input_tokens=7) for name in names}
    manifest = BatchManifest(prompts=digest_of(spec), created_at=1000.0, files=files, **changes)
    write_manifest(spec, manifest)
    return manifest


@pytest.fixture
def monitored(spec, provider, clock):
    """Submits files and waits for their jobs."""

    def monitor(*names):
        found = Monitor(spec, provider, waits=True, clock=clock, sleep=clock.sleep)
        found.run(manifest_of(spec, *names), plan_of(spec, 1000.0, None, None))
        return found.jobs

    return monitor


def test_a_link_in_place_of_a_request_file_is_not_uploaded(monitored, spec, provider, tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("secret")
    Path(spec.paths.requests_uri("a")).symlink_to(tmp_path / "secret")
    monkeypatch.setattr(provider, "submit", lambda display_name, uri, open_file, size: open_file(uri).read())
    with pytest.raises(JobRefusedError, match=r"requests-a\.jsonl' is not uploaded: Is a symbolic link"):
        monitored("a")


@pytest.mark.parametrize("late", ["a", "b"])
def test_a_file_that_cannot_be_uploaded_for_a_while_is_submitted_once_it_can(
    monitored, provider, clock, caplog, late
):
    provider.errors[late] = [DOWN] * 5
    jobs = monitored("a", "b")
    assert {name: found.phase for name, found in jobs.items()} == {"a": "succeeded", "b": "succeeded"}
    assert provider.submits[late] == 6
    assert f"No job was created for {late}. Submitting it again later." in caplog.text
    assert clock.now < 2400.0, "it does not wait for the end of the other job"


def test_the_rows_of_a_file_that_can_never_be_uploaded_are_left_to_online_requests(monitored, provider, clock):
    provider.errors["a"] = [DOWN] * 10_000
    assert monitored("a") == {}
    assert clock.now == pytest.approx(1000.0 + 7200.0)


@pytest.mark.parametrize("broken", ["a", "b"])
def test_one_job_that_cannot_be_polled_does_not_hide_the_end_of_another(monitored, provider, caplog, broken):
    provider.broken, provider.ends_at = {f"batch_{broken}"}, 6000.0
    phases = {name: found.phase for name, found in monitored("a", "b").items()}
    assert phases == {"a": "succeeded", "b": "succeeded", broken: "running"}
    assert f"have not ended and may still bill: {broken} (batch_{broken})." in caplog.text


def test_a_job_that_fails_in_the_second_of_its_manifest_is_of_this_run(spec, provider, clock, monkeypatch):
    failed = replace(job("a", "failed"), ended_at=1001.0)
    monkeypatch.setattr(provider, "find", lambda prefix: [failed])
    monkeypatch.setattr(provider, "deletable", lambda jobs: [])
    manifest = manifest_of(spec, "a").changed(created_at=1000.7)
    monitor = Monitor(spec, provider, waits=True, clock=clock, sleep=clock.sleep)
    assert monitor.find(manifest) == {"a": failed}


def test_a_job_that_may_have_been_created_is_named_if_no_list_can_be_read(monitored, provider):
    provider.errors["a"] = [UncertainSubmitError("Batch-inference job 'a' may have been created.")]
    provider.list_error = DOWN
    with pytest.raises(UncertainSubmitError, match="'a' may have been created"):
        monitored("a")


def test_jobs_that_run_are_named_where_the_provider_cannot_be_polled_in_time(spec, provider, clock):
    jobs = {name: job(name) for name in "abc"}
    manifest_of(spec, *jobs, jobs=jobs, harvested={"b": Sums(answered=3)})
    provider.list_error = DOWN
    clock.now += 7201.0
    batch = BatchInference(spec, None, provider=provider, clock=clock, sleep=clock.sleep)
    with pytest.raises(ApiError, match=r"down\. Batch-inference .* and bill: batch_a, batch_c\. A retry"):
        batch.fill_journal()
    assert read_manifest(spec).jobs == jobs


def test_an_error_without_jobs_is_raised_as_it_is(spec, provider, clock):
    manifest_of(spec, "a")
    provider.list_error = DOWN
    clock.now += 7201.0
    batch = BatchInference(spec, None, provider=provider, clock=clock, sleep=clock.sleep)
    with pytest.raises(ApiUnavailableError, match=r"^OpenAI answered HTTP 503: down\.$"):
        batch.fill_journal()


def test_a_job_that_cannot_be_deleted_keeps_no_prompts_and_no_other_job(spec, provider, clock, caplog):
    clock.now = provider.ends_at
    provider.jobs = {f"batch_{name}": job(name, "succeeded") for name in "ab"}
    manifest_of(spec, "a", "b", is_published=True)
    requests = Path(spec.paths.batch_uri) / "requests-0.jsonl"
    requests.write_text("prompts")
    provider.broken.add("batch_a")
    batch = BatchInference(spec, None, provider=provider, clock=clock, sleep=clock.sleep)
    batch.manifest = read_manifest(spec)
    batch._monitor.jobs = {each.display_name: each for each in provider.jobs.values()}
    batch.clean_up()
    assert list(provider.jobs) == ["batch_a"]
    assert not requests.exists()
    assert "could not be deleted: batch_a: OpenAI answered HTTP 503: down." in caplog.text
    assert read_manifest(spec).is_published, "a later try deletes the job"


@pytest.mark.parametrize("is_broken", [False, True])
def test_of_two_jobs_with_the_same_rows_the_older_one_is_cancelled_or_named(
    spec, provider, clock, caplog, is_broken
):
    older = replace(job("a"), name="batch_lost", created_at=900.0)
    provider.jobs = {each.name: each for each in (older, job("a"), job("b"))}
    provider.broken = {"batch_lost"} if is_broken else set()
    provider.find = lambda prefix: list(provider.jobs.values())
    found = Monitor(spec, provider, waits=True, clock=clock, sleep=clock.sleep).find(manifest_of(spec, "a", "b"))
    assert {name: each.name for name, each in found.items()} == {"a": "batch_a", "b": "batch_b"}
    assert provider.cancelled == ([] if is_broken else ["batch_lost"])
    assert "job batch_lost has the rows of batch_a and is cancelled" in caplog.text
    assert ("batch_lost may still run and bill" in caplog.text) is is_broken


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "batch_victim"},
        {"name": "batch_victim", "display_name": "victim"},
        {"name": "batch_none", "phase": "succeeded", "results": ("gs://of-others/results",), "created_at": 1e18},
    ],
)
def test_a_changed_manifest_leads_to_no_job_and_no_results_of_others(spec, provider, clock, forged):
    provider.jobs = {"batch_victim": replace(job("victim"), name="batch_victim")}
    provider.find = lambda prefix: []
    manifest = manifest_of(spec, "a", jobs={"a": replace(job("a"), **forged)})
    found = Monitor(spec, provider, waits=True, clock=clock, sleep=clock.sleep).find(manifest)
    assert {(each.name, each.results) for each in found.values()} <= {("batch_none", ())}


def test_an_older_job_that_has_ended_is_left_alone(spec, provider, clock):
    older = replace(job("a", "failed"), name="batch_old", created_at=900.0)
    provider.find = lambda prefix: [older, job("a")]
    Monitor(spec, provider, waits=True, clock=clock, sleep=clock.sleep).find(manifest_of(spec, "a"))
    assert provider.cancelled == []


# Request files at the provider, which hold all prompts


@pytest.fixture
def ended(spec, provider, clock):
    """Returns the batch inference of two files whose jobs have ended."""
    for name in "ab":
        provider.submit(name, f"/{name}", None, 9)
    clock.now = provider.ends_at
    manifest_of(spec, "a", "b", is_published=True)
    batch = BatchInference(spec, None, provider=provider, clock=clock, sleep=clock.sleep)
    batch.manifest = read_manifest(spec)
    batch._monitor.jobs = {name: provider.get(f"batch_{name}") for name in "ab"}
    return batch


def test_request_files_are_deleted_by_the_display_name_that_we_gave_them(ended, spec, provider):
    """No reply of the provider names the file of a job; one of "a" was uploaded twice."""
    provider.files |= {"file-a-again": "a", "file-other": "other"}
    ended.clean_up()
    assert provider.files == {"file-other": "other"}
    assert provider.jobs == {}
    assert read_manifest(spec) is None


def test_a_request_file_that_cannot_be_deleted_is_named_and_deleted_by_a_later_try(ended, spec, provider, caplog):
    provider.kept = {"file-a-1"}
    ended.clean_up()
    assert list(provider.files) == ["file-a-1"]
    assert "could not be deleted: Request file file-a-1 of a, with all its prompts: OpenAI answered" in caplog.text
    assert read_manifest(spec).is_published
    provider.kept, ended._monitor.jobs = set(), {}
    ended.clean_up()
    assert (provider.files, read_manifest(spec)) == ({}, None)


def test_request_files_that_cannot_be_listed_are_said_to_be_left(ended, spec, provider, caplog):
    provider.list_error = DOWN
    ended.clean_up()
    assert "Jobs or files of the batch inference could not be deleted: OpenAI answered HTTP 503" in caplog.text
    assert read_manifest(spec).is_published


def test_the_file_of_a_job_that_runs_is_kept(ended, provider):
    ended._monitor.jobs["a"] = job("a")
    ended.clean_up()
    assert list(provider.files.values()) == ["a"]


def test_a_job_is_known_by_our_record_where_the_provider_does_not_say_its_display_name(monitored, provider):
    get = provider.get
    provider.get = lambda name: replace(get(name), display_name="")
    found = monitored("a")
    assert {name: (each.display_name, each.phase) for name, each in found.items()} == {"a": ("a", "succeeded")}


FULL = (
    "token_limit_exceeded: Enqueued token limit reached for gpt-4o in organization org-1. Limit: 90,000 enqueued "
    "tokens. Please try again once some in_progress batches have been completed."
)


def timed_job(phase, created_at, ended_at=None, error=None):
    return BatchJob(
        name=f"{created_at}",
        display_name=f"{created_at}",
        state=phase,
        phase=phase,
        created_at=created_at,
        ended_at=ended_at,
        error=error,
    )


def over(created_at):
    return timed_job("failed", created_at, created_at, FULL)


@pytest.mark.parametrize(
    ("error", "limit"),
    [(FULL, 90_000), (None, None), ("token_limit_exceeded", None), ("Limit: , enqueued tokens", None)],
)
def test_the_limit_is_read_from_the_error(error, limit):
    assert _token_limit(timed_job("failed", 1.0, error=error)) == limit


@pytest.mark.parametrize(
    ("jobs", "room"),
    [
        ([], None),
        ([timed_job("running", 1.0), timed_job("failed", 2.0, 3.0, "server_error")], None),
        ([timed_job("running", 1.0), over(2.0)], 0),
        ([timed_job("succeeded", 1.0, 1.5), timed_job("running", 1.0), over(2.0)], 0),
        ([timed_job("succeeded", 1.0, 3.0), timed_job("running", 1.0), over(2.0)], 2),
        ([timed_job("succeeded", 1.0, 3.0), timed_job("running", 4.0), over(2.0)], 1),
        ([timed_job("succeeded", 1.0, 3.0), timed_job("running", 4.0), timed_job("queued", 4.0), over(2.0)], 0),
        ([timed_job("succeeded", 1.0, 3.0), timed_job("running", 1.0), over(2.0), over(4.0)], 0),
    ],
)
def test_two_jobs_are_submitted_for_each_that_has_ended_since_one_was_over_the_limit(jobs, room):
    assert count_free_slots(jobs) == room


@pytest.mark.parametrize("ended", [[], [timed_job("succeeded", 1.0, 3.0)]])
def test_one_job_is_submitted_where_only_others_hold_tokens(ended):
    assert count_free_slots([*ended, over(2.0), over(2.0)]) == 1
