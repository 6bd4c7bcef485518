"""What is due of the jobs and files of a deployment, and what a sweep does of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_llmbeam.providers.batch import BatchJob, BatchPhase, UploadedFile
from airflow_provider_llmbeam.providers.errors import (
    ApiDeniedError,
    ApiNotFoundError,
    ApiUnavailableError,
)
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.job.display_name import deployment_prefix, display_name_prefix
from airflow_provider_llmbeam.sweepers.batch_inference import Due, due, sweep
from airflow_provider_llmbeam.sweepers.sweeper import SweepManifest

NOW = 1_000_000.0
OLD = 3_600.0
PREFIX = deployment_prefix("prod")


def job(name: str, phase: BatchPhase = "running", age: float = OLD + 1, ended: float | None = None) -> BatchJob:
    return BatchJob(
        name=name,
        display_name=f"{PREFIX}{name}",
        state=phase.upper(),
        phase=phase,
        created_at=NOW - age,
        ended_at=None if ended is None else NOW - ended,
    )


def upload(of: str, age: float = OLD + 1) -> UploadedFile:
    return UploadedFile(name=f"file-{of}", display_name=f"{PREFIX}{of}", created_at=NOW - age)


def names(found: Due) -> tuple[list[str], list[str], list[str], list[str]]:
    return (
        [each.name for each in found.cancel],
        [each.name for each in found.delete],
        [each.name for each in found.delete_uploads],
        list(found.kept),
    )


def test_an_old_job_that_has_not_ended_is_cancelled_and_an_old_one_that_has_is_deleted() -> None:
    jobs = [job("a"), job("b", "queued"), job("c", "succeeded", ended=OLD + 1), job("d", "failed")]
    assert names(due(jobs, [], NOW, OLD)) == (["a", "b"], ["c", "d"], [], [])


@pytest.mark.parametrize(
    "young",
    [
        job("a", age=OLD - 1),
        job("a", "succeeded", age=OLD - 1),
        job("a", "succeeded", age=10 * OLD, ended=OLD - 1),
        job("a", "cancelling"),
        job("a", age=NOW),
        job("a", age=-OLD),
    ],
    ids=["running", "ended", "ended lately", "cancelling", "age unknown", "of a clock that is ahead"],
)
def test_a_job_is_kept_with_its_file_if_it_is_not_due(young: BatchJob) -> None:
    assert names(due([young], [upload("a")], NOW, OLD)) == ([], [], [], ["a", "file-a"])


def test_an_old_file_without_a_job_is_deleted_and_a_young_one_is_kept() -> None:
    files = [upload("gone"), upload("young", age=OLD - 1), upload("unknown", age=NOW)]
    assert names(due([], files, NOW, OLD)) == ([], [], ["file-gone"], ["file-young", "file-unknown"])


def test_the_file_of_a_job_is_kept_while_it_is_cancelled_and_deleted_with_it() -> None:
    jobs = [job("running"), job("ended", "cancelled")]
    found = due(jobs, [upload("running"), upload("ended")], NOW, OLD)
    assert names(found) == (["running"], ["ended"], ["file-ended"], ["file-running"])


def test_a_file_is_kept_if_any_job_of_its_name_is() -> None:
    jobs = [job("a", "failed"), job("a", age=1)]
    assert names(due(jobs, [upload("a")], NOW, OLD)) == ([], ["a"], [], ["a", "file-a"])


class Provider:
    """Jobs and files of one deployment; a name in `errors` fails."""

    def __init__(self, *jobs: BatchJob, files: tuple[UploadedFile, ...] = (), **errors: Exception) -> None:
        self.jobs, self.files, self.errors = jobs, files, errors
        self.calls: list[str] = []

    def find(self, prefix: str) -> list[BatchJob]:
        return [each for each in self._of("find", self.jobs) if each.display_name.startswith(prefix)]

    def uploads(self, prefix: str) -> list[UploadedFile]:
        return [each for each in self._of("uploads", self.files) if each.display_name.startswith(prefix)]

    def deletable(self, jobs: tuple[BatchJob, ...]) -> list[BatchJob]:
        return list(self._of("deletable", jobs))

    def cancel(self, name: str) -> None:
        self._called("cancel", name)

    def delete(self, job: BatchJob) -> None:
        self._called("delete", job.name)

    def delete_upload(self, name: str) -> None:
        self._called("delete_upload", name.replace("-", "_"))

    def _of(self, method: str, values: Any) -> Any:
        if method in self.errors:
            raise self.errors[method]
        return values

    def _called(self, method: str, name: str) -> None:
        self.calls.append(f"{method} {name}")
        if name in self.errors:
            raise self.errors[name]


def swept(provider: Provider, **changes: Any) -> SweepManifest:
    settings = {"deployments": {"prod"}, "now": NOW, "dry_run": False, "older_than_seconds": OLD}
    return sweep(provider, **{**settings, "log": logging.getLogger(), **changes})  # type: ignore[arg-type]


def everything(**errors: Exception) -> Provider:
    jobs = (job("a"), job("b"), job("c", "succeeded"), job("d", "failed"))
    return Provider(*jobs, files=(upload("x"), upload("y")), **errors)


def test_everything_that_is_due_is_cancelled_or_deleted_and_logged(caplog) -> None:
    provider = everything()
    manifest = swept(provider)
    assert provider.calls == [
        "cancel a",
        "cancel b",
        "delete c",
        "delete d",
        "delete_upload file_x",
        "delete_upload file_y",
    ]
    assert manifest.plain() == {
        "cancelled": ["a", "b"],
        "deleted": ["c", "d", "file-x", "file-y"],
        "failed": [],
        "kept": [],
        "foreign": [],
        "dry_run": False,
    }
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 6
    assert f"Batch-inference job {PREFIX}a (a) has not ended and is forgotten: it is cancelled." in caplog.text


def test_a_dry_run_lists_what_is_due_and_changes_nothing() -> None:
    provider = everything()
    manifest = swept(provider, dry_run=True)
    assert provider.calls == []
    assert (manifest.cancelled, manifest.deleted) == (["a", "b"], ["c", "d", "file-x", "file-y"])
    assert manifest.plain()["dry_run"] is True


def test_a_failure_does_not_stop_the_rest_and_is_reported() -> None:
    no = ApiDeniedError("No.")
    manifest = swept(everything(a=no, c=no, file_x=no))
    assert (manifest.cancelled, manifest.deleted) == (["b"], ["d", "file-y"])
    assert manifest.failed == [
        f"Batch-inference job {PREFIX}a (a) may still bill: No.",
        f"Batch-inference job {PREFIX}c (c) could not be deleted: No.",
        f"The uploaded file of {PREFIX}x (file-x) could not be deleted: No.",
    ]


def test_a_job_that_is_deleted_by_somebody_else_meanwhile_is_no_failure() -> None:
    manifest = swept(everything(a=ApiNotFoundError("404")))
    assert (manifest.cancelled, manifest.failed) == (["b"], [])


@pytest.mark.parametrize(
    ("method", "calls", "what"),
    [
        ("find", 0, "The batch-inference jobs of the deployment 'prod' may still bill, and"),
        ("uploads", 4, "The uploaded files of the deployment 'prod'"),
        ("deletable", 4, "The result files of the deployment 'prod'"),
    ],
)
def test_a_list_that_fails_is_reported_and_without_that_of_the_jobs_no_file_is_deleted(
    method: str, calls: int, what: str
) -> None:
    provider = everything(**{method: ApiUnavailableError("503.")})
    manifest = swept(provider)
    assert len(provider.calls) == calls
    assert manifest.failed == [f"{what} could not be listed: 503."]


def test_other_deployments_are_swept_only_if_they_are_named() -> None:
    provider = everything()
    assert swept(provider, deployments={"dev"}) == SweepManifest()
    assert provider.calls == []
    assert len(swept(provider, deployments={"dev", "prod"}).cancelled) == 2


def spec_of(deployment: str, name: str = "night") -> JobSpec:
    return JobSpec.parse(
        {
            "name": name,
            "deployment": deployment,
            "source": {"uri": "in.csv", "key": "id"},
            "prompt": "{{ row.text }}",
            "model": "gemini-2.5-flash",
            "sink": "out/",
        }
    )


def test_the_display_names_of_a_job_begin_with_its_deployment_and_differ_from_those_of_other_jobs() -> None:
    prefix = display_name_prefix(spec_of("prod"))
    assert prefix.startswith(PREFIX)
    assert len(f"{prefix}{'0' * 16}") == 46
    others = {display_name_prefix(spec_of("prod", "day")), display_name_prefix(spec_of("dev"))}
    assert len({prefix, *others}) == 3
    assert not display_name_prefix(spec_of("dev")).startswith(PREFIX)
    assert not display_name_prefix(spec_of("")).startswith(PREFIX)
