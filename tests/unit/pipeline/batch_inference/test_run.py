from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_llmbeam.exceptions import JobRefusedError
from airflow_provider_llmbeam.pipeline.batch_inference import manifest as manifests
from airflow_provider_llmbeam.pipeline.batch_inference import run as module
from airflow_provider_llmbeam.pipeline.batch_inference.manifest import (
    BatchManifest,
    RequestFile,
    Sums,
    read_manifest,
    write_manifest,
)
from airflow_provider_llmbeam.pipeline.batch_inference.run import _discard
from airflow_provider_llmbeam.providers.batch import BatchJob, UploadedFile
from airflow_provider_llmbeam.providers.errors import ApiDeniedError, ApiNotFoundError, ApiUnavailableError
from airflow_provider_llmbeam.spec import JobSpec

OPENAI = {"type": "openai", "name": "gpt-5-mini"}


def file(name):
    return RequestFile(digest=name, rows=3, size=9, input_tokens=7)


def job(name, phase="running"):
    return BatchJob(name=f"batch_{name}", display_name=name, state="S", phase=phase, created_at=2.0)


class Provider:
    """A provider that has some jobs."""

    has_display_names = True

    def __init__(self, *jobs, listed=True, error=None):
        self.jobs = {job.name: job for job in jobs}
        self.listed, self.error, self.cancelled = listed, error, []
        self.files = {}

    def find(self, prefix):
        return list(self.jobs.values()) if self.listed else []

    def poll(self, job):
        return self.get(job.name)

    def get(self, name):
        if name not in self.jobs:
            raise ApiNotFoundError(f"{name!r} is not the name of a batch-inference job of this provider.")
        return self.jobs[name]

    def cancel(self, name):
        if self.error is not None:
            raise self.error
        self.cancelled.append(name)

    def uploads(self, prefix):
        return [UploadedFile(name=name, display_name=of, created_at=1.0) for name, of in self.files.items()]

    def delete_upload(self, name):
        del self.files[name]


@pytest.fixture(autouse=True)
def short_names(monkeypatch):
    """Lets a job have the name of its request file, instead of the digest of its prompts after a prefix."""
    monkeypatch.setattr(manifests, "display_name_prefix", lambda spec: "")


@pytest.fixture
def spec(tmp_path):
    """A job with another provider than that of the earlier try."""
    found = JobSpec.parse(
        {
            "name": "job",
            "source": {"uri": f"{tmp_path}/in.jsonl", "key": ["id"]},
            "prompt": {"template": "{{ row.text }}"},
            "model": {"type": "gemini", "base_url": "https://gemini.internal"},
            "sink": {"uri": f"{tmp_path}/out/"},
        }
    )
    Path(found.paths.batch_uri).mkdir(parents=True)
    return found


def manifest_of(*names, **changes):
    usual = {"prompts": "p", "model": OPENAI, "created_at": 1.0, "files": {name: file(name) for name in names}}
    return BatchManifest(**{**usual, "jobs": {name: job(name) for name in names}, **changes})


@pytest.fixture
def discarded(spec, monkeypatch, caplog):
    """Discards the batch inference of an earlier try, and returns the log."""

    def discard_with(manifest, provider=None):
        if provider is not None:
            monkeypatch.setattr(module, "open_provider", lambda model, output_uri: provider)
        write_manifest(spec, manifest)
        with caplog.at_level("INFO"):
            _discard(spec, manifest)
        assert read_manifest(spec) is None
        return caplog.text

    return discard_with


@pytest.mark.parametrize("listed", [True, False])
def test_only_jobs_that_were_cancelled_are_said_to_be(discarded, listed):
    provider = Provider(job("a"), job("b", "succeeded"), listed=listed)
    log = discarded(manifest_of("a", "b"), provider)
    assert provider.cancelled == ["batch_a"]
    assert log.count("was cancelled") == 1
    assert "Batch-inference job batch_a (a) was cancelled." in log
    assert "WARNING" not in log


def test_a_job_of_somebody_else_that_a_changed_manifest_names_is_not_cancelled(discarded):
    provider = Provider(job("a"), job("victim"), listed=False)
    discarded(manifest_of("a", jobs={"a": replace(job("a"), name="batch_victim")}), provider)
    assert provider.cancelled == []


def test_an_answer_that_a_server_counts_and_was_never_asked_is_not_unreturned(spec):
    run = module.BatchInference(spec, None, provider=Provider())
    run.manifest = manifest_of("a")
    run._monitor.jobs = {"a": replace(job("a", "succeeded"), answered=10**9)}
    run._count_unreturned({"a": Sums(answered=1)})
    assert run.manifest.unreturned == {"a": 2}


def test_a_job_that_cannot_be_cancelled_is_named_with_what_to_do(discarded):
    log = discarded(manifest_of("a"), Provider(job("a"), error=ApiUnavailableError("OpenAI did not answer.")))
    assert "WARNING" in log
    assert (
        "Batch-inference job batch_a (a) of an earlier try, of model 'gpt-5-mini' of type 'openai', was not "
        "cancelled, and may still run and bill: OpenAI did not answer. Cancel it at its provider, or leave it to "
        "`SweepBatchInferenceOperator` with that model." in log
    )
    assert "was cancelled" not in log


