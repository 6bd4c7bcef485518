"""A sweep of each provider, against the sandbox."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from llmbeam_sandbox import Fault

from airflow_provider_llmbeam.endpoints.sweep import BatchInferenceJobs, SweepManifest, sweep
from airflow_provider_llmbeam.providers.openai import batch as openai
from airflow_provider_llmbeam.spec.identity import deployment_prefix

PREFIX = deployment_prefix("prod")
FOREIGN = deployment_prefix("dev")
OLD = 7_200.0
#: Methods that delete a job, its result file, and an uploaded file.
DELETE = {
    "vertex": "vertex.batchPredictionJobs.delete",
    "gemini": "gemini.batches.delete",
    "openai": "openai.files.delete",
}


def swept(cloud: Any, *, dry_run: bool = False) -> SweepManifest:
    jobs = BatchInferenceJobs(provider=cloud.provider, deployment="prod", made_before=cloud.clock() - OLD)
    return sweep([jobs], deployments=["prod"], dry_run=dry_run, log=logging.getLogger())


def stuck(cloud: Any, name: str) -> str:
    cloud.sandbox.batches.change(outcome="stuck")
    return str(cloud.submit(name).name)


def ended(cloud: Any, name: str) -> str:
    cloud.sandbox.batches.change(outcome="succeeded")
    return str(cloud.after(cloud.submit(name)).name)


def phases(cloud: Any) -> dict[str, str]:
    return {job.name: job.phase for job in cloud.provider.find("llmbeam-")}


def uploads(cloud: Any) -> list[str]:
    return sorted(file.display_name for file in cloud.provider.uploads("llmbeam-"))


def changes(cloud: Any) -> list[str]:
    return [each.method for each in cloud.sandbox.requests if each.method.endswith((".cancel", ".delete"))]


def test_old_jobs_are_cancelled_and_later_deleted_with_their_files(cloud) -> None:
    running, done = stuck(cloud, f"{PREFIX}a-1"), ended(cloud, f"{PREFIX}b-1")
    cloud.clock.advance(OLD + 1)
    manifest = swept(cloud)
    assert manifest.cancelled == [running]
    assert done in manifest.deleted
    assert manifest.failed == []
    assert phases(cloud)[running] == "cancelled"
    assert uploads(cloud) == ([] if cloud.kind == "vertex" else [f"{PREFIX}a-1"])
    cloud.clock.advance(OLD + 1)
    swept(cloud)
    assert uploads(cloud) == []
    if cloud.kind == "openai":
        assert [file for file in cloud.sandbox.requests if file.method == "openai.files.delete"]
    else:
        assert phases(cloud) == {}
    assert swept(cloud) == SweepManifest(), "OpenAI keeps its batches, which have no files any more"


def test_younger_jobs_and_those_of_another_deployment_are_left_alone(cloud) -> None:
    other = stuck(cloud, f"{FOREIGN}a-1"), ended(cloud, f"{FOREIGN}b-1")
    cloud.clock.advance(OLD + 1)
    young = stuck(cloud, f"{PREFIX}a-1"), ended(cloud, f"{PREFIX}b-1")
    before = phases(cloud), uploads(cloud)
    manifest = swept(cloud)
    assert set(young) <= set(manifest.kept)
    assert set(other).isdisjoint(manifest.kept)
    assert (manifest.cancelled, manifest.deleted, manifest.failed) == ([], [], [])
    assert (phases(cloud), uploads(cloud)) == before
    assert changes(cloud) == []


def test_a_dry_run_lists_what_is_due_and_touches_nothing(cloud) -> None:
    running, done = stuck(cloud, f"{PREFIX}a-1"), ended(cloud, f"{PREFIX}b-1")
    cloud.clock.advance(OLD + 1)
    manifest = swept(cloud, dry_run=True)
    assert manifest.cancelled == [running]
    assert done in manifest.deleted
    assert changes(cloud) == []
    real = swept(cloud)
    assert (real.cancelled, real.deleted) == (manifest.cancelled, manifest.deleted)


@pytest.mark.parametrize("kind", ["gemini", "openai"])
def test_an_uploaded_file_without_a_job_is_deleted(open_cloud, kind) -> None:
    cloud = open_cloud(kind)
    cloud.sandbox.faults.queue(f"{kind}.batches.create", Fault(kind="error", http_status=503))
    with pytest.raises(Exception, match="may have been created"):
        cloud.submit(f"{PREFIX}a-1")
    kept = stuck(cloud, f"{PREFIX}b-1")
    assert swept(cloud).deleted == [], "it is young"
    cloud.clock.advance(OLD + 1)
    manifest = swept(cloud)
    assert (len(manifest.deleted), manifest.cancelled) == (1, [kept])
    assert uploads(cloud) == [f"{PREFIX}b-1"]


def test_what_somebody_else_deletes_meanwhile_is_no_failure(cloud) -> None:
    stuck(cloud, f"{PREFIX}a-1"), ended(cloud, f"{PREFIX}b-1")
    cloud.clock.advance(OLD + 1)
    gone = Fault(kind="error", http_status=404)
    cloud.sandbox.faults.queue(f"{cloud.service}.cancel", gone)
    cloud.sandbox.faults.queue(DELETE[cloud.kind], gone)
    manifest = swept(cloud)
    assert (manifest.cancelled, manifest.failed) == ([], [])
    assert manifest.deleted


def test_a_denied_deletion_does_not_stop_the_rest_and_is_reported(cloud) -> None:
    jobs = [ended(cloud, f"{PREFIX}{name}-1") for name in "ab"]
    running = stuck(cloud, f"{PREFIX}c-1")
    cloud.clock.advance(OLD + 1)
    cloud.sandbox.faults.queue(DELETE[cloud.kind], Fault(kind="error", http_status=403, message="Not you."))
    cloud.sandbox.faults.queue(f"{cloud.service}.cancel", Fault(kind="error", http_status=403, message="Not you."))
    manifest = swept(cloud)
    assert len(set(jobs) & set(manifest.deleted)) == 1
    (cancel, delete) = manifest.failed
    assert cancel.startswith(f"Batch-inference job {PREFIX}c-1 ({running}) may still bill: ")
    assert "could not be deleted: " in delete
    assert "HTTP 403: Not you." in cancel
    assert "HTTP 403: Not you." in delete
    manifest = swept(cloud)
    assert (manifest.cancelled, manifest.failed) == ([running], [])
    assert len(set(jobs) & set(manifest.deleted)) == 1


def test_the_developer_api_denies_a_file_that_is_there_or_does_not_exist(open_cloud) -> None:
    cloud = open_cloud("gemini")
    cloud.provider.delete(cloud.after(cloud.submit(f"{PREFIX}a-1")))
    (file,) = cloud.provider.uploads(PREFIX)
    cloud.sandbox.faults.queue("gemini.files.delete", Fault(kind="error", http_status=403, message="Not you."))
    cloud.clock.advance(OLD + 1)
    manifest = swept(cloud)
    assert manifest.failed == [
        f"The uploaded file of {PREFIX}a-1 ({file.name}) could not be deleted: The Gemini Developer API answered "
        "HTTP 403: Not you."
    ]
    cloud.provider.delete_upload(file.name)
    assert uploads(cloud) == []
    cloud.provider.delete_upload(file.name)
    cloud.provider.delete_upload("files/../batches/1")


def test_result_files_of_the_developer_api_are_no_uploads(open_cloud) -> None:
    cloud = open_cloud("gemini")
    job = cloud.after(cloud.submit(f"{PREFIX}a-1"))
    assert job.results
    assert [file.display_name for file in cloud.provider.uploads("")] == [f"{PREFIX}a-1"]


@pytest.mark.parametrize("kind", ["gemini", "openai"])
def test_all_pages_of_the_files_are_read(open_cloud, kind, monkeypatch) -> None:
    monkeypatch.setattr(openai, "_FILES_PER_PAGE", 100)
    cloud = open_cloud(kind)
    for number in range(103):
        cloud.submit(f"{PREFIX}a-{number}", rows=1)
    cloud.submit(f"{FOREIGN}a-1", rows=1)
    assert len(cloud.provider.uploads(PREFIX)) == 103
    listed = [each for each in cloud.sandbox.requests if each.method == f"{kind}.files.list"]
    assert len(listed) == {"gemini": 3, "openai": 2}[kind], "the Developer API lists result files, too"


def test_a_file_of_openai_has_the_name_of_its_job_whatever_that_is(open_cloud) -> None:
    cloud = open_cloud("openai")
    cloud.submit(f'{PREFIX}"\r\nx')
    (file,) = cloud.provider.uploads(PREFIX)
    assert file.display_name == f"{PREFIX}%22%0D%0Ax"


def test_an_openai_batch_whose_second_upload_failed_leaves_no_file(open_cloud) -> None:
    """The reply to the first upload was lost, so that the file was uploaded twice."""
    cloud = open_cloud("openai")
    cloud.sandbox.faults.queue("openai.files.create", Fault(kind="disconnect"))
    ended(cloud, f"{PREFIX}a-1")
    assert uploads(cloud) == [f"{PREFIX}a-1"] * 2
    cloud.clock.advance(OLD + 1)
    swept(cloud)
    assert uploads(cloud) == []


def test_a_reply_about_a_file_without_a_valid_name_is_passed_over() -> None:
    from airflow_provider_llmbeam.providers.gemini import files as gemini_files

    for name in ("", "../files/1", "files/a b", 5, None):
        assert gemini_files.file_of({"name": name}) is None
        assert openai.upload_of({"id": name}) is None or name == ""
    assert gemini_files.file_of({"name": "files/a", "createTime": "never"}).created_at == 0.0
    assert openai.upload_of({"id": "file-a"}).created_at == 0.0
