"""What a sweep finds, what of it is due, and what becomes of it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_llmbeam.endpoints.resource import Resource
from airflow_provider_llmbeam.endpoints.sweep import (
    BatchInferenceJobs,
    DataflowJobs,
    Endpoints,
    SweepManifest,
    is_abandoned,
    is_due,
    sweep,
)
from airflow_provider_llmbeam.exceptions import AccessDeniedError, CloudUnavailableError
from airflow_provider_llmbeam.providers.batch import BatchJob, BatchPhase, UploadedFile
from airflow_provider_llmbeam.providers.errors import ApiDeniedError, ApiNotFoundError, ApiUnavailableError
from airflow_provider_llmbeam.spec import JobSpec
from airflow_provider_llmbeam.spec.identity import deployment_prefix, display_name_prefix
from airflow_provider_llmbeam.spec.remote_job import RemoteJob

pytestmark = pytest.mark.promise(3)

PLACE = "projects/p/locations/us-central1"


def resource(kind="endpoint", expires="1000", **labels):
    own = {"llmbeam-key": "k", "llmbeam-deployment": "prod", "llmbeam-expires": expires}
    return Resource(kind, f"{PLACE}/{kind}s/a", {**own, **labels})


@pytest.mark.parametrize(
    ("resources", "due"),
    [
        ([resource()], True),
        ([resource(expires="1001")], False),
        ([resource(), resource("model", expires="5000")], True),
        ([resource(expires="5000"), resource("model")], False),
        ([resource("model")], True),
        ([resource(expires="soon")], False),
        ([resource(), resource(expires="5000")], False),
    ],
)
def test_resources_are_due_once_their_endpoint_has_expired(resources, due):
    assert is_due(resources, 1_001.0) is due
    assert is_due(resources, 999.0) is False


def job(age_seconds=0.0, **labels):
    created = datetime.fromtimestamp(10_000.0 - age_seconds, UTC)
    return RemoteJob(
        "j",
        "n",
        "JOB_STATE_RUNNING",
        "running",
        created,
        {"llmbeam-job": "n", "llmbeam-deployment": "prod", **labels},
    )


def test_a_job_is_abandoned_with_its_endpoint_or_above_the_maximum_age():
    asks = {"llmbeam-endpoint": "llmbeam-k"}
    assert is_abandoned(job(**asks), frozenset({"llmbeam-k"}), 10_000.0, None)
    assert not is_abandoned(job(**asks), frozenset(), 10_000.0, 3_600.0)
    assert is_abandoned(job(3_601.0), frozenset(), 10_000.0, 3_600.0)
    assert not is_abandoned(job(3_601.0), frozenset(), 10_000.0, None)


class Jobs:
    location = "us-central1"

    def __init__(self, *jobs, error=None):
        self.jobs, self.error, self.cancelled = jobs, error, []

    def active(self):
        return list(self.jobs)

    def cancel(self, job_id):
        if self.error:
            raise self.error
        self.cancelled.append(job_id)


class Platform:
    location = "us-central1"

    def __init__(self, *resources, error=None):
        self.resources, self.error = list(resources), error

    def find(self, key):
        if self.error:
            raise self.error
        return [one for one in self.resources if key in (None, one.key)], None

    def running_operations(self, key):
        return []

    def remove(self, resource):
        self.resources.remove(resource)


def swept(platforms, jobs=(), *, deployments=("prod",), dry_run=False):
    log, now = logging.getLogger(), 10_000.0
    endpoints = [
        Endpoints(
            platform=platform, deployments=deployments, expired_before=now, gone_within_seconds=10.0, log=log
        )
        for platform in platforms
    ]
    services = [
        DataflowJobs(service=service, endpoints=endpoints, deployments=deployments, now=now, max_age_seconds=60.0)
        for service in jobs
    ]
    return sweep((*endpoints, *services), deployments=deployments, dry_run=dry_run, log=log)


def test_a_location_that_cannot_be_listed_does_not_stop_the_others():
    manifest = swept(
        [
            Platform(error=AccessDeniedError("No.")),
            Platform(resource()),
            Platform(error=CloudUnavailableError("503.")),
            Platform(error=RuntimeError("503 of the secrets backend")),
        ]
    )
    assert manifest.deleted == [f"{PLACE}/endpoints/a"]
    assert manifest.failed == ["No.", "503.", "RuntimeError: 503 of the secrets backend"]


def test_an_endpoint_that_a_later_try_provisions_again_during_the_sweep_is_kept():
    platform, renewed = Platform(resource()), resource(expires="10001")
    listed = platform.find

    def find(key):
        if key is not None:
            platform.resources = [renewed]
        return listed(key)

    platform.find = find
    manifest = swept([platform])
    assert platform.resources == [renewed]
    assert (manifest.deleted, manifest.kept) == ([], [f"{PLACE}/endpoints/a"])


def test_an_endpoint_that_has_not_expired_is_kept():
    platform = Platform(resource(expires="10001"))
    assert swept([platform]).kept == [f"{PLACE}/endpoints/a"]
    assert platform.resources


def test_models_that_cannot_be_listed_are_reported_and_endpoints_are_removed():
    platform = Platform(resource())
    platform.find = lambda key: ([*platform.resources], AccessDeniedError("No models.") if key is None else None)
    manifest = swept([platform])
    assert (manifest.deleted, manifest.failed) == ([f"{PLACE}/endpoints/a"], ["No models."])


def test_an_endpoint_that_does_not_go_is_reported_as_billing(monkeypatch):
    monkeypatch.setattr("airflow_provider_llmbeam.endpoints.teardown.ROUND_SECONDS", 60.0)
    platform = Platform(resource())
    platform.remove = lambda resource: None
    manifest = swept([platform])
    assert manifest.deleted == []
    assert [f"{PLACE}/endpoints/a" in sentence for sentence in manifest.failed] == [True]


def test_a_job_that_cannot_be_cancelled_is_reported_as_possibly_billing():
    jobs = Jobs(job(100.0), error=AccessDeniedError("No."))
    manifest = swept([], [jobs])
    assert (manifest.cancelled, manifest.deleted) == ([], [])
    assert manifest.failed == ["Job 'j' may still be billing: No."]


def test_abandoned_jobs_are_cancelled_and_others_kept():
    old, young = Jobs(job(100.0)), Jobs(job(10.0))
    manifest = swept([], [old, young])
    assert (old.cancelled, young.cancelled) == (["j"], [])
    assert (manifest.cancelled, manifest.kept) == (["us-central1/jobs/j"], ["us-central1/jobs/j"])


def test_a_dry_run_changes_neither_endpoints_nor_jobs():
    platform, jobs = Platform(resource()), Jobs(job(100.0))
    manifest = swept([platform], [jobs], dry_run=True)
    assert platform.resources
    assert jobs.cancelled == []
    assert (manifest.deleted, manifest.cancelled) == ([f"{PLACE}/endpoints/a"], ["us-central1/jobs/j"])


FOREIGN = [{"llmbeam-key": "d", "llmbeam-deployment": "dev"}, {"llmbeam-key": "u", "llmbeam-deployment": ""}]


@pytest.mark.parametrize("labels", FOREIGN, ids=["another deployment", "no label"])
def test_nothing_of_another_deployment_is_swept_and_the_log_names_it(labels, caplog):
    platform, jobs = Platform(resource(**labels)), Jobs(job(100.0, **labels))
    with caplog.at_level("INFO"):
        manifest = swept([platform], [jobs])
    assert platform.resources
    assert jobs.cancelled == []
    assert manifest.foreign == [f"{PLACE}/endpoints/a", "us-central1/jobs/j"]
    assert (manifest.deleted, manifest.kept) == ([], [])
    assert f"no label llmbeam-deployment=prod: {PLACE}/endpoints/a, us-central1/jobs/j" in caplog.text


def test_another_deployment_is_swept_when_it_is_named():
    platform, jobs = Platform(resource(), resource(**FOREIGN[0])), Jobs(job(100.0, **FOREIGN[0]))
    manifest = swept([platform], [jobs], deployments={"dev"})
    assert [one.deployment for one in platform.resources] == ["prod"]
    assert jobs.cancelled == ["j"]
    assert len(manifest.foreign) == 1


NOW = 1_000_000.0
OLD = 3_600.0
PREFIX = deployment_prefix("prod")


def batch_job(
    name: str, phase: BatchPhase = "running", age: float = OLD + 1, ended: float | None = None
) -> BatchJob:
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


def planned(jobs: list[BatchJob], uploads: list[UploadedFile]) -> tuple[list[str], list[str], list[str]]:
    """Returns the names of what is cancelled, deleted and kept."""
    manifest = swept_batches(Provider(*jobs, files=tuple(uploads)), dry_run=True)
    assert manifest.failed == []
    return manifest.cancelled, manifest.deleted, manifest.kept


def test_an_old_job_that_has_not_ended_is_cancelled_and_an_old_one_that_has_is_deleted() -> None:
    jobs = [
        batch_job("a"),
        batch_job("b", "queued"),
        batch_job("c", "succeeded", ended=OLD + 1),
        batch_job("d", "failed"),
    ]
    assert planned(jobs, []) == (["a", "b"], ["c", "d"], [])


@pytest.mark.parametrize(
    "young",
    [
        batch_job("a", age=OLD - 1),
        batch_job("a", "succeeded", age=OLD - 1),
        batch_job("a", "succeeded", age=10 * OLD, ended=OLD - 1),
        batch_job("a", "cancelling"),
        batch_job("a", age=NOW),
        batch_job("a", age=-OLD),
    ],
    ids=["running", "ended", "ended lately", "cancelling", "age unknown", "of a clock that is ahead"],
)
def test_a_job_is_kept_with_its_file_if_it_is_not_due(young: BatchJob) -> None:
    assert planned([young], [upload("a")]) == ([], [], ["a", "file-a"])


def test_an_old_file_without_a_job_is_deleted_and_a_young_one_is_kept() -> None:
    files = [upload("gone"), upload("young", age=OLD - 1), upload("unknown", age=NOW)]
    assert planned([], files) == ([], ["file-gone"], ["file-young", "file-unknown"])


def test_the_file_of_a_job_is_kept_while_it_is_cancelled_and_deleted_with_it() -> None:
    jobs = [batch_job("running"), batch_job("ended", "cancelled")]
    found = planned(jobs, [upload("running"), upload("ended")])
    assert found == (["running"], ["ended", "file-ended"], ["file-running"])


def test_a_file_is_kept_if_any_job_of_its_name_is() -> None:
    jobs = [batch_job("a", "failed"), batch_job("a", age=1)]
    assert planned(jobs, [upload("a")]) == ([], ["a"], ["a", "file-a"])


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


def swept_batches(
    provider: Provider, *, deployments: tuple[str, ...] = ("prod",), dry_run: bool = False
) -> SweepManifest:
    things = [
        BatchInferenceJobs(provider=provider, deployment=each, made_before=NOW - OLD)  # type: ignore[arg-type]
        for each in deployments
    ]
    return sweep(things, deployments=deployments, dry_run=dry_run, log=logging.getLogger())


def everything(**errors: Exception) -> Provider:
    jobs = (batch_job("a"), batch_job("b"), batch_job("c", "succeeded"), batch_job("d", "failed"))
    return Provider(*jobs, files=(upload("x"), upload("y")), **errors)


def test_everything_that_is_due_is_cancelled_or_deleted_and_logged(caplog) -> None:
    provider = everything()
    manifest = swept_batches(provider)
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
    manifest = swept_batches(provider, dry_run=True)
    assert provider.calls == []
    assert (manifest.cancelled, manifest.deleted) == (["a", "b"], ["c", "d", "file-x", "file-y"])
    assert manifest.plain()["dry_run"] is True


def test_a_failure_does_not_stop_the_rest_and_is_reported() -> None:
    no = ApiDeniedError("No.")
    manifest = swept_batches(everything(a=no, c=no, file_x=no))
    assert (manifest.cancelled, manifest.deleted) == (["b"], ["d", "file-y"])
    assert manifest.failed == [
        f"Batch-inference job {PREFIX}a (a) may still bill: No.",
        f"Batch-inference job {PREFIX}c (c) could not be deleted: No.",
        f"The uploaded file of {PREFIX}x (file-x) could not be deleted: No.",
    ]


def test_a_job_that_is_deleted_by_somebody_else_meanwhile_is_no_failure() -> None:
    manifest = swept_batches(everything(a=ApiNotFoundError("404")))
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
    manifest = swept_batches(provider)
    assert len(provider.calls) == calls
    assert manifest.failed == [f"{what} could not be listed: 503."]


def test_other_deployments_are_swept_only_if_they_are_named() -> None:
    provider = everything()
    assert swept_batches(provider, deployments=("dev",)) == SweepManifest()
    assert provider.calls == []
    assert len(swept_batches(provider, deployments=("dev", "prod")).cancelled) == 2


def test_an_unexpected_error_does_not_stop_the_rest_either() -> None:
    manifest = swept_batches(everything(a=ZeroDivisionError("0")))
    assert (manifest.cancelled, len(manifest.deleted)) == (["b"], 4)
    assert manifest.failed == [f"Batch-inference job {PREFIX}a (a) may still bill: ZeroDivisionError: 0"]


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