def test_no_sweep_is_advised_for_a_provider_whose_batches_have_no_names(discarded):
    provider = Provider(job("a"), error=ApiUnavailableError("Anthropic did not answer."))
    provider.has_display_names = False
    claude = {"type": "anthropic", "name": "claude-haiku-5-5"}
    log = discarded(manifest_of("a", model=claude), provider)
    assert "bill: Anthropic did not answer. Cancel it at its provider." in log


def test_jobs_are_named_where_the_credentials_of_the_earlier_provider_are_missing(discarded, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    log = discarded(manifest_of("a", "b", "c", harvested={"b": Sums(answered=3)}))
    assert log.count("may still run and bill") == 2
    assert "batch_a (a)" in log
    assert "batch_c (c)" in log
    assert "`OPENAI_API_KEY`" in log
    assert "Nothing was sent" not in log


def test_a_job_whose_submission_was_not_recorded_is_named_by_its_display_name(discarded, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "Batch-inference job a of an earlier try" in discarded(manifest_of("a", jobs={}))


@pytest.mark.parametrize(
    "model",
    [
        OPENAI,
        {"type": "gemini"},
        {"type": "gemini", "base_url": "https://gemini.internal"},
        {"type": "gemini", "project": "p", "location": "us-central1"},
    ],
)
def test_credentials_are_sent_to_a_provider_and_to_the_address_of_the_job(discarded, model):
    provider = Provider(job("a"))
    discarded(manifest_of("a", model=model), provider)
    assert provider.cancelled == ["batch_a"]


@pytest.mark.parametrize(
    "model",
    [
        OPENAI | {"base_url": "https://openai.example/v1"},
        {"type": "gemini", "base_url": "https://gemini.internal.example"},
        {"type": "gemini", "project": "p", "location": "openai.example/"},
        {"type": "gemini", "project": "p", "location": "openai.example\\@x"},
        {"type": "echo"},
        {"type": "gemini", "base_url": 3},
        {},
    ],
)
def test_a_state_that_somebody_has_changed_sends_no_credentials_elsewhere(discarded, model):
    provider = Provider(job("a"))
    assert "batch_a (a) of an earlier try" in discarded(manifest_of("a", model=model), provider)
    assert provider.cancelled == []


def test_a_refused_list_of_jobs_does_not_keep_the_job_back(discarded, monkeypatch):
    provider = Provider(job("a"))

    def find(prefix):
        raise ApiDeniedError("OpenAI answered HTTP 401: no.")

    monkeypatch.setattr(provider, "find", find)
    assert "may still run and bill: OpenAI answered HTTP 401: no." in discarded(manifest_of("a"), provider)


def test_a_job_that_has_published_has_nothing_to_cancel(discarded):
    provider = Provider(job("a"))
    assert discarded(manifest_of("a", is_published=True), provider) == ""
    assert provider.cancelled == []


def test_the_request_files_of_the_earlier_try_are_deleted_at_the_provider(discarded):
    provider = Provider(job("a"))
    provider.files = {"file-1": "a", "file-2": "a", "file-3": "other"}
    discarded(manifest_of("a"), provider)
    assert provider.files == {"file-3": "other"}


def test_a_run_of_an_account_that_may_pay_again_sends_the_rest(spec):
    """The sums of an earlier try keep their errors."""
    unpaid = Sums(errors={"quota_exhausted: pay": 1})
    run = module.BatchInference.__new__(module.BatchInference)
    run._spec = spec
    manifest = manifest_of("a", harvested={"a": unpaid})
    with pytest.raises(JobRefusedError, match="may not pay: 1 × quota_exhausted: pay"):
        run._refuse_costly_rest(manifest, 2, "1 × quota_exhausted: pay", unpaid)
    assert run._refuse_costly_rest(manifest, 2, "1 × quota_exhausted: pay", Sums.total([])) == ""


@pytest.mark.parametrize(
    ("sums", "unreturned"),
    [
        (Sums(answered=3), {}),
        (Sums(answered=1, failed=2, unusable=2), {}),
        (Sums(answered=1, failed=2, unusable=1), {"a": 1}),
        (Sums(answered=1, malformed=2), {"a": 2}),
    ],
)
def test_an_answer_of_no_use_was_returned_and_a_line_that_is_no_result_was_not(spec, sums, unreturned):
    run = module.BatchInference.__new__(module.BatchInference)
    run._spec, run.manifest = spec, manifest_of("a")
    run._monitor = SimpleNamespace(jobs={"a": replace(job("a", "succeeded"), answered=3)})
    run._count_unreturned({"a": sums})
    assert run.manifest.unreturned == unreturned


def test_the_error_of_a_job_without_results_is_that_of_its_rows(spec):
    run = module.BatchInference.__new__(module.BatchInference)
    run._spec, run.manifest, run._provider = spec, manifest_of("a", "b"), SimpleNamespace(results=lambda job: [])
    jobs = {"a": replace(job("a", "failed"), error="the file is too large"), "b": job("b", "cancelled")}
    run._monitor = SimpleNamespace(jobs=jobs)
    run._harvest(run.manifest)
    assert {name: sums.errors for name, sums in run.manifest.harvested.items()} == {
        "a": {"failed: the file is too large": 3},
        "b": {"cancelled: the job has no results": 3},
    }
